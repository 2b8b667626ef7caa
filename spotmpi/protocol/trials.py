"""Which of several ways is the fastest: all are tried in some first rounds, one is chosen. Pure.

All members try the same way in the same round, and choose by everybody's times: so all choose the
same. In a round those who come early wait for whoever is last, so what a round took is what it took
on the host that waited the shortest; and on a host, its slowest worker counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

__all__ = ["Choice", "Trial"]


class Choice(NamedTuple):
    """What came of a trial."""

    size: int
    """Bytes of the array."""
    seconds: dict[str, float]
    """What each way took: the median of its rounds."""
    way: str
    """The fastest, the first of several."""


class Trial:
    """One array's, among some members."""

    def __init__(self, ways: Sequence[str], workers: Sequence[int], turns: int) -> None:
        """``workers``: how many each host has. ``turns``: rounds of each way that count; one more
        goes before them, in which what is slow the first time is done."""
        self._ways = ways
        self._workers = workers
        self._turns = turns
        self.choice: Choice | None = None

    @property
    def rounds(self) -> int:
        """So many it takes."""
        return len(self._ways) * (self._turns + 1)

    def way(self, number: int) -> str:
        """Which way this round goes, counted from 0. After the trial there must be a choice."""
        if number < self.rounds:
            turn, place = divmod(number, len(self._ways))
            # There and back: every other round may be one in which nobody brings anything.
            return self._ways[-1 - place if turn % 2 else place]
        assert self.choice is not None
        return self.choice.way

    def choose(self, size: int, times: Sequence[Sequence[float]]) -> Choice:
        """Seconds of each worker, host by host, round by round."""
        starts = [0, *accumulate(self._workers)]
        hosts = [slice(*both) for both in pairwise(starts)]
        took = [min(max(row[host]) for host in hosts) for row in times]
        counting = range(len(self._ways), self.rounds)
        seconds = {
            way: median(took[number] for number in counting if self.way(number) == way)
            for way in self._ways
        }
        self.choice = Choice(size, seconds, min(self._ways, key=seconds.__getitem__))
        return self.choice
