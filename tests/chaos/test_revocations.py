"""Workers that really die, at every kind of moment, under a real mpirun."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.launch.start import installation
from spotmpi.optimizers import SGD, Momentum
from spotmpi.protocol.recovery import most_messages
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from spotmpi.strategies import named
from spotmpi.trace import records
from spotmpi.trace.interruptions import unexplained
from spotmpi.trace.proof import findings

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import model  # noqa: E402 - the script's own modules, beside it
import others  # noqa: E402

TIMEOUT = 100


class Job:
    """One finished run: what the launcher said, and what the trace proves."""

    def __init__(self, done, path: Path, passes: int, wide: bool = False) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.records = list(records.read(path))
        self.passes = passes
        self.wide = wide
        told = [line.partition("FINAL ") for line in done.stdout.splitlines()]
        self.finals = [said.split() for _, final, said in told if final]

    def of(self, event: str) -> list[dict]:
        """All records of a kind."""
        return [record for record in self.records if record["event"] == event]

    @property
    def survivors(self) -> set[int]:
        """Workers that reached the end of the script."""
        return {int(final[0]) for final in self.finals}

    def check(self, strategy: str = "ssgd", optimizer=None, others_too=()) -> None:
        """Everything that must hold whatever died."""
        self.check_promises()
        done = steps(self.records)
        resumed = max((record["step"] for record in self.of("resume")), default=0)
        for final in self.finals:
            dealt = [
                c
                for r in done
                for c in r["contributions"]
                if c["worker"] == int(final[0]) and r["step"] >= resumed
            ]
            assert int(final[2]) == len(dealt)
        known = (
            self.records,
            model.params(self.wide),
            lambda p, s: model.gradient(p, s)[1],
            optimizer or Momentum(lr=0.02),
        )
        own = others.STRATEGIES.get(strategy)
        again = replay(*known, own() if own else named(strategy), others_too)
        assert model.fingerprint(again) == self.finals[0][1], "the order of summation is ours"

    def check_learnt(self) -> None:
        """It is near what there is to learn, y = sum(k * x[k]) + 0.5: by less than a third of where
        it began. How near is a matter of who computed when, where nobody waits."""
        there = np.array([0.5, 0, 1, 2, 3, 4])
        assert np.linalg.norm(self.trained - there) < np.linalg.norm(there) / 3

    @property
    def trained(self) -> np.ndarray:
        """The parameters at the end, but the wide ones."""
        return np.array([float(value) for value in self.finals[0][4:]])

    def check_promises(self) -> None:
        """What holds with every strategy."""
        shown = self.out + self.err
        assert self.code == 0, shown
        assert [end["outcome"] for end in self.of("end")][-1] == "finished", shown
        assert len(self.of("end")) == len(self.of("start"))
        assert set(self.of("end")[-1]["workers"]) >= self.survivors
        # Replicas are bit-identical, and no survivor computed a gradient twice.
        assert len({final[1] for final in self.finals}) == 1, shown
        done = steps(self.records)
        assert {int(final[3]) for final in self.finals} == {len(done)}
        # Every sample of every pass exactly once.
        check_exactly_once(self.records, model.SAMPLES, self.passes)
        told = [record for record in self.of("recovered") if record["worker"] in self.survivors]
        assert len(told) <= check_replicas(self.records) <= len(self.of("recovered"))
        # Each gap that is longer than twice a usual step has its cause, and each promise a check.
        assert unexplained(self.records) == [], shown
        assert [one for one in findings(self.records) if one.holds is False] == []
        for recovery in self.of("recovery"):
            assert recovery["lost_steps"] == recovery["recomputed_gradients"] == 0
            assert recovery["verdict"] in ("repair", "retry")
        for recovered in self.of("recovered"):
            losses = {r["generation"]: len(r["lost"]) for r in self.of("recovery")}.get(
                recovered["generation"]
            )
            if losses:
                (sent,) = recovered["messages_sent"].values()
                assert sent <= most_messages(losses, unasked=True)


@pytest.fixture(params=[pytest.param("Plain", marks=pytest.mark.matrix), "Node"])
def run(run_spotmpi, tmp_path, request):
    """``run(n, "--revoke", ..., chaos=..., script_args=...)`` -> Job, over both data planes: a
    model by MPI, and a wide one in shared memory; on request also between hosts."""
    wide = request.param != "Plain"
    path = tmp_path / "trace.jsonl"

    def start(workers, *options, chaos="", script_args=(), passes=3) -> Job:
        done = run_spotmpi(
            [
                *("run", "-n", str(workers), *options, "--trace", path, HERE / "script.py"),
                *("--passes", str(passes), "--plane", request.param, *["--wide"] * wide),
                *script_args,
            ],
            timeout=TIMEOUT,
            env={"CHAOS": chaos},
        )
        return Job(done, path, passes, wide)

    return start


between_hosts = pytest.mark.parametrize("run", ["Hosts"], indirect=True)
by_mpi_first = pytest.mark.parametrize(
    "run", ["Plain", pytest.param("Node", marks=pytest.mark.matrix)], indirect=True
)
in_shared_memory = pytest.mark.parametrize("run", ["Node"], indirect=True)
"""For what knows nothing of data planes: deaths in rounds without an arena, which go by MPI in
both, and in what is done when no round is open."""


@pytest.mark.parametrize(
    ("workers", "revocations"),
    [
        (2, ["1@5"]),
        (2, ["0@5"]),
        (4, ["1,2@10", "0@20"]),
        (4, ["0,1,2@7"]),
        (8, ["0,3,4@4", "7@5"]),
        (8, ["1,2,3,4,5,6,7@6"]),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else f"{value}-workers",
)
@pytest.mark.promise("a burst of deaths in one all-reduce, rank 0 among them")
@pytest.mark.first("Node-4-workers-0,1,2@7")
def test_survivors_train_on_as_if_nothing_had_happened(run, workers, revocations) -> None:
    """Whoever dies in the all-reduce, whoever leads, up to all but one."""
    options = [part for r in revocations for part in ("--revoke", r)]
    job = run(workers, *options)
    job.check()

    dead = {int(w) for r in revocations for w in r.split("@")[0].split(",")}
    assert job.survivors == set(range(workers)) - dead
    assert {w for r in job.of("recovery") for w in r["lost"]} == dead
    assert all(r["total_ms"] > 0 for r in job.of("recovery"))


@between_hosts
@pytest.mark.promise("a sum between hosts")
@pytest.mark.first("0@5+3@9-Hosts")
@pytest.mark.parametrize("revocations", [["0@5", "3@9"], ["1,2@10", "4@20"]], ids="+".join)
def test_survivors_on_several_hosts_train_on_as_if_nothing_had_happened(run, revocations) -> None:
    """A host is lost whole, or some of its workers are."""
    options = [part for r in revocations for part in ("--revoke", r)]
    job = run(5, *options)
    job.check()
    assert any("hosts" in record for record in job.of("step"))
    # In the step that was asked for, and not in the next one.
    asked = {
        int(w): int(step)
        for r in revocations
        for ws, _, step in [r.partition("@")]
        for w in ws.split(",")
    }
    assert {w: r["step"] for r in job.of("recovery") for w in r["lost"]} == asked


def test_gradients_that_are_computed_in_place_count_once_whoever_dies(run) -> None:
    """In a round that carries them, and in the rounds between."""
    chaos = "2:Rebuild:1"
    job = run(4, "--revoke", "0@6", chaos=chaos, script_args=["--in-place", "--late"])
    job.check()
    assert job.survivors == {1, 3}


PIECES = ["1:Proceed:5", "0:Proceed:6,2:Rebuild:1", "2:Start:15,0:Send:2", "3:Wait:9,1:Proceed:20"]


@pytest.mark.promise("a death with gradients half handed over")
@pytest.mark.first("Node-2:Start:15,0:Send:2")
@pytest.mark.parametrize("chaos", PIECES)
def test_who_dies_with_half_of_its_gradient_handed_over_has_brought_nothing(run, chaos) -> None:
    """Between two buckets, in a recovery from that, and with all of them under way."""
    job = run(4, chaos=chaos, script_args=["--pieces", "--late"])
    job.check()
    assert len(job.survivors) == 4 - len(chaos.split(","))


@between_hosts
@pytest.mark.parametrize("chaos", PIECES)
def test_the_same_between_hosts(run, chaos) -> None:
    job = run(5, chaos=chaos, script_args=["--pieces", "--late"])
    job.check()
    assert len(job.survivors) == 5 - len(chaos.split(","))


@between_hosts
def test_pieces_that_are_narrowed_on_their_way_count_once_whoever_dies(run) -> None:
    """What a format has taken from a sum that was given up is not added twice."""
    args = ["--pieces", "--late", "--strategy", "narrowly"]
    job = run(5, chaos="1:Proceed:5,3:Rebuild:1", script_args=args)
    job.check("narrowly")
    assert job.survivors == {0, 2, 4}


def test_gradients_in_place_may_come_in_pieces(run) -> None:
    """And all of it in steps that others begin by what is whole."""
    args = ["--pieces", "--in-place", "--late"]
    job = run(4, "--revoke", "0@6", chaos="2:Proceed:9", script_args=args)
    job.check()
    assert job.survivors == {1, 3}


def test_strategies_that_need_the_whole_gradient_only_collect_its_pieces(run) -> None:
    job = run(3, "--revoke", "1@9", script_args=["--pieces", "--strategy", "accumulating"])
    job.check("accumulating")
    assert job.survivors == {0, 2}


def test_sixteen_workers_lose_three_at_once(run) -> None:
    """The size of the paper's figure."""
    job = run(16, "--revoke", "0,7,8@3", passes=4)
    job.check()
    assert len(job.survivors) == 13


