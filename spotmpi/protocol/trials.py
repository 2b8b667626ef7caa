"""Trials of several ways: some first rounds try all of them, and the fastest is chosen. Pure.

All members try the same way in the same round, and choose by everybody's times. So all choose the
same way. In a round, workers that come early wait for the last one. So a round took what it took on
the host that waited the shortest, and on a host the slowest worker counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

__all__ = ["Choice", "Trial"]


class Choice(NamedTuple):
    """The result of a trial."""

    size: int
    """Bytes of the array."""
    seconds: dict[str, float]
    """Seconds of each way: the median of its rounds."""
    way: str
    """The fastest way; of equal ones, the first."""


class Trial:
    """The trial of the ways of one array, among some members."""

    def __init__(self, ways: Sequence[str], workers: Sequence[int], turns: int) -> None:
        """Begin a trial. ``workers``: the number on each host. ``turns``: rounds of each way that
        count. One more of each goes before them, for what is slow the first time."""
        self._ways = ways
        self._workers = workers
        self._turns = turns
        self.choice: Choice | None = None

    @property
    def rounds(self) -> int:
        """Rounds that the trial takes."""
        return len(self._ways) * (self._turns + 1)

    def way(self, number: int) -> str:
        """Return the way of this round, counted from 0. After the trial there must be a choice."""
        if number < self.rounds:
            turn, place = divmod(number, len(self._ways))
            # There and back, in turn: every other round may be one without contributions.
            return self._ways[-1 - place if turn % 2 else place]
        assert self.choice is not None
        return self.choice.way

    def choose(self, size: int, times: Sequence[Sequence[float]]) -> Choice:
        """Choose by the seconds of each worker, round by round, and in a round host by host."""
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
