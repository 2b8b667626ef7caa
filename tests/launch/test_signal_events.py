"""Signals in an event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from spotmpi.launch.event_loop import Loop
from spotmpi.launch.signal_events import as_events, held_back


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def turn(loop: Loop) -> None:
    assert loop.turn(30), "nothing woke the loop up"


def test_a_signal_wakes_the_loop_and_is_an_event_once(loop: Loop) -> None:
    taken: list[int] = []
    with as_events(loop, [signal.SIGUSR1, signal.SIGUSR2], taken.append):
        os.kill(os.getpid(), signal.SIGUSR1)
        turn(loop)
        os.kill(os.getpid(), signal.SIGUSR2)
        turn(loop)
        assert loop.turn(0) == 0
    assert taken == [signal.SIGUSR1, signal.SIGUSR2]


def test_afterwards_all_is_as_before(loop: Loop, descriptors: Callable[[], list[str]]) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    opened = len(descriptors())
    with as_events(loop, [signal.SIGUSR1], print):
        assert signal.getsignal(signal.SIGUSR1) is not before
    assert signal.getsignal(signal.SIGUSR1) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(descriptors()) == opened
    assert len(loop) == 0


def test_those_that_are_held_back_are_noted_and_end_nothing() -> None:
    program = (
        "import os, signal\n"
        "from spotmpi.launch.event_loop import Loop\n"
        "from spotmpi.launch.signal_events import as_events, held_back\n"
        "def term(): os.kill(os.getpid(), signal.SIGTERM)\n"
        "with held_back({signal.SIGTERM}) as came:\n"
        "    with as_events(Loop(), {signal.SIGTERM}, print): pass\n"
        "    term()\n"
        "    print(came)\n"
        "term()\n"
        "raise SystemExit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"[15]\n", b"")


def test_one_that_is_ignored_is_not_noted() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with held_back({signal.SIGUSR1}) as came:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert came == []
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_is_ignored_stays_so(loop: Loop) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with as_events(loop, [signal.SIGUSR1], pytest.fail):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert loop.turn(0) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