@by_mpi_first
@pytest.mark.promise("a death in the first and the last step")
def test_a_worker_dies_in_the_first_step_and_one_in_the_last(run) -> None:
    """Neither end of the training is special."""
    last = len(run(3).of("step")) - 1
    job = run(3, "--revoke", "0@0", "--revoke", f"2@{last}")
    job.check()


@pytest.mark.parametrize(
    "chaos",
    [
        "2:Send:1",
        "2:Poll:1",
        "2:Poll:2",
        "2:Rebuild:1",
        "3:Rebuild:1,2:Rebuild:1",
        "0:Send:1",
        "0:Send:2",
        "0:Send:3",
        "0:Rebuild:1,2:Send:2,3:Poll:3",
        "3:Share:1",
        "0:Share:1",
    ],
)
@pytest.mark.promise("a death in a recovery")
@pytest.mark.first("Node-0:Rebuild:1,2:Send:2,3:Poll:3")
def test_workers_die_at_any_point_of_a_recovery(run, chaos) -> None:
    """The first death is in the all-reduce; the others follow inside the recovery from it."""
    job = run(5, "--revoke", "1@9", chaos=chaos, script_args=["--late"])
    job.check()
    assert 1 not in job.survivors


@pytest.mark.parametrize("chaos", ["", "0:Send:2", "2:Poll:2", "2:Rebuild:1", "3:Share:1"])
def test_a_loss_that_mpi_does_not_call_one_is_a_loss(run, chaos) -> None:
    """Open MPI 5.0.11 now and then tells MPI_ERR_OTHER; what it knows of losses decides.

    In all that a recovery calls, too.
    """
    job = run(
        6, "--revoke", "1@9", "--revoke", "5@20", chaos=chaos, script_args=["--vague", "--late"]
    )
    job.check()
    assert not {1, 5} & job.survivors


