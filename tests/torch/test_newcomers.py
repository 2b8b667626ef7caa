"""Newcomers in torch scripts: at the beginning of a pass they get all that the others have."""

from __future__ import annotations

import gc
import json
import os
import random
import select
import signal
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.errors import Left, UsageError  # noqa: E402
from spotmpi.fabric.sim.faults import Arrival, Kill  # noqa: E402
from spotmpi.protocol.plain_values import pack  # noqa: E402
from spotmpi.torch import belongings, collectives, passes  # noqa: E402
from spotmpi.torch.belongings import Belongings  # noqa: E402
from spotmpi.torch.collectives import Collectives  # noqa: E402
from spotmpi.torch.first_answers import FirstAnswers  # noqa: E402
from spotmpi.torch.newcomers import Entrance  # noqa: E402
from spotmpi.torch.objects import CALLS  # noqa: E402
from spotmpi.torch.process_group import WorkerGroup  # noqa: E402
from spotmpi.torch.standing import Standing  # noqa: E402
from spotmpi.torch.torch_rounds import Rounds  # noqa: E402
from tests import simulated  # noqa: E402
from tests.launch.asking import folder_of  # noqa: E402
from tests.launch.conftest import start  # noqa: E402, F401
from tests.running import Running  # noqa: E402
from tests.simulated import Result, Seat  # noqa: E402
from tests.torch.dealt_job import PASSES, SAMPLES, Passes  # noqa: E402
from tests.torch.test_process_group import alone  # noqa: E402, F401

HERE = Path(__file__).parent

# Among workers that die and come at any event.


