"""The results of an arena, where all workers of a host have the same two: where these lie.

All use the results of the first member that has some already, or else make the first member's
segment the home of them. The home outlives its worker: all who use it keep it open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotmpi.fabric.neighbours.shared_header import HOME, HOME_MARK, OPEN, Entry
from spotmpi.fabric.neighbours.shared_memory import PAGE, Found, Memory, Segment

__all__ = ["SharedResults"]


class SharedResults:
    """One worker's view of an arena's two results: its own, or those that all have in common."""

    def __init__(self, segment: Segment, size: int) -> None:
        """Begin with results of this worker's own, of ``size`` bytes each."""
        self._segment = segment
        self._size = size
        self.memory = [Memory(size), Memory(size)]
        """The memory of the open round's results, and of the record's."""
        self._home: Segment | None = None
        """The segment of the results; None while this worker's are its own."""
        self._open = 0
        """Which of the two results there is the open round's."""

    @property
    def there(self) -> bool:
        """True if the home was found."""
        return self._home is not None

    def turn(self, own: Entry | None) -> None:
        """Make the open round's results the record, also for others that look at the entry."""
        self.memory.reverse()
        self._open = 1 - self._open
        if own is not None:
            own.write(OPEN, self._open)

    def find(
        self,
        members: Sequence[Entry],
        own: Entry,
        reach: Callable[[Found], Segment],
        publish: Callable[[int, int], None],
    ) -> None:
        """Find the home and use it. ``publish``: writes a number to an address after all that was
        written before."""
        home, turn = members[0].segment(), members[0]
        for one in members:
            if one.read(HOME_MARK):
                home, turn = one.segment(HOME, HOME_MARK), one
                break
        self._open = turn.read(OPEN)
        there = self._home = self._segment if home == self._segment.here else reach(home)
        for memory, result in zip(self.memory, (self._open, 1 - self._open), strict=True):
            memory.show(there, PAGE + self._size * (1 + result))
        own.write(OPEN, self._open)
        own.write(HOME, there.descriptor)
        # A worker that reads this number finds those before it.
        publish(own.address(HOME_MARK), there.mark)

    def unshare(self) -> None:
        """Use results of this worker's own from now on, with the present content."""
        if self._home is not None:
            for memory in self.memory:
                memory.unshare()
            self._home = None