@in_shared_memory
@pytest.mark.promise("a death in a round of another kind")
@pytest.mark.parametrize(
    ("asked", "chaos"),
    [
        ("--means", "2:Wait:12"),
        *(("--gathers", f"2:Wait:{count}") for count in range(12, 20)),
        ("--gathers", "0:Wait:17,3:Send:1"),
    ],
)
@pytest.mark.first("--gathers-0:Wait:17,3:Send:1-Node")
def test_a_worker_dies_while_others_ask_for_something(run, asked, chaos) -> None:
    """Rounds of another kind are recovered alike: all of a mean's, and all of a gather's."""
    job = run(4, chaos=chaos, script_args=[asked])
    job.check()
    assert job.survivors == {0, 1, 2, 3} - {int(one.split(":")[0]) for one in chaos.split(",")}


@in_shared_memory
@pytest.mark.parametrize(
    ("lost", "chaos"),
    [({1}, "1:Wait:14"), ({0}, "0:evaluate:1"), ({0, 2}, "0:evaluate:1,2:Send:1")],
)
def test_workers_die_while_one_evaluates_that_the_others_wait_for(run, lost, chaos) -> None:
    """One that waits, the one that is busy, and one more in the recovery from that."""
    args = ["--evaluate", "0@12"]
    job = run(4, "--stall-timeout", "1", chaos=chaos, script_args=args)
    job.check()
    assert job.survivors == {0, 1, 2, 3} - lost
    assert "did nothing" not in job.err


