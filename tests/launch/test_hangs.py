"""A worker that hangs is revoked; one that works is not, however long the others wait for it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from spotmpi.exit_codes import EXIT_ALL_REVOKED, EXIT_ENDED, EXIT_NOT_STARTED
from spotmpi.launch.control_messages import Report
from tests import running as running_jobs
from tests.launch.asking import below, folder_of, states, step, until, worker_of, wrapper_of

TRAINER = Path(__file__).parent / "scripts" / "trainer.py"

AT_ONCE = ("--stall-timeout", 1)


def waited(status: Report, worker: int, seconds: float) -> bool:
    """Whether the others have waited so long for a worker that is where it was."""
    return (status.workers[worker].awaited_seconds or 0.0) > seconds


@pytest.mark.parametrize(
    "ways",
    [("lock",), pytest.param(("hang", "lock", "read", "poll"), marks=pytest.mark.matrix)],
    ids="-".join,
)
def test_workers_that_never_come_back_are_revoked(start, ways: tuple[str, ...]) -> None:
    """They wait for a signal, a lock, what nobody writes, and what never happens."""
    workers = 1 + len(ways)
    stuck = [f"{way}:{worker}@30" for worker, way in enumerate(ways, 1)]
    running = start("run", "-n", workers, *AT_ONCE, TRAINER, 4000, *stuck)
    assert running.wait() == 0, running.output
    for worker in range(1, workers):
        assert re.search(
            rf"worker {worker} on \S+ was revoked \(the others waited \d+\.\d s for it, and for "
            r"\d+\.\d s it did nothing in its script\); \d of \d workers? remains?",
            running.output,
        )
        warned = f"s for worker {worker}, which has done nothing in its script"
        assert running.output.count(warned) == 1
    assert "worker 0 took 4000 steps with 1" in running.output


@pytest.mark.matrix
@pytest.mark.parametrize("where", ["before", "reading"])
def test_a_worker_that_never_begins_ends_the_job(start, where: str) -> None:
    running = start("run", "-n", 2, *AT_ONCE, TRAINER, 10, f"lock:1@{where}")
    assert running.wait() == EXIT_NOT_STARTED, running.output
    assert re.search(
        r"worker 1 on \S+ was lost \(the others waited \d+\.\d s for it, and for \d+\.\d s it did "
        r"nothing in its script\) before all workers were ready",
        running.output,
    )


@pytest.mark.matrix
@pytest.mark.parametrize(
    "where",
    ["before", "0"],
    ids=["in its beginning", "in its rehearsal"],
)
def test_a_newcomer_that_hangs_is_given_up_and_another_one_comes(start, where: str) -> None:
    """Nobody waits for it, but it has the place of one that could train."""
    running = start("run", "-n", 2, "--replace", *AT_ONCE, TRAINER, "say:all@20", f"lock:2@{where}")
    running.until("worker 1 at step 20")
    os.kill(worker_of(running, 1), signal.SIGKILL)
    running.until(r"worker 2 has not joined yet, and has done nothing in its script for \d\.\d s")
    running.until(r"worker 2 on \S+ did not join: for \d+\.\d s it did nothing in its script")
    running.until(r"worker 3 on \S+ has joined")
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


@pytest.mark.matrix
def test_a_leader_that_hangs_with_the_last_checkpoint_is_revoked_and_the_next_one_keeps_it(
    start, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    deeds = [40, "lock:0@keeping", "compute:1@keeping"]
    running = start("run", "-n", 3, "--checkpoint", kept, *AT_ONCE, TRAINER, *deeds)
    running.until(r"worker 0 on \S+ was revoked \(the others waited")
    # What is written for longer than that is not taken for a hang.
    running.until("the others have waited .* for worker 1, which is at work in its script")
    os.kill(worker_of(running, 1), signal.SIGUSR1)
    assert running.wait() == 0, running.output
    assert [one.name for one in kept.glob("checkpoint-*")] == ["checkpoint-000000000040.h5"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round may take a minute, whatever --stall-timeout says."""
    monkeypatch.setattr(running_jobs, "LIMIT", 150.0)


@pytest.mark.matrix
def test_a_round_that_does_not_end_ends_the_job(start, patient: None) -> None:
    running = start("run", "-n", 3, "--no-replace", *AT_ONCE, TRAINER, 4000, "wedge:1@30")
    assert running.wait() == EXIT_ALL_REVOKED, running.output
    assert "for 60 s (--stall-timeout) all workers waited in one round" in running.output
    assert "start it again, with --resume if it has a checkpoint" in running.output
    assert "has done nothing in its script" not in running.output


@pytest.mark.matrix
def test_a_job_that_is_kept_alive_begins_again_after_a_round_that_does_not_end(
    start, patient: None, tmp_path: Path
) -> None:
    kept = ("--checkpoint", tmp_path / "kept", "--checkpoint-every", 10, "--keep-alive")
    running = start("run", "-n", 2, *kept, *AT_ONCE, TRAINER, 40, "wedge:1@36")
    running.until("starting again, from its newest checkpoint")
    running.until("2 workers on 1 host train; resumed from step 30")
    assert "all workers waited in one round" in running.output
    for _ in range(2):
        os.kill(running.pid, signal.SIGINT)
    assert running.wait() == EXIT_ENDED


