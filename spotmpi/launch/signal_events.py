"""Signals as events of an event loop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from spotmpi.launch.event_loop import Loop
from spotmpi.launch.processes import read

__all__ = ["as_events", "held_back"]


@contextmanager
def as_events(
    loop: Loop,
    numbers: Collection[signal.Signals],
    take: Callable[[int], None],
) -> Iterator[None]:
    """Inside, call ``take`` from the event loop for each of these signals. For the main thread."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)

    def woken() -> None:
        for number in read(reading) or b"":
            if number in handled:
                take(number)

    # One that is ignored stays so: `nohup spotmpi run`, or `spotmpi run &` in a shell script.
    handled = {one for one in numbers if signal.getsignal(one) is not signal.SIG_IGN}
    before = {one: signal.signal(one, _noted) for one in handled}
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    loop.watch(reading, woken)
    try:
        yield
    finally:
        loop.leave(reading)
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@contextmanager
def held_back(numbers: Collection[signal.Signals]) -> Iterator[list[int]]:
    """Inside, these signals only come into the list, where `as_events` does not take them; and
    afterwards they do nothing: what is left is the end of this process. For its main thread."""
    came: list[int] = []
    for one in numbers:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, lambda number, _: came.append(number))
    yield came
    for one in numbers:
        signal.signal(one, signal.SIG_IGN)


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor carries the signal into the event loop."""