def test_a_worker_that_is_dealt_nothing_calls_what_the_others_call(run) -> None:
    """Three samples are left for the four workers at the end of each pass."""
    assert 0 < model.SAMPLES % (4 * 41) < 4
    job = run(4, "--revoke", "1@7", script_args=["--means", "--batch-size", "41"], passes=4)
    job.check()
    assert any(c["weight"] == 0 for step in job.of("step") for c in step["contributions"])


@by_mpi_first
@pytest.mark.promise("a death while training ends")
@pytest.mark.first("2-Plain")
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_worker_dies_while_training_ends(run, count) -> None:
    """In the door that all leave through."""
    job = run(4, chaos=f"1:Poll:{count}")
    job.check()
    assert job.survivors >= {0, 2, 3}


@pytest.mark.parametrize("worker", [0, 2])
def test_a_death_in_the_last_build_harms_nobody(run, worker) -> None:
    """The seal decides for all alike whether training is over."""
    job = run(4, chaos=f"{worker}:Rebuild:1")
    job.check()
    assert len(job.survivors) == 3


@in_shared_memory
def test_a_checkpoint_is_written_by_the_next_leader_if_the_first_dies_writing_it(
    run, tmp_path
) -> None:
    """No fixed master: whoever leads writes."""
    folder = tmp_path / "checkpoints"
    job = run(4, "--checkpoint", folder, "--checkpoint-every", "10", chaos="0:save:2,1:save:1")
    job.check()
    written = job.of("checkpoint")
    assert {0, 2} <= {record["worker"] for record in written}
    assert job.survivors == {2, 3}


@by_mpi_first
@pytest.mark.promise("a checkpoint and a resume")
def test_below_min_workers_it_stops_with_a_checkpoint_and_resumes_on_another_number(
    run, tmp_path
) -> None:
    """Code 75, and then every sample of the passes is still used exactly once."""
    folder = tmp_path / "checkpoints"
    first = run(4, "--min-workers", "3", "--checkpoint", folder, "--revoke", "0,2@12")
    assert first.code == 75, first.out + first.err
    assert first.of("end")[0]["outcome"] == "stopped"
    stopped = first.of("end")[0]["step"]
    assert first.of("checkpoint")[-1]["step"] == stopped
    assert stopped == 13
    second = run(3, "--checkpoint", folder, "--resume")
    second.check()
    assert second.of("resume")[0]["step"] == stopped


def test_a_rehearsed_death_comes_at_varying_moments_of_the_all_reduce(run) -> None:
    """Both verdicts are ordinary; the trace tells them apart."""
    late = ["--late"]
    job = run(
        6, *[p for s in range(2, 7) for p in ("--revoke", f"{s - 2}@{s * 3}")], script_args=late
    )
    job.check()
    assert len(job.of("recovery")) == 5


@in_shared_memory
@pytest.mark.parametrize("strategy", ["accumulating", "coarsely", "clipping", "summing"])
def test_strategies_of_other_kinds_survive_and_resume(run, tmp_path, strategy) -> None:
    """One with a round every third step, one that remembers what is each worker's own, and one that
    looks at the gradient where others read it."""
    folder = tmp_path / "checkpoints"
    args = ["--strategy", strategy, *(["--in-place"] if strategy == "clipping" else [])]
    kept = ["--min-workers", "2", "--checkpoint", folder, "--revoke", "1@8", "--revoke", "0,2@17"]
    first = run(4, *kept, script_args=args)
    assert first.code == 75, first.out + first.err
    second = run(3, "--checkpoint", folder, "--resume", "--revoke", "2@30", script_args=args)
    second.check(strategy)
    assert second.survivors == {0, 1}


