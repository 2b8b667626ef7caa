"""One job from its start to its end: the event loop is real, and so is "mpirun"; the workers are
whatever the test has them say."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotmpi import job_folder
from spotmpi.exit_codes import EXIT_BUG, EXIT_NOT_STARTED
from spotmpi.launch import control_messages, messages, processes
from spotmpi.launch.decoding import Message
from spotmpi.launch.head import job as job_module
from spotmpi.launch.head import revoking, stalls
from spotmpi.launch.head.job import Job, JobOptions, MpirunStart
from spotmpi.launch.head.job_home import JobHome
from spotmpi.launch.head.membership_changes import MembershipChanges
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.host.wrappers import WorkerEvent
from spotmpi.launch.limits import Limits
from spotmpi.launch.liveness import Silences
from spotmpi.launch.start import private_network
from spotmpi.launcher_channel import AT_MESSAGES, IN_ROUND, IN_SCRIPT, Cause, Order
from spotmpi.settings import Settings
from tests.running import LIMIT
from tests.saying import said

KILLED = said("ended", status=9)
FINISHED = said("ended", status=0)
SLEEPS = [sys.executable, "-c", "import signal; signal.pause()"]
TRAIN = "spotmpi: job spotmpi-of-test-job: 3 workers on 2 hosts train\n"
_PR_SET_CHILD_SUBREAPER = 36

Turn = Callable[[], Mapping[int, Message] | None]
"""What happens in one turn of the loop: something is done, and workers say something."""


class Crew:
    """Workers that say, turn by turn, what they are to say; and notes what is asked of them."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.asked: list[tuple[str, Any]] = []
        self.causes: dict[int, Cause] = {}
        self.far: dict[int, Standing] = {}
        self.hosts: dict[str, Silences] = {}
        self.all_met = self.at_rest = self.gone = True
        self.mute = False
        self.until = time.monotonic() + LIMIT

    def hear(self) -> list[WorkerEvent]:
        assert time.monotonic() < self.until, "the job goes on and on"
        told = self.turns.pop(0)() if self.turns else None
        return [WorkerEvent(worker, word) for worker, word in (told or {}).items()]

    def pause(self) -> float:
        return 0.0 if self.turns else 0.02

    def progress(self) -> dict[int, Standing]:
        return self.far

    def silences(self) -> dict[str, Silences]:
        return self.hosts

    def revoke(self, worker: int) -> None:
        self.asked.append(("revoke", worker))

    def kill(self, worker: int) -> None:
        self.asked.append(("kill", worker))

    def order(self, worker: int, order: Order) -> None:
        self.asked.append(("order", (worker, order)))

    def explain(self, worker: int, cause: Cause) -> None:
        self.causes[worker] = cause

    def recruit(self, host: str) -> int | None:
        self.asked.append(("recruit", host))
        return None

    def bring(self, worker: int) -> None:
        self.asked.append(("bring", worker))

    def end(self) -> None:
        self.asked.append(("end", None))

    def dismiss(self, again: bool = False) -> None:
        self.asked.append(("dismiss", None))


class Run:
    """A job of three workers on two hosts."""

    def __init__(
        self, home: JobHome, options: JobOptions, mpirun: list[str], keeps: Path | None = None
    ) -> None:
        self.crew = Crew()
        self.mpirun = mpirun
        self.home = home
        settings = Settings(checkpoint=keeps)
        self.job = Job(["train.py"], settings, options, Limits(), home)
        self.begin: Callable[[], MpirunStart | None] = self.start
        _, self.folder, self.lock = job_folder.create(3)

    def start(self) -> MpirunStart:
        hosts, network = ["h1", "h1", "h2"], private_network.Open("")
        return MpirunStart(self.mpirun, dict(os.environ), hosts, self.folder, network)

    def turn(self, *words: Mapping[int, Message] | Turn) -> Run:
        """What happens next, a turn for each."""
        self.crew.turns += [one if callable(one) else lambda one=one: one for one in words]
        return self

    def trained(self) -> Run:
        """All have begun and are ready."""
        for event in ("begin", "ready"):
            self.turn({worker: said(event) for worker in range(3)})
        return self

    def wait(self, condition: Callable[[], object]) -> Run:
        """Nothing is said until this is so."""

        def again() -> None:
            if not condition():
                self.crew.turns.insert(0, again)

        return self.turn(again)

    def finish(self) -> int:
        """Run it; return its exit code."""
        return self.job.run(self.crew, self.begin).code

    def close(self) -> None:
        job_folder.remove(self.folder)
        os.close(self.lock)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """``run()`` makes a job; its patience is short."""
    for name in ("_FOR_MPIRUN", "_FOR_CLEARING"):
        monkeypatch.setattr(job_module, name, 0.1)
    monkeypatch.setattr(revoking, "_FOR_CLEARING", 0.1)
    monkeypatch.setattr(job_module, "_BEFORE_BURIAL", 0.01)
    made: list[Run] = []
    home = JobHome("of-test-job")
    # Nobody finds it: it has no folder.
    monkeypatch.setattr(home, "serve", lambda answer: setattr(home, "_answer", answer))

    def make(mpirun: list[str] | None = None, keeps: Path | None = None, **options: Any) -> Run:
        made.append(Run(home, JobOptions(**options), mpirun or SLEEPS, keeps))
        return made[-1]

    yield make
    for one in made:
        one.close()
    home.loop.close()
    # A job adopts what its workers leave; this process is to be as it was.
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def test_when_all_have_finished_they_are_let_go_and_mpirun_with_them(run, capfd) -> None:
    before = processes.children(os.getpid())
    job = run().trained().turn({worker: said("done") for worker in range(3)})
    job.turn(dict.fromkeys(range(3), FINISHED))
    assert job.finish() == 0
    assert job.crew.asked == [("dismiss", None)], "nobody is killed"
    assert processes.children(os.getpid()) == before
    assert capfd.readouterr().err == TRAIN


