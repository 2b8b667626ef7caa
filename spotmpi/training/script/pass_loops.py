"""Loops over passes: in which of them a script is, and in which pass. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from spotmpi.errors import UsageError

Place = tuple[int, int]
"""A place in a script: batches opened before it, and answers given before it."""


@dataclass
class _Loop:
    """A loop over passes, and where the script is in it."""

    now: int
    """Pass that the script is in: those before it are done."""
    opened: int
    """Batches opened when that pass began, or, if the loop is `over`, when the script left it."""
    answered: int
    """Answers given when that pass began, or, if the loop is `over`, when the script left it."""
    over: bool = False
    """True if the script has gone on to something else, even if passes are left."""


class PassLoops:
    """A script's loops over passes, and where it is in them. Others may be further."""

    def __init__(self) -> None:
        self._known: list[_Loop] = []
        """Loops that were entered; after a checkpoint, or from the others, also later ones."""
        self._entered = 0
        """Number of known loops that this script has entered."""
        self.now: int | None = None
        """Pass that the script is in, or -1 before the first; None outside of such loops."""
        self.planned = 0
        """Passes of the loop that the script is in."""
        self._left: Place | None = None
        """Where it left its last loop; None if it cannot go on there any more."""

    def enter(self, n: int, here: Place) -> None:
        """Enter the script's next loop, of ``n`` passes. Raises UsageError if it is in one."""
        if self.now is not None:
            raise UsageError(
                "passes() was called inside a loop over passes(): leave that loop first, or write "
                "the inner one with range()"
            )
        self.leave_behind()
        if self._entered == len(self._known):
            self._known.append(_Loop(0, *here))
        self._entered += 1
        self.now, self.planned = -1, n

    @property
    def ahead(self) -> Place | None:
        """Where the others' pass began, or where they left this loop; None if the script does its
        next pass as they did."""
        assert self.now is not None
        loop = self._known[self._entered - 1]
        return (loop.opened, loop.answered) if loop.over or loop.now > self.now else None

    def next(self, here: Place) -> int | None:
        """Return the pass that the script is to go through next; None if none is left."""
        assert self.now is not None
        loop = self._known[self._entered - 1]
        if self.ahead is None:
            loop.now, (loop.opened, loop.answered) = self.now + 1, here
        self.now = loop.now
        return None if loop.over or loop.now >= self.planned else loop.now

    def leave(self, here: Place) -> None:
        """Note that the script has left its loop, used up or not."""
        self.now, self.planned, self._left = None, 0, here

    def leave_behind(self) -> None:
        """Mark the loop that the script has left as over: it does not come back to it.

        The script must have gone on to something else first. If it was resumed after it had left
        the loop early, it may be meant to take longer this time.
        """
        if self._left is not None:
            loop = self._known[self._entered - 1]
            (loop.opened, loop.answered), loop.over = self._left, True
            self._left = None

    def lose_answers(self) -> None:
        """Note that the answers given so far are no longer kept."""
        for loop in self._known:
            loop.answered = 0

    @property
    def opened(self) -> int:
        """Batches that a script has opened which was where these loops say."""
        return max((loop.opened for loop in self._known), default=0)

    def told(self) -> list[Any]:
        """Return what others need of the loops, as JSON values."""
        return [astuple(loop) for loop in self._known]

    def follow(self, told: Sequence[Any]) -> None:
        """Take what others have `told`; this script is there, or before it."""
        loops = [
            _Loop(int(now), int(opened), int(answered), bool(over))
            for now, opened, answered, over in told
        ]
        self._known = [*loops, *self._known[len(loops) :]]