AVERAGING = [
    "lookahead:every=4,mix=0.5",
    "localsgd:h=4",
    "sma:pull=0.5,momentum=0.5",
    "easgd:every=3,pull=0.75",
    "diloco:h=5,outer=0.5,momentum=0.5,narrow=int8",
    "diloco:h=8,outer=0.5,momentum=0.5,fragments=2,delay=2,mix=0.5",
]


def with_deaths(*names: str) -> list[Any]:
    """These strategies, as promises that they go on whoever dies."""
    return [
        pytest.param(name, marks=pytest.mark.promise(f"{name.partition(':')[0]} with deaths"))
        for name in names
    ]


@by_mpi_first
@pytest.mark.parametrize("strategy", [*with_deaths(*AVERAGING[:4], AVERAGING[5]), AVERAGING[4]])
def test_models_that_are_averaged_survive_and_resume(run, tmp_path, strategy) -> None:
    """In a round, between two, and in a recovery; then with fewer workers from a checkpoint."""
    options, dies = ["--strategy", strategy, "--revoke", "1@9"], "2:Wait:9,3:Poll:4"
    job = run(5, *options, chaos=dies, script_args=["--late"])
    job.check(strategy)
    assert job.survivors == {0, 4}
    assert job.of("start")[0]["strategy_name"] == strategy


@pytest.mark.promise("broadcast with deaths")
@pytest.mark.first("Node-late0")
@pytest.mark.parametrize("late", [[], ["--late"]])
def test_a_model_goes_to_all_from_who_is_the_first_then(run, late) -> None:
    """The first dies in the middle of its round, and so does the next one; then one in between."""
    args = ["--strategy", "broadcast", *late]
    job = run(5, "--revoke", "1@20", chaos="0:Wait:6,3:Rebuild:1", script_args=args)
    job.check("broadcast")
    assert job.survivors == {2, 4}


@between_hosts
@pytest.mark.parametrize("strategy", ["broadcast, narrowed", "clipping and summing narrowly"])
def test_models_and_sums_go_narrowed_between_hosts_whoever_dies(run, strategy) -> None:
    args = ["--strategy", strategy, "--late"]
    job = run(5, "--revoke", "0@9", chaos="3:Rebuild:1", script_args=args)
    job.check(strategy)
    assert job.survivors == {1, 2, 4}


@by_mpi_first
@pytest.mark.promise("a strategy that changes")
def test_workers_change_the_strategy_whoever_dies(run) -> None:
    """In a round after which all change, between two, and in a recovery; whoever leads."""
    options = ["--strategy", AVERAGING[1], "--revoke", "1@9"]
    args = ["--late", "--change", *AVERAGING[2:], "ssgd"]
    job = run(5, *options, chaos="0:Wait:12,3:Poll:4", script_args=args, passes=6)
    job.check(AVERAGING[1], others_too=[named(one) for one in args[2:]])
    assert job.survivors == {2, 4}
    assert {one["strategy_name"] for one in job.of("strategy")} == {*args[2:]}


def test_workers_at_their_own_pace_change_to_steps_together_and_back(run) -> None:
    options = ["--strategy", "ssgd", "--revoke", "0@8"]
    args = ["--change", PAIRS, "ssgd", GOSSIP, "localsgd:h=4"]
    job = run(5, *options, chaos="2:Fetch:9,3:Publish:4", script_args=args, passes=6)
    job.check_promises()
    assert job.survivors == {1, 4}
    assert {one["strategy_name"] for one in job.of("strategy")} == {*args[1:]}


def test_a_policy_sees_a_slow_worker_and_whoever_leads_decides(run) -> None:
    """The leader dies before there is much to decide by; the slow one later on."""
    options = ["--policy", f"straggleraware:settle=0.05/{PAIRS}", "--revoke", "0@6"]
    job = run(4, *options, "--revoke", "2@150", script_args=["--slow", "2"], passes=24)
    job.check_promises()
    assert job.survivors == {1, 3}
    there, *_ = job.of("strategy")
    assert (there["before"], there["strategy_name"]) == ("ssgd", PAIRS)
    assert there["figures"]["slowest"] >= 1.5
    assert "the slowest computes" in there["why"]
    assert f"from step {there['step']} on the strategy is {PAIRS}: StragglerAware" in job.err


PAIRS = "adpsgd:control=5"
GOSSIP = "gossip:control=5"