def test_it_says_where_it_goes_on_and_how_it_stands_now_and_then(
    run, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(job_module, "_BETWEEN_LOOKS", 0.001)
    job = run().trained()
    job.job._resumed = 70
    job.crew.far = {w: Standing(75, 75, IN_ROUND, time.monotonic()) for w in range(3)}
    shown = ""

    def said_so() -> bool:
        nonlocal shown
        shown += capfd.readouterr().err
        return "step 75, 3 workers\n" in shown

    job.wait(said_so)
    job.turn({worker: said("done") for worker in range(3)}, dict.fromkeys(range(3), FINISHED))
    assert job.finish() == 0
    assert shown.startswith(f"{TRAIN[:-1]}; resumed from step 70\n")


def test_nothing_is_started_before_all_is_there(run) -> None:
    job = run().trained().turn(dict.fromkeys(range(3), FINISHED))
    asked: list[int | None] = []

    def begin() -> MpirunStart | None:
        status = job.home._answer(control_messages.AskStatus())
        assert isinstance(status, control_messages.Report)
        asked.append(status.step)
        assert status.workers == ()
        return job.start() if len(asked) == 3 else None

    job.begin = begin
    job.crew.turns[:0] = [lambda: None, lambda: None]
    assert job.finish() == 1  # (they ended early: none of them had done its training)
    assert asked == [None] * 3, "though it can be asked how it stands"


def test_it_is_asked_again_what_to_start_though_nothing_happens(run, monkeypatch) -> None:
    job = run()
    monkeypatch.setattr(job.crew, "pause", lambda: None)
    asked = iter(range(4))

    def begin() -> None:
        if next(asked) == 3:
            job.job.too_few("one of two agents is gone")

    job.begin = begin
    job.job.loop.after(LIMIT, "hang", lambda: pytest.fail("it is never asked again"))
    assert job.finish() == 71


def test_with_too_few_hosts_mpirun_is_never_started(run, capfd) -> None:
    job = run(shell("touch started"))

    def begin() -> None:
        job.job.too_few("of 3 workers only 1 can be started")

    job.begin = begin
    assert job.finish() == 71
    assert job.crew.asked == [("end", None), ("dismiss", None)]
    assert capfd.readouterr().err == (
        "spotmpi: of 3 workers only 1 can be started; nothing was started\n"
    )


def test_workers_that_mpirun_does_not_start_in_time_are_given_up(
    run, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(job_module, "_FOR_START", -2.9)
    job = run()
    job.crew.all_met = False
    assert job.finish() == 71
    assert "mpirun did not start all workers in time" in capfd.readouterr().err


def test_an_mpirun_that_ends_by_itself_is_quoted(run, capfd) -> None:
    job = run(shell("echo 'not enough slots'; exit 1")).turn({})
    assert job.finish() == 71
    assert capfd.readouterr().err.splitlines()[:2] == ["spotmpi: mpirun said:", "not enough slots"]


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """What "mpirun" waits at."""
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


def through(gate: Path) -> Turn:
    """A turn in which "mpirun" goes through its gate and ends."""
    before = set(processes.children(os.getpid()))

    def end() -> None:
        (mpirun,) = set(processes.children(os.getpid())) - before
        gate.write_text("go\n")
        while not ended(mpirun):
            pass

    return end


def test_a_killed_mpirun_is_no_bug_of_the_script(run, gate: Path, capfd) -> None:
    job = run(shell(f"read x < {gate}; kill -9 $$")).trained().turn(through(gate))
    assert job.finish() == 69
    assert "mpirun was killed (SIGKILL), and no worker can go on without it" in (
        capfd.readouterr().err
    )


def test_what_ended_mpirun_counts_and_not_that_it_ended(run, gate: Path, capfd) -> None:
    """Its last words come with its end, on another connection."""
    job = run(shell(f"read x < {gate}")).trained()
    job.turn(through(gate), {1: said("left", code=3)})
    assert job.finish() == 1
    assert "worker 1 on h1 ended with code 3; the job was ended" in capfd.readouterr().err


def test_a_signal_ends_all_workers_before_anything_is_let_go(run, capfd) -> None:
    job = run().trained()
    job.crew.at_rest = False
    job.turn(lambda: signal.raise_signal(signal.SIGTERM))
    job.wait(lambda: ("end", None) in job.crew.asked)
    job.turn(lambda: setattr(job.crew, "at_rest", True))
    assert job.finish() == 143
    assert job.crew.asked == [("end", None), ("dismiss", None)]
    assert capfd.readouterr().err == (
        f"{TRAIN}spotmpi: SIGTERM: the job was ended, and every worker in it; "
        "nothing of the training is kept: --checkpoint DIR keeps it\n"
    )


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_the_first_signal_asks_for_a_checkpoint_and_the_second_ends_all(
    run, tmp_path: Path, capfd, number: int, name: str
) -> None:
    job = run(keeps=tmp_path).trained()
    job.turn({0: said("checkpoint", step=40, path="kept/40.h5", worker=0)})
    job.turn(lambda: signal.raise_signal(number))
    job.wait(lambda: len(job.crew.asked) == 3)
    job.turn(lambda: signal.raise_signal(number))
    assert job.finish() == 128 + number
    assert job.crew.asked[:3] == [("order", (w, Order(stop=True))) for w in range(3)]
    assert capfd.readouterr().err == (
        f"{TRAIN}spotmpi: checkpoint of step 40 written to kept/40.h5\n"
        f"spotmpi: {name} (once more ends the job at once, without a checkpoint): the workers stop "
        "after this step, with a checkpoint\n"
        f"spotmpi: {name}: the job was ended, and every worker in it; what came after step 40 is "
        "lost: repeat the command with --resume to go on from there\n"
    )


def test_before_the_training_one_signal_is_enough(run, tmp_path: Path, capfd) -> None:
    job = run(keeps=tmp_path).turn(lambda: signal.raise_signal(signal.SIGINT))
    assert job.finish() == 130
    assert capfd.readouterr().err == "spotmpi: Ctrl-C: the job was ended, and every worker in it\n"


def test_a_worker_that_cannot_be_killed_does_not_keep_the_job(run) -> None:
    job = run().trained().turn(lambda: signal.raise_signal(signal.SIGINT))
    job.crew.at_rest = job.crew.gone = False
    assert job.finish() == 130


def test_what_happens_while_all_are_being_killed_is_of_no_interest(run, capfd) -> None:
    job = run().trained().turn({0: said("failed", traceback="ValueError: x")})
    job.turn({1: KILLED, 2: said("left", code=4)}, {0: KILLED, 2: KILLED})
    assert job.finish() == 1
    err = capfd.readouterr().err
    assert "worker 0 on h1:\nValueError: x\n" in err
    assert "revoked" not in err
    assert "code 4" not in err


def test_others_that_do_not_follow_one_that_stopped_are_ended(
    run, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(job_module, "_FOR_STOPPING", 0.2)
    job = run().trained().turn({1: said("ended", status=75 << 8)})
    assert job.finish() == 75
    assert job.crew.asked == [("end", None), ("dismiss", None)]
    assert "a worker stopped with code 75, but others went on" in capfd.readouterr().err


def test_a_launcher_with_other_hosts_is_not_stopped_by_a_key(run, capfd) -> None:
    """They would take it for lost."""
    job = run().trained()
    job.crew.hosts["h2"] = Silences()
    job.turn(lambda: os.kill(os.getpid(), signal.SIGTSTP))
    job.turn({worker: said("done") for worker in range(3)}, dict.fromkeys(range(3), FINISHED))
    assert job.finish() == 0
    assert "Ctrl-Z does not stop this job: without its launcher" in capfd.readouterr().err


def test_whom_another_takes_for_dead_is_killed_and_its_death_is_told_again(run, capfd) -> None:
    job = run().trained().turn({0: said("misses", workers=[2])}, {2: KILLED})
    job.turn({1: said("misses", workers=[2])})
    job.turn({worker: said("done") for worker in (0, 1)}, dict.fromkeys((0, 1), FINISHED))
    assert job.finish() == 0
    assert job.crew.asked == [("revoke", 2), ("revoke", 2), ("dismiss", None)]
    assert "worker 2 on h2 was revoked (worker 0 does not reach it, though the head does)" in (
        capfd.readouterr().err
    )


def test_who_misses_most_of_the_others_goes_itself(run, capfd) -> None:
    job = run().trained().turn({0: said("misses", workers=[1, 2])}, {0: KILLED})
    job.turn({worker: said("done") for worker in (1, 2)}, dict.fromkeys((1, 2), FINISHED))
    assert job.finish() == 0
    assert "worker 0 on h1 was revoked (it does not reach 2 workers, though the head does)" in (
        capfd.readouterr().err
    )


def test_a_worker_that_all_others_wait_for_is_revoked_and_then_given_up(run, capfd) -> None:
    job = run(stall_timeout=0.2).trained()
    now = time.monotonic()
    job.crew.far = {w: Standing(5, 5, IN_ROUND, now) for w in (0, 1)}
    job.crew.far[2] = Standing(4, 4, IN_SCRIPT, now, quiet=1e6)
    job.wait(lambda: ("kill", 2) in job.crew.asked)
    job.turn({2: said("vanished")}, lambda: job.crew.far.clear())
    job.turn({worker: said("done") for worker in (0, 1)}, dict.fromkeys((0, 1), FINISHED))
    assert job.finish() == 0
    assert job.crew.asked[0] == ("revoke", 2)
    assert job.crew.causes[2].kind == "hung"
    assert "worker 2 on h2 was revoked (the others waited 0." in capfd.readouterr().err


def test_a_job_in_which_nobody_can_go_on_ends(run, capfd, monkeypatch) -> None:
    monkeypatch.setattr(stalls, "_UNDER_WAY", 0.0)
    job = run(stall_timeout=0.2).trained()
    now = time.monotonic()
    job.crew.far = {0: Standing(5, 5, IN_ROUND, now)}
    job.crew.far |= {w: Standing(5, 5, AT_MESSAGES, now) for w in (1, 2)}
    assert job.finish() == EXIT_BUG
    assert "workers 1, 2 waited for messages, or in calls of some workers" in capfd.readouterr().err


@pytest.mark.parametrize("astray", [AT_MESSAGES, IN_ROUND])
def test_a_newcomer_that_goes_astray_in_a_group_is_revoked(run, monkeypatch, astray) -> None:
    """It, or those that wait for it, wait for messages."""
    monkeypatch.setattr(stalls, "_UNDER_WAY", 0.0)
    hangs = list[int]()
    monkeypatch.setattr(MembershipChanges, "hangs", lambda _, worker: hangs.append(worker))
    job = run(stall_timeout=0.2).trained()

    def come() -> None:
        worker = job.job.newcomer("h2", 1)
        now = time.monotonic()
        others = IN_ROUND + AT_MESSAGES - astray
        job.crew.far = {w: Standing(5, 5, others, now) for w in range(3)}
        job.crew.far[worker] = Standing(5, 5, astray, now)

    job.turn(come)
    fields: Any = {"generation": 1, "step": 5, "round": 5, "workers": 4, "pause_ms": 1.0}
    job.turn({0: said("change", **fields, left=[], joined=[3])})
    job.wait(lambda: ("revoke", 3) in job.crew.asked)
    job.turn({3: said("vanished")}, lambda: job.crew.far.clear())
    job.turn(dict.fromkeys(range(3), said("done")), dict.fromkeys(range(3), FINISHED))
    assert job.finish() == 0
    assert {*hangs} == {3}
    assert job.crew.asked[0] == ("revoke", 3)


def test_a_worker_that_never_begins_is_revoked_and_the_job_ends(run, capfd) -> None:
    job = run(stall_timeout=0.2).turn({worker: said("begin") for worker in (0, 1)})
    now = time.monotonic()
    job.crew.far = {w: Standing(0, 0, IN_ROUND, now) for w in (0, 1)}
    job.crew.far[2] = Standing(0, 0, IN_SCRIPT, now, quiet=1e6)
    job.wait(lambda: ("revoke", 2) in job.crew.asked).turn({2: KILLED})
    assert job.finish() == EXIT_NOT_STARTED
    assert "nothing in its script) before all workers were ready" in capfd.readouterr().err


def test_a_newcomer_that_does_nothing_is_revoked_before_it_joins(run, capfd) -> None:
    job = run(stall_timeout=0.2).trained()

    def come() -> None:
        worker = job.job.newcomer("h2", 1)
        job.crew.far[worker] = Standing(0, 0, IN_SCRIPT, 0.0, quiet=1e6)

    job.turn(come)
    job.wait(lambda: ("kill", 3) in job.crew.asked)
    job.turn({3: said("vanished")}, lambda: job.crew.far.clear())
    job.turn(dict.fromkeys(range(3), said("done")), dict.fromkeys(range(3), FINISHED))
    assert job.finish() == 0
    assert job.crew.asked[0] == ("revoke", 3)
    shown = capfd.readouterr().err
    assert shown.count("worker 3 has not joined yet, and has done nothing in its script") == 1
    assert "worker 3 on h2 did not join: for 1000000.0 s it did nothing in its script" in shown


def test_what_a_dead_worker_leaves_is_killed_and_what_serves_the_job_is_not(run) -> None:
    """It was adopted; whatever was there before the job outlives it."""
    before = subprocess.Popen(SLEEPS)
    job = run().trained()
    children: dict[str, subprocess.Popen[bytes]] = {}

    def leave() -> Mapping[int, Message]:
        for name in ("orphan", "serves"):
            children[name] = subprocess.Popen(SLEEPS)
        job.job.spare(children["serves"].pid)
        return {1: KILLED}

    lived: list[bool] = []
    job.turn(leave).wait(lambda: not Path(f"/proc/{children['orphan'].pid}").exists())
    job.turn(lambda: lived.append(not ended(children["serves"].pid)))
    job.turn({worker: said("done") for worker in (0, 2)}, dict.fromkeys((0, 2), FINISHED))
    try:
        assert job.finish() == 0
        assert lived == [True]
        assert not ended(before.pid)
        for name in ("orphan", "serves"):
            assert not Path(f"/proc/{children[name].pid}").exists()
            children[name].wait()  # which the job has done
    finally:
        before.kill()
        before.wait()


def test_a_job_that_cannot_be_asked_anything_trains_all_the_same(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd
) -> None:
    job = run().trained()
    monkeypatch.setattr(job.home, "serve", partial(JobHome.serve, job.home))
    job.home._folder = tmp_path / "nowhere"
    job.turn({worker: said("done") for worker in range(3)}, dict.fromkeys(range(3), FINISHED))
    assert job.finish() == 0
    assert "spotmpi status, stop, grow and shrink cannot be used" in capfd.readouterr().err


def test_workers_that_go_are_counted_at_the_end(run, capfd) -> None:
    job = run().trained().turn({1: KILLED}, {2: said("parted")}, {2: FINISHED})
    job.turn({0: said("done")}, {0: FINISHED})
    assert job.finish() == 0
    assert capfd.readouterr().err.splitlines()[-1] == (
        "spotmpi: 1 worker finished, 1 was revoked, 1 left"
    )


def test_a_message_of_a_host_that_is_lost_says_which(run, capfd) -> None:
    job = run().trained().turn({2: messages.HostLost("host h2 was silent for 203 ms")})
    job.turn({worker: said("done") for worker in (0, 1)}, dict.fromkeys((0, 1), FINISHED))
    assert job.finish() == 0
    assert "worker 2 on h2 was revoked (host h2 was silent for 203 ms); 2 of 3" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ([KILLED], Cause("killed", "SIGKILL")),
        ([messages.Vanished()], Cause("killed", "SIGKILL")),
        ([messages.HostLost("host h2 was lost", "reset")], Cause("reset", "host h2 was lost")),
        ([messages.HostLost("host h2 x", "silent")], Cause("silent", "host h2 x")),
        (
            [messages.Stopped(0.2), messages.Vanished()],
            Cause("stopped", "it was stopped for 200 ms"),
        ),
    ],
)
def test_the_others_are_told_why_a_worker_is_gone(run, words, cause) -> None:
    job = run().trained().turn(*({2: word} for word in words))
    job.turn({worker: said("done") for worker in (0, 1)}, dict.fromkeys((0, 1), FINISHED))
    assert job.finish() == 0
    assert job.crew.causes == {2: cause}


def ended(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
