"""Other people's work on the cores, for `alarms`: ``load.py NUMBER`` computes until it is killed.

It spins and pauses by turns, by the clock and not by what it gets done, so that all runs have the
same: short bursts, which the kernel favours when they begin, and long ones, which hold a core.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice

__all__ = ["BURSTS_MS", "NICE", "PAUSE", "turns"]

BURSTS_MS = (20, 100, 500)
"""How long a process spins, one after the other. Process 1 begins with the second, and so on."""

PAUSE = 0.5
"""The length of a pause, as a part of the burst before it."""


NICE = 10
"""By how much every other process is niced: some people's work is, and some is not."""


def turns(number: int) -> Iterator[tuple[float, float]]:
    """Moments, in seconds from the start, until which process ``number`` spins and then pauses."""
    at = 0.0
    for burst in islice(cycle(BURSTS_MS), number % len(BURSTS_MS), None):
        spun = at + burst / 1e3
        at = spun + PAUSE * burst / 1e3
        yield spun, at


def main(number: int) -> None:
    """Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the bench: without a traceback here
    os.nice(NICE * (number % 2))
    begin = time.monotonic()
    for spun, paused in turns(number):
        while time.monotonic() - begin < spun:
            pass
        time.sleep(max(0.0, begin + paused - time.monotonic()))


if __name__ == "__main__":
    main(int(sys.argv[1]))