@in_shared_memory
@pytest.mark.parametrize("strategy", [*AVERAGING[1:], PAIRS, GOSSIP])
def test_a_job_of_models_that_are_averaged_stops_between_rounds_and_goes_on(
    run, tmp_path, strategy
) -> None:
    folder = tmp_path / "checkpoints"
    options = ["--strategy", strategy, "--checkpoint", folder]
    first = run(4, *options, "--min-workers", "3", "--revoke", "0,2@12")
    assert first.code == 75, first.out + first.err
    second = run(2, *options, "--resume")
    shown = second.out + second.err
    assert second.code == 0, shown
    check_exactly_once(second.records, model.SAMPLES, second.passes)
    assert len({final[1] for final in second.finals}) == 1, shown


@pytest.mark.parametrize("strategy", with_deaths(PAIRS, GOSSIP))
def test_workers_that_exchange_models_go_on_whoever_dies(run, tmp_path, strategy) -> None:
    """With a model half read, half shown, in a round, and in a recovery."""
    dies = "2:Fetch:9,3:Publish:12,0:Wait:9,4:Poll:4"
    job = run(6, "--strategy", strategy, "--revoke", "1@9", chaos=dies)
    job.check_promises()
    assert job.survivors == {5}
    assert job.of("start")[0]["strategy_name"] == strategy
    job.check_learnt()


def test_a_slow_worker_is_dealt_less_and_a_count_of_steps_ends_the_loop_of_all(run) -> None:
    job = run(4, "--strategy", PAIRS, script_args=["--slow", "1", "--most", "23"], passes=9)
    assert job.code == 0, job.out + job.err
    done = steps(job.records)
    assert len({final[1] for final in job.finals}) == 1, job.out
    assert 23 <= len(done) < 28
    last = [record for record in done if record["step"] >= 10]
    used = dict.fromkeys(range(4), 0)
    for record in last:
        for one in record["contributions"]:
            used[one["worker"]] += one["weight"]
    assert used[1] < 0.8 * min(used[0], used[2], used[3])


def test_what_all_must_ask_for_together_is_refused_in_the_loop(run) -> None:
    job = run(2, "--strategy", PAIRS, script_args=["--means"])
    assert job.code == 1, job.out + job.err
    assert "workers take different numbers of steps on the way to a round" in job.err + job.out


@pytest.mark.promise("groups with deaths")
@pytest.mark.first("revocations0")
@pytest.mark.parametrize("revocations", [["1@10", "0,3@20"], ["0,1,2@7"]])
def test_a_group_averages_on_whoever_dies(run_spotmpi, tmp_path, revocations) -> None:
    """The script applies what it gets; no optimizer of ours is in it."""
    path = tmp_path / "trace.jsonl"
    options = [part for r in revocations for part in ("--revoke", r)]
    done = run_spotmpi(
        ["run", "-n", "4", *options, "--trace", path, HERE / "averaging.py"], timeout=TIMEOUT
    )
    job = Job(done, path, 3)
    dead = {int(w) for r in revocations for w in r.split("@")[0].split(",")}
    assert job.survivors == set(range(4)) - dead, job.out + job.err
    by_hand = SGD(lr=0.02)  # of a rate that does not follow the number of workers
    for record in job.of("step"):
        assert record["rate"] == 1.0
        record["rate"] = 0.02
    job.check(optimizer=by_hand)


@pytest.mark.promise("plain mpirun")
def test_without_a_launcher_plain_mpirun_does_the_same(tmp_path) -> None:
    """An HPC user's habit: the same script, the same variables, no `spotmpi run`."""
    found = installation.search(os.environ).found
    assert found is not None
    path = tmp_path / "trace.jsonl"
    done = subprocess.run(
        [
            found.mpirun,
            *("--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm"),
            *("--mca", "coll", "^han,cuda", "--bind-to", "none", "-n", "4"),
            sys.executable,
            HERE / "script.py",
        ],
        env={
            **os.environ,
            "OPAL_PREFIX": str(found.prefix),
            "SPOTMPI_REVOKE": "1,2@10;0@20",
            "SPOTMPI_TRACE": str(path),
        },
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    job = Job(done, path, 3)
    job.check()
    assert job.survivors == {3}
    assert all(r["total_ms"] is None for r in job.of("recovery"))
