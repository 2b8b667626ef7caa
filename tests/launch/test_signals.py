"""Signals in an event loop."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Iterator

import pytest

from spotmpi.launch.signals import as_events


@pytest.fixture
def select() -> Iterator[selectors.BaseSelector]:
    with selectors.PollSelector() as made:
        yield made


def turn(select: selectors.BaseSelector) -> None:
    ready = select.select(30)
    assert ready, "nothing woke the loop up"
    for key, _ in ready:
        key.data()


def test_a_signal_wakes_the_loop_and_is_an_event_once(select: selectors.BaseSelector) -> None:
    taken: list[int] = []
    with as_events(select, [signal.SIGUSR1, signal.SIGUSR2], taken.append):
        os.kill(os.getpid(), signal.SIGUSR1)
        turn(select)
        os.kill(os.getpid(), signal.SIGUSR2)
        turn(select)
        assert select.select(0) == []
    assert taken == [signal.SIGUSR1, signal.SIGUSR2]


def test_afterwards_all_is_as_before(select: selectors.BaseSelector) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    descriptors = len(os.listdir("/proc/self/fd"))
    with as_events(select, [signal.SIGUSR1], print):
        assert signal.getsignal(signal.SIGUSR1) is not before
    assert signal.getsignal(signal.SIGUSR1) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert select.get_map() == {}


def test_a_signal_that_is_ignored_stays_so(select: selectors.BaseSelector) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with as_events(select, [signal.SIGUSR1], pytest.fail):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert select.select(0) == []
    finally:
        signal.signal(signal.SIGUSR1, before)
