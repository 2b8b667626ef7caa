"""Signals in an event loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from spotmpi.launch.event_loop import Loop
from spotmpi.launch.signal_events import as_events


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


def test_afterwards_all_is_as_before(loop: Loop) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    descriptors = len(os.listdir("/proc/self/fd"))
    with as_events(loop, [signal.SIGUSR1], print):
        assert signal.getsignal(signal.SIGUSR1) is not before
    assert signal.getsignal(signal.SIGUSR1) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(loop) == 0


def test_a_signal_that_is_ignored_stays_so(loop: Loop) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with as_events(loop, [signal.SIGUSR1], pytest.fail):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert loop.turn(0) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