def agree(result: Result) -> None:
    """All hold the same, and those that were there from the start have used each sample, or know
    how many nobody has used."""
    finals = result.finals
    assert len({final.bits for final in finals.values()}) <= 1
    job = cast(Passes, result.job)
    for worker, final in finals.items():
        passes = range(final.began, PASSES)
        counts = [final.gradients[n, one] for n in passes for one in range(SAMPLES)]
        if final.stopped:
            continue
        if worker < job.workers:
            assert counts.count(0) == final.means[0]
            assert not (final.means[0] and job.elastic)
        elif job.elastic:
            assert 0 not in counts


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 80), marks=pytest.mark.matrix)], ids=str
)
def test_newcomers_hold_the_same_whoever_dies(
    tmp_path: Path, seeds: range, elastic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come where a pass begins, and within one."""
    monkeypatch.setattr(collectives, "_AT_ONCE", 10)  # of the model's 24 bytes
    results = simulated.campaign(
        Passes(tmp_path / "calm", 3, elastic=elastic),
        seeds,
        lambda events, seed: {
            "kills": [Kill(seed % 5, 1 + 71 * seed % events)][: seed % 3],
            "arrivals": [Arrival(3, 30 + 11 * seed), Arrival(4, 30 + 37 * seed % events)],
        },
        agree,
    )
    came = [
        (result.job.seed, worker, final.began, final.means[1])
        for result in results
        for worker, final in result.finals.items()
        if worker >= 3
    ]
    assert len(came) >= len(seeds), came
    within = [there for _, _, _, there in came]
    assert len(seeds) / 3 <= sum(within) <= len(came) - len(seeds) / 12, came


@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 40), marks=pytest.mark.matrix)], ids=str
)
def test_newcomers_of_a_script_that_reads_ahead_come_where_a_pass_begins(
    tmp_path: Path, seeds: range
) -> None:
    """They would have a batch less than the others to the end of the pass."""
    results = simulated.campaign(
        Passes(tmp_path / "calm", 3, elastic=False, reads_ahead=True),
        seeds,
        lambda events, seed: {"arrivals": [Arrival(3, 30 + 71 * seed % events)]},
        agree,
    )
    came = [result.finals[3] for result in results if 3 in result.finals]
    assert len(came) > len(seeds) / 3
    assert not any(final.means[1] for final in came)


@pytest.mark.parametrize(
    ("how", "elastic"),
    [
        ({"accumulate": 3}, True),
        ({"accumulate": 3}, False),
        ({"fresh": 3}, True),
        ({"own_order": True}, False),
    ],
)
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 30), marks=pytest.mark.matrix)], ids=str
)
def test_newcomers_of_all_kinds_of_scripts_come_within_a_pass(
    tmp_path: Path, seeds: range, how: dict[str, Any], elastic: bool
) -> None:
    results = simulated.campaign(
        Passes(tmp_path / "calm", 3, elastic=elastic, many=240, over=2, **how),
        seeds,
        lambda events, seed: {"arrivals": [Arrival(3, 80 + 17 * seed), Arrival(4, 400)]},
        lambda result: None,
    )
    for result in results:
        assert len({final.bits for final in result.finals.values()}) == 1
        assert {final.means[1] for worker, final in result.finals.items() if worker > 2} == {1}
        assert len(result.finals) == 5


@pytest.mark.parametrize(
    "seeds", [range(8), pytest.param(range(8, 60), marks=pytest.mark.matrix)], ids=str
)
def test_a_newcomer_whose_own_count_goes_on_over_passes_ends_no_job(
    tmp_path: Path, seeds: range
) -> None:
    """It goes astray in its first whole pass, if it came within one."""
    results = simulated.campaign(
        Passes(tmp_path / "calm", 3, elastic=False, many=120, over=4, globally=15),
        seeds,
        lambda events, seed: {"arrivals": [Arrival(3, 80 + events * seed // len(seeds) // 2)]},
        lambda result: None,
    )
    assert all({*result.finals} >= {0, 1, 2} for result in results)


def test_newcomers_come_only_within_the_pass_that_was_begun_last() -> None:
    entrance: Any = Entrance.__new__(Entrance)
    known: Any = standing(3, (0, 1, 2))
    known.answers.sums, known.trained[:] = 2, [True, True]
    group = SimpleNamespace(taught=True, strays=0)
    entrance.calls = SimpleNamespace(standing=known, group=group)
    one: Any = SimpleNamespace(may_be_joined=True, late=False, number=1)
    assert entrance._lets_in_within(one)
    one.number = 0  # the last one was within it
    assert not entrance._lets_in_within(one)
    one.number, one.late = 1, True
    assert not entrance._lets_in_within(one)


@pytest.mark.parametrize("every", [27, pytest.param(1, marks=pytest.mark.matrix)])
def test_who_gives_may_die_at_any_event_of_it(
    tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one gives what it has."""
    moments, took = list[int](), list[tuple[int, bool]]()
    real = Rounds.bytes_of_one

    def noted(self: Any, *what: Any) -> Any:
        began, found = Seat.mine().simulation.time.events, real(self, *what)
        if "newcomers" in what[1]:
            moments.extend((began, Seat.mine().simulation.time.events))
            took.append((self.worker, 0 in found[1]))
        return found

    monkeypatch.setattr(collectives, "_AT_ONCE", 5)
    monkeypatch.setattr(Rounds, "bytes_of_one", noted)
    job = Passes(tmp_path, 3, arrivals=[Arrival(3, 200)])
    agree(job.run())
    in_the_middle = 0
    for event in range(min(moments), max(moments), every):
        took.clear()
        result = replace(job, folder=tmp_path / f"{event}", kills=[Kill(0, event)])
        result.folder.mkdir()
        agree(result.run())
        gave = [gave for worker, gave in took if worker == 3]
        assert gave == sorted(gave, reverse=True), "who is lost gives nothing more"
        in_the_middle += 0 < sum(gave) < len(gave)
    assert in_the_middle > 20 / every


# What there is to give.


def things(seed: int, kind: Any = torch.float32) -> list[Any]:
    """A module, its optimizers and what changes their rates, after a few steps."""
    rates = torch.optim.lr_scheduler
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).to(kind)
    first = torch.optim.AdamW(module[0].parameters(), lr=0.1 * seed, amsgrad=True)
    second = torch.optim.SGD(module[1].parameters(), lr=0.2 * seed, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", 2.0**seed)
    those = [
        *(module, first, second, scaler),
        rates.SequentialLR(
            first,
            [rates.ConstantLR(first, 0.5, 2), rates.MultiStepLR(first, [2 + seed, 9])],
            [1 + seed],
        ),
        rates.ReduceLROnPlateau(second, patience=seed),
        rates.LambdaLR(second, lambda step: 0.9**step),
    ]
    for step in range(seed + 1):
        scaler.scale(module(torch.randn(4, 3, dtype=kind)).square().sum()).backward()
        for optimizer in (first, second):
            scaler.step(optimizer)
        scaler.update()
        those[4].step()
        those[5].step(float(step))
    return those


def held(those: list[Any]) -> str:
    """Say all that they hold, to the bit."""
    torch.set_printoptions(precision=20, sci_mode=True)
    try:
        return repr([{**one.state_dict()} for one in those])
    finally:
        torch.set_printoptions(profile="default")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make things, and have only these be what the script trains with."""

    def make(seed: int, **how: Any) -> list[Any]:
        those = things(seed, **how)
        monkeypatch.setattr(belongings, "MADE", [weakref.ref(one) for one in those])
        return those

    return make


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_newcomer_has_all_of_it_to_the_bit(made: Any, kind: Any) -> None:
    old, ours = made(3, kind=kind), Belongings()
    ours.look()
    whole = np.empty_like(ours.numbers)
    for at in range(0, ours.size, 10):
        ours.read(at, whole[at : at + 10])
    assert (whole == ours.numbers).all()
    said = whole.tobytes()
    new = made(1, kind=kind)
    assert held(new) != held(old)
    theirs = Belongings()
    theirs.check(ours.described)
    theirs.take(ours.described, np.frombuffer(said, np.uint8).copy())
    assert held(new) == held(old)
    assert all(param.grad is None for param in new[0].parameters())
    x = torch.randn(4, 3, dtype=kind)
    for those in (old, new):  # and it goes on alike
        for param in those[0].parameters():
            param.grad = None
        those[0](x).square().sum().backward()
        those[1].step()
        those[2].step()
        those[4].step()
    assert held(new) == held(old)


def test_what_does_not_fit_is_refused(made: Any) -> None:
    kept = made(1), Belongings()
    kept[1].look()
    others = made(1)[1:], Belongings()
    belongings.MADE[:1] = []
    with pytest.raises(UsageError, match=r"trains with AdamW, .* with Sequential, AdamW"):
        others[1].check(kept[1].described)
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(2))
    belongings.MADE[:0] = [weakref.ref(other)]
    with pytest.raises(UsageError, match="its Sequential has other parameters or buffers"):
        others[1].check(kept[1].described)


def test_what_a_script_has_left_is_freed_once_a_pass(made: Any) -> None:
    """And whenever a newcomer asks."""
    made(1)[:] = []
    ours = Belongings()

    def leave() -> None:
        module = torch.nn.Linear(1, 1)
        module.itself = [module]  # so that only the collector of garbage can free it
        belongings.MADE.append(weakref.ref(module))

    def seen(when: int | None) -> bool:
        ours.look(when)
        return b"Linear" in ours.described

    gc.disable()
    try:
        leave()
        assert not seen(0)
        left = torch.nn.Linear(1, 1)
        left.itself = [left]
        belongings.MADE.append(weakref.ref(left))
        assert seen(0)
        del left
        assert seen(0)
        assert not seen(1)
        leave()
        assert not seen(1)  # something was made
        leave()
        assert not seen(None)
        leave()
        ours.tidy()
        ours.check(pack([]))
    finally:
        gc.enable()


def test_what_a_script_makes_is_noted(alone: Any) -> None:  # noqa: F811
    before = len(belongings.MADE)
    module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    there = [type(one()).__name__ for one in belongings.MADE[before:] if one() is not None]
    assert there[:2] == ["DistributedDataParallel", "SGD"]


# Its place, and what it is told before.


def standing(size: int, alive: tuple[int, ...], *come: tuple[int, int, int]) -> Standing:
    """Workers of which some are lost, and others have come: worker, rank and share."""
    one = Standing()
    one.begin(size)
    one.alive = alive
    for worker, rank, share in come:
        one.ranks[worker], one.shares[rank] = rank, share
    return one


@pytest.mark.parametrize(
    ("known", "newcomer", "place"),
    [
        (standing(4, (0, 1, 3)), 4, (2, 2)),
        (standing(4, (0, 3)), 4, (1, 1)),
        (standing(4, (0, 3)), 5, (2, 2)),
        (standing(4, (1, 2, 3)), 4, (4, 0)),  # not the first rank: it would save the model
        (standing(4, (1, 2, 3, 4), (4, 4, 0)), 5, (5, 1)),
        (standing(4, (0, 1, 2, 3)), 6, (6, 2)),
        (standing(2, (1, 2), (2, 2, 0)), 3, (3, 1)),
    ],
)
def test_a_newcomer_takes_the_place_of_a_lost_worker(
    known: Standing, newcomer: int, place: tuple[int, int]
) -> None:
    told = Standing()
    told.restore(json.loads(json.dumps(known.snapshot(None))))
    assert told.place_for(newcomer) == place


def test_objects_go_to_and_come_from_a_newcomer_with_a_rank_beyond_the_size() -> None:
    script = SimpleNamespace(found=None, passes=passes.Passes())
    known: Any = {"standing": standing(4, (1, 2, 3, 4), (4, 4, 0)), "script": script, "number": 0}
    known["early"] = None
    calls = Collectives(cast(Any, SimpleNamespace(joins=True, worker=5, **known)), 4)
    assert calls.rank == 5
    group = WorkerGroup(cast(Any, SimpleNamespace(begins_step=False)), calls)
    for rank in (2, 4, 5):
        CALLS["send_object_list"](group, ["x"], rank)
        assert CALLS["recv_object_list"](group, [None], rank) == rank
    with pytest.raises(UsageError, match="there is no rank 6 in the group"):
        CALLS["send_object_list"](group, ["x"], 6)


def test_first_calls_are_answered_as_they_were() -> None:
    answers, told = FirstAnswers(), FirstAnswers()
    for asked, answer in [
        ("all", b"1"),
        ("from 0", bytes(20_000)),
        ("from 0", b"2"),
        ("all", b"3"),
    ]:
        answers.keep(asked, answer)
    answers.sums = 2
    answers.keep("all", b"later")
    told.follow(json.loads(json.dumps(answers.told())))
    assert not told.used_up
    assert told.recall("all") == b"1"
    assert told.recall("from 0") is None  # too large
    assert told.recall("from 0") == b"2"
    assert told.recall("from 1") is None  # the others have asked for something else
    assert told.used_up
    assert told.recall("all") is None


def test_a_script_without_passes_takes_no_newcomers(alone: Any) -> None:  # noqa: F811
    """It would go on for ever. But it may sum gradients before its first pass."""
    calls = alone.collectives
    calls.rehearses, calls.standing.trained[:] = True, [True]
    alone.entrance.sum_up()
    calls.standing.trained.clear()
    with pytest.raises(Left, match="it can only join where a pass"):
        alone.entrance.sum_up()
    calls.rehearses = False


# Real processes.


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("deaths", "sampler"), [("2@1", "torch"), ("0@1", "elastic"), ("2!1,3@3", "elastic")]
)
def test_newcomers_hold_what_all_hold(
    start: Any,  # noqa: F811
    tmp_path: Path,
    deaths: str,
    sampler: str,
) -> None:
    check_newcomers(start, tmp_path, "cpu", deaths, sampler)


@pytest.mark.matrix
def test_calls_of_one_size_go_on_when_the_only_worker_is_joined(start: Any) -> None:  # noqa: F811
    """The same words of one, and of all, while there is but one: as arenas of one name, the job
    hung."""
    installed()
    running = start("run", "-n", 2, "--replace", HERE / "pairs.py")
    assert running.wait() == 0, running.output
    said = [one.split("FINAL ")[1].split() for one in running.output.splitlines() if "FINAL" in one]
    assert ["0", "None", "6"] in said
    assert len(said) == 2


@pytest.mark.matrix
def test_more_workers_come_than_there_were(start: Any, tmp_path: Path) -> None:  # noqa: F811
    installed()
    running = start("run", "-n", 4, "--replace", HERE / "joins.py", "cpu", "", "elastic")
    running.until("train$")
    job = folder_of(running).name
    assert start("grow", "--workers", 2, "--job", job).wait() == 0
    # (One that comes before the first pass is turned away, and another one comes for it.)
    come = {int(one[1]) for one in running.until(r"worker (\d+) .* has joined", times=2)}
    assert check_joined(running, tmp_path, "elastic") == {0, 1, 2, 3, *come}


@pytest.mark.parametrize("sampler", ["torch", "elastic"])
@pytest.mark.first("elastic")
@pytest.mark.promise("a newcomer in a script for DistributedDataParallel, within a pass")
def test_newcomers_join_within_a_pass(
    start: Any,  # noqa: F811
    tmp_path: Path,
    sampler: str,
) -> None:
    installed()
    how = "cpu", "2@0,long", sampler
    running = start("run", "-n", 4, "--replace", HERE / "joins.py", *how)
    wait_for(running, [4])
    assert alike_at_the_end(running, tmp_path) == [0, 1, 2, 3]
    used = [[*map(json.loads, one.read_text().splitlines())] for one in tmp_path.glob("used-*")]
    assert {number for lines in used for number, _ in lines[::2]} == {0}


@pytest.mark.matrix
def test_the_second_newcomer_joins_in_the_rhythm_of_the_script(
    start: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    installed()
    how = "cpu", "2@0,long,rhythm", "elastic"
    running = start("run", "-n", 4, "--replace", HERE / "joins.py", *how)
    for said in (
        "worker 4 .* has joined",
        "worker 4 on .* was revoked .its script asks for .* something else",
        "worker 5 .* has joined",
    ):
        running.until(said)
    assert alike_at_the_end(running, tmp_path) == [0, 1, 2, 3]


def test_a_newcomer_that_makes_another_call_leaves_and_the_others_go_on(
    start: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    installed()
    how = "cpu", "2@1,astray", "elastic"
    running = start("run", "-n", 4, "--replace", HERE / "joins.py", *how)
    wait_for(running, [4])
    running.until("worker 4 on .* was revoked .its script asks for a barrier, .* something else")
    assert alike_at_the_end(running, tmp_path) == [0, 1, 3]


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(12))
def test_workers_die_and_come_at_any_time(start: Any, tmp_path: Path, seed: int) -> None:  # noqa: F811
    """Newcomers die as well. The first worker lives, so that somebody has the model."""
    installed()
    draw = random.Random(seed)
    running = start("run", "-n", 4, "--replace", HERE / "joins.py", "cpu", "", "elastic")
    running.until("train$")
    for _ in range(5):
        select.select([], [], [], draw.uniform(0.2, 4.0))
        those = [one for one in running.wrappers if b"OMPI_COMM_WORLD_RANK=0" not in environ(one)]
        if those:
            os.kill(draw.choice(those), signal.SIGKILL)
    check_joined(running, tmp_path, "elastic")


def check_newcomers(start: Any, folder: Path, device: str, deaths: str, sampler: str) -> None:  # noqa: F811
    """Have workers of a job on this device die, and others come in their place."""
    installed()
    running = start("run", "-n", 4, "--replace", HERE / "joins.py", device, deaths, sampler)
    wait_for(running, range(4, 4 + deaths.count(",") + 1))
    check_joined(running, folder, sampler)


def wait_for(running: Running, newcomers: Iterable[int]) -> None:
    """Wait until all of these train."""
    for said in ("train$", "admitted", *(f"worker {one} .* has joined" for one in newcomers)):
        running.until(said)


def environ(process: int) -> list[bytes]:
    """Return the environment with which a process was started."""
    return Path(f"/proc/{process}/environ").read_bytes().split(b"\0")


def installed() -> None:
    """Skip a test of a script that does not name spotmpi, unless `import torch` finds it."""
    if not metadata.entry_points(group="torch.backends", name="spotmpi"):
        pytest.skip("spotmpi is not installed as it is now: python -m pip install -e .")


def alike_at_the_end(running: Running, folder: Path) -> list[int]:
    """End the job. All must hold the same; return their ranks."""
    (folder / "enough").touch()
    assert running.wait() == 0, running.output
    finals = [
        line.split("FINAL ")[1].split() for line in running.output.splitlines() if "FINAL " in line
    ]
    assert len({said for _, _, said, _ in finals}) == 1, running.output
    return sorted(int(rank) for rank, *_ in finals)


def check_joined(running: Running, folder: Path, sampler: str) -> set[int]:
    """End the job. All must hold the same, and each sample was used in each pass, or is said to be
    lost. Return the ranks that were there at the end."""
    there = alike_at_the_end(running, folder)
    told: dict[int, list[list[Any]]] = {}
    for path in sorted(folder.glob("used-*"), key=lambda one: one.stat().st_ctime_ns):
        rank = int(path.name.split("-")[1])
        told.setdefault(rank, []).append([*map(json.loads, path.read_text().splitlines())])
    sums = max((one[0][1::2] for one in told.values()), key=len)
    used: Counter[tuple[int, int]] = Counter()
    for rank, files in told.items():
        here = [number for number, there in enumerate(sums) if rank in there]
        began = len([number for place, number in enumerate(here) if number == place])
        for number in here:
            # A worker of the start, or one that came later and was there to the end.
            at = number if number < began and rank < 4 else number - len(sums)
            lines = files[0 if at >= 0 else -1][::2]
            epoch, batch = lines[at]
            used.update((epoch, sample) for sample in batch)
    passes = 1 + max(epoch for epoch, _ in used)
    lost = 2048 * passes - len(used)
    if sampler == "elastic":
        assert lost == 0, running.output
    else:
        said = f"spotmpi: {lost} samples of lost workers were used by nobody"
        assert said in running.output
    return {*there}
