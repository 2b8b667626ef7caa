"""A sum whose first parts travel while the script computes the rest of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Protocol

from spotmpi.arrays.backend import Array
from spotmpi.fabric import Steps
from spotmpi.rounds.memory import parts_of_sum
from spotmpi.rounds.round import Round, Summed, SumRound
from spotmpi.rounds.summand import GrowingSummand

__all__ = ["EarlySum"]


class Runner(Protocol):
    """Runs rounds."""

    def begin(self, what: Round, parts: int | None = None) -> Steps[None]:
        """Open this round, bring what is there, and start its first ``parts`` parts, or all that
        may start now. Does not wait for others, but for a change of the membership."""

    def start(self, parts: int | None) -> Steps[None]:
        """Start the first ``parts`` parts of the open round."""

    def perform(self, what: Round) -> Steps[None]:
        """Do this round, which may be open already."""


class EarlySum:
    """A sum in the two rounds of a `SumRound`, of arrays that come one by one.

    In the first one all ask for the sum; nobody waits until a part of it is whole. In the second
    one a part starts as soon as it is whole. Workers that do not begin the sum early make the same
    rounds. What returns `Steps` is collective, but only the `add` that makes the first part whole
    waits for the others.
    """

    def __init__(
        self,
        runner: Runner,
        asked: SumRound,
        mine: GrowingSummand,
        summed: Callable[[Summed], Summed],
    ) -> None:
        """``asked``: the rounds of it. ``mine``: what this worker brings to them, without any array
        so far. ``summed``: is called with the sum."""
        self._runner = runner
        self._round = asked
        self.mine = mine
        self._summed = summed
        self._ends = [*accumulate(parts_of_sum(mine.bucket.dtype, mine.bucket.size))]
        """Where the parts end."""

    def begin(self) -> Steps[None]:
        """Ask all for the sum."""
        yield from self._runner.begin(self._round)

    def add(self, array: Array) -> Steps[None]:
        """Take the next array, and start the parts that are whole."""
        mine = self.mine
        mine.add(array)
        whole = sum(end <= mine.size for end in self._ends)
        if not self._asks:
            mine.pack(self._round.room, len(mine) - 1)
            yield from self._runner.start(whole)
        elif whole:
            yield from self._runner.perform(self._round)
            yield from self._runner.begin(self._round, whole)

    @property
    def _asks(self) -> bool:
        """True in the first round."""
        return self._round.memory.payload is None

    def end(self, whole: bool) -> Steps[Summed | None]:
        """Return the sum. ``whole``: False if other arrays have come than were expected, alike on
        all workers; then the sum is given up, and None returned."""
        if not whole:
            if self._asks:  # others may have said so already
                yield from self._runner.perform(self._round)
            self._round.give_up()
        while self._round.answer is None:
            yield from self._runner.perform(self._round)
        return self._summed(self._round.answer) if whole else None