@pytest.mark.matrix
def test_the_last_newcomer_is_revoked_when_a_round_does_not_end(start, patient: None) -> None:
    deeds = ["say:1@20", "wedge:2@3"]
    running = start("run", "-n", 2, "--replace", *AT_ONCE, TRAINER, *deeds)
    running.until("worker 1 at step 20")
    os.kill(worker_of(running, 1), signal.SIGKILL)
    running.until(
        r"worker 2 on \S+ was revoked \(it came last, and all waited in a round that did not end\)"
    )
    running.until(r"worker 3 on \S+ has joined")
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == EXIT_ENDED


@pytest.mark.matrix
def test_a_worker_of_another_host_that_never_comes_back_is_revoked(start, hosts: Path) -> None:
    running = start("run", "--hosts", hosts, "--no-replace", *AT_ONCE, TRAINER, 4000, "lock:1@30")
    assert running.wait() == 0, running.output
    assert re.search(r"worker 1 on \S+ was revoked \(the others waited", running.output)
    assert "worker 0 took 4000 steps with 1" in running.output


@pytest.mark.matrix
def test_a_worker_that_hangs_when_another_is_to_leave_is_revoked(start) -> None:
    """The others are on their way through the door then, and in no round."""
    deeds = ["say:1@20", "rest:1@30", "hang:2@31"]
    running = start("run", "-n", 3, *AT_ONCE, TRAINER, 4000, *deeds)
    running.until("worker 1 at step 20")
    folder = folder_of(running)
    until(folder, lambda status: waited(status, 1, 0.1))
    worker = worker_of(running, 1)
    assert start("shrink", "--worker", 1, "--job", folder.name).wait() == 0
    os.kill(worker, signal.SIGUSR1)
    assert running.wait() == 0, running.output
    assert re.search(r"worker 2 on \S+ was revoked \(the others waited", running.output)
    assert re.search(r"worker 1 on \S+ left before step \d+", running.output)


@pytest.mark.matrix
def test_workers_that_work_are_waited_for(start) -> None:
    """One computes, a child of another does, and one says that it is busy."""
    work = ["compute:1@30", "child:2@30", "busy:3@30"]
    running = start("run", "-n", 4, *AT_ONCE, TRAINER, 60, "say:1@20", *work)
    running.until("worker 1 at step 20")
    folder = folder_of(running)
    seen = until(folder, lambda status: all(waited(status, worker, 5.0) for worker in (1, 2, 3)))
    assert states(seen) == ["training"] * 4
    assert [one.busy for one in seen.workers] == [None, None, None, "evaluating"]
    for worker in (1, 2, 3):
        os.kill(worker_of(running, worker), signal.SIGUSR1)
    assert running.wait() == 0, running.output
    assert "was revoked" not in running.output
    for worker, said in enumerate(["is at work in its script"] * 2 + ["is busy: evaluating"], 1):
        awaited = rf"the others have waited \d+\.\d s for worker {worker}, which {said}"
        assert re.search(awaited, running.output)
    assert "worker 1 took 60 steps with 4" in running.output


@pytest.mark.matrix
def test_workers_die_while_the_others_wait_for_one_that_works(start) -> None:
    """One of those that wait, and then the one that they wait for."""
    running = start("run", "-n", 4, *AT_ONCE, TRAINER, "say:all@20", "compute:1@30")
    running.until("worker 1 at step 20")
    folder = folder_of(running)
    seen = until(folder, lambda status: waited(status, 1, 3.0))
    for victim, living in ((2, "3 of 4 workers remain"), (1, "2 of 4 workers remain")):
        os.kill(worker_of(running, victim), signal.SIGKILL)
        running.until(rf"worker {victim} on \S+ was revoked \(SIGKILL\); {living}")
        if victim == 2:
            again = (seen.workers[1].awaited_seconds or 0.0) + 3.0
            seen = until(folder, lambda status: waited(status, 1, again))  # noqa: B023
            assert states(seen) == ["training", "training", "revoked", "training"]
    until(folder, step(60))
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130
    assert running.output.count("was revoked") == 2


@pytest.mark.matrix
def test_nobody_is_revoked_while_all_are_busy(start) -> None:
    running = start("run", "-n", 2, *AT_ONCE, TRAINER, "say:0@20", "hang:all@30")
    running.until("worker 0 at step 20")
    folder = folder_of(running)
    seen = until(folder, lambda now: all((w.doing_seconds or 0) > 3 for w in now.workers))
    assert states(seen) == ["training"] * 2
    assert "revoked" not in running.output
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 130


@pytest.mark.parametrize("where", ["here", "behind an agent"])
@pytest.mark.matrix
def test_a_worker_whose_wrapper_hangs_as_well_is_given_up(
    start, ended, hosts: Path, where: str
) -> None:
    """As one that is stuck in the kernel, where no signal reaches it."""
    program = (
        "import sys; from spotmpi.cli import main; from spotmpi.launch.head import revoking\n"
        "revoking._FOR_CLEARING = 0.5\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    place = ["-n", 2] if where == "here" else ["--hosts", hosts, "--no-replace"]
    deeds = ["say:1@29", "rest:0@30", "hang:1@30"]
    running = start("run", *place, *AT_ONCE, TRAINER, 40, *deeds, command=["-c", program])
    running.until("worker 1 at step 29")
    everything = below(running)
    os.kill(wrapper_of(running, 1), signal.SIGSTOP)
    # Nobody has waited until now.
    os.kill(worker_of(running, 0), signal.SIGUSR1)
    assert running.wait() == 0, running.output
    assert all(ended(pid) for pid in everything)
    assert re.search(r"worker 1 on \S+ was revoked \(the others waited", running.output)
