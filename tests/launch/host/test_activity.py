"""Who computes, reads or writes is told from who waits, for worker and children alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spotmpi.launch.host.activity import Activities, Process, Quiet, Use
from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT, Busy, Progress
from tests.running import LIMIT

ONE, OTHER, YOUNGER = Process(100, 7), Process(101, 8), Process(100, 9)


def after(*looks: dict[Process, Use], start: Quiet | None = None) -> float:
    """For how long a worker was quiet, with a second before each look."""
    quiet = start or Quiet()
    for used in looks:
        quiet.go_by(1.0)
        quiet.see(used)
    return quiet.seconds


def idle(seconds: int) -> list[dict[Process, Use]]:
    return [{ONE: Use(5.0, 1000)}] * seconds


def test_who_does_nothing_is_quiet_for_as_long_as_that_takes() -> None:
    assert after(*idle(1)) == 0.0  # what it has done until then is not known
    assert after(*idle(31)) == 30.0


@pytest.mark.parametrize(
    ("used", "quiet"),
    [
        ({ONE: Use(5.06, 1000)}, 19.0),  # it has computed for 60 ms
        ({ONE: Use(6.0, 1000)}, 0.0),
        ({ONE: Use(5.0, 1000 + (10 << 16))}, 21.0),
        ({ONE: Use(5.0, 1 << 30)}, 0.0),
        ({ONE: Use(5.0, 1000), OTHER: Use(0.04, 0)}, 23.0),  # a child of its has
        ({OTHER: Use(0.0, 0)}, 31.0),
        ({YOUNGER: Use(0.02, 0)}, 27.0),  # another process that was given the same id
        ({}, 31.0),
    ],
)
def test_work_undoes_two_hundred_times_as_much_quiet(
    used: dict[Process, Use], quiet: float
) -> None:
    assert after(*idle(31), used) == pytest.approx(quiet)


def test_who_works_a_two_hundredth_of_the_time_is_never_quiet_and_who_does_less_is_later() -> None:
    def rarely(every: int) -> list[dict[Process, Use]]:
        return [{ONE: Use(5.0 + 0.01 * (second // every), 0)} for second in range(1200)]

    assert after(*rarely(2)) < 3.0
    assert 550.0 < after(*rarely(4)) < 650.0


def test_a_script_vouches_for_itself_and_from_its_first_beat_on_only_by_beats() -> None:
    quiet = Quiet()
    after(*idle(31), start=quiet)
    quiet.hear(Busy(True))
    assert quiet.seconds == 0.0
    after(*idle(9), start=quiet)
    quiet.hear(Busy())
    assert quiet.seconds == 9.0
    quiet.hear(Busy(True, 1))
    assert quiet.seconds == 0.0
    after(*idle(9), start=quiet)
    quiet.hear(Busy(True, 1))
    assert quiet.seconds == 9.0
    quiet.hear(Busy(True, 2))
    assert quiet.seconds == 0.0


COMPUTES = "while True: pass"
CHILD_COMPUTES = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {COMPUTES!r}])"
THREAD_COMPUTES = (
    "import threading\ndef compute():\n  while True: pass\n"
    "threading.Thread(target=compute).start(); threading.Event().wait()"
)
WRITES = (
    "import os\nwriting = os.open(os.devnull, os.O_WRONLY)\n"
    "while True: os.write(writing, bytes(1 << 20))"
)
LOCKED = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
LOOKS_AGAIN = "import threading\nwhile not threading.Event().wait(0.1): pass"
READS = "import os; reading, writing = os.pipe(); os.read(reading, 1)"
CHILD_STOPPED = (
    "import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nos.wait()"
)


@contextmanager
def wrapped(program: str) -> Iterator[int]:
    """A process that has started another one, which runs this; the first one's id."""
    inner = f"import subprocess, sys; subprocess.call([sys.executable, '-c', {program!r}])"
    with subprocess.Popen([sys.executable, "-c", inner], start_new_session=True) as outer:
        try:
            yield outer.pid
        finally:
            os.killpg(outer.pid, signal.SIGKILL)


class Looks:
    """Looks at one worker, which is at its script; a second of its agent's goes by for each."""

    def __init__(self, wrapper: int) -> None:
        self._wrapper = wrapper
        self._activities = Activities()
        self._now = 0.0

    def look(
        self,
        doing: int = IN_SCRIPT,
        since: float = 0.0,
        busy: Busy | None = None,
        now: float | None = None,
    ) -> float:
        self._now = self._now + 1.0 if now is None else now
        workers = {3: Progress(1, 1, doing, since), 4: Progress(1, 1, IN_SCRIPT, 0.0)}
        said = {} if busy is None else {3: busy}
        found = self._activities.look(self._now, workers, said, {3: self._wrapper})
        assert found.keys() == {3, 4}
        assert found[4] == 0.0  # its wrapper is not there yet
        return found[3]

    def again(self) -> float:
        """The same, and no time has gone by."""
        return self.look(now=self._now)

    def until(self, seconds: float) -> None:
        """Look on until it was quiet for so long."""
        deadline = time.monotonic() + LIMIT
        while self.look() < seconds:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "program",
    [COMPUTES, CHILD_COMPUTES, THREAD_COMPUTES, WRITES],
    ids=["computes", "child", "thread", "writes"],
)
@pytest.mark.first("child", "writes")
def test_processes_that_work_are_told_from_the_idle(program: str) -> None:
    with wrapped(program) as wrapper:
        looks, deadline = Looks(wrapper), time.monotonic() + LIMIT
        for _ in range(100):  # more than a start of Python does
            looks.look()
            while looks.again() > 0.0:
                assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "program",
    [LOCKED, LOOKS_AGAIN, READS, CHILD_STOPPED],
    ids=["locked", "looks again", "reads", "child stopped"],
)
@pytest.mark.first("looks again", "child stopped")
def test_processes_that_wait_are_quiet(program: str) -> None:
    with wrapped(program) as wrapper:
        Looks(wrapper).until(600.0)


def test_a_new_stay_in_the_script_begins_anew() -> None:
    with wrapped(READS) as wrapper:
        looks = Looks(wrapper)
        looks.until(60.0)
        assert looks.look(IN_ROUND) == 0.0
        assert looks.look(since=1.0) == 0.0
        looks.until(60.0)
        assert looks.look(busy=Busy(True)) == 0.0
