"""One copy of the state for all workers of a host, and room for the next: who has it, and where.

The first worker offers its own. When all have come to the round, whoever has none yet looks whether
anybody has one already, and else takes the first one's. Each then sees both copies where its own
was. They lie in one worker's segment and outlive that worker: all who see them keep it open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.shared_header import (
    DESCRIPTOR,
    MARK,
    STATE,
    STATE_HOME,
    STATE_MARK,
    SharedHeader,
)
from spotmpi.fabric.planes.shared_memory import Found, Segment

__all__ = ["SharedState"]


class SharedState:
    """One worker's view of it."""

    def __init__(
        self, state: DoubleBuffer, segment: Segment, place: int, desk: SharedHeader, entry: int
    ) -> None:
        """``place``: where it can be in such a segment."""
        self._state = state
        self._segment = segment
        self._place = place
        self._desk = desk
        self._entry: int | None = entry
        self.home: Segment | None = None
        """Where it is; None while this worker's is its own."""
        self._counts = 0
        """Which of the two copies there is the state."""

    @property
    def there(self) -> bool:
        """Whether it was found."""
        return self.home is not None

    def offer(self) -> None:
        """This worker is the first, and starts no part before this: whoever finds none takes this
        one's. What is written is what anybody could see there already."""
        if self.home is None:
            self._state.write_to(self._segment, self._place)

    def find(
        self,
        members: Sequence[tuple[SharedHeader, int]],
        reach: Callable[[Found], Segment],
        publish: Callable[[int, int], None],
    ) -> None:
        """After all of these have started a part, and before any of them can be through.

        ``publish``: writes a number to an address after all that was written before.
        """
        assert self._entry is not None
        desk, entry = members[0]
        home, counts = Found(desk.found.process, *_own(desk, entry)), 0
        for desk, entry in members:
            if mark := desk.read(entry, STATE_MARK):
                home = Found(desk.found.process, desk.read(entry, STATE_HOME), mark)
                counts = desk.read(entry, STATE)
                break
        there = self._segment if home == self._segment.here else reach(home)
        size = self._state.bytes
        self._state.share(there, self._place + counts * size, self._place + (1 - counts) * size)
        self.home, self._counts = there, counts
        self._desk.write(self._entry, STATE, counts)
        self._desk.write(self._entry, STATE_HOME, there.descriptor)
        publish(self._desk.address(self._entry, STATE_MARK), there.mark)

    def advance(self) -> None:
        """The next state counts here: others may be a moment earlier or later."""
        self._state.exchange()
        self._counts = 1 - self._counts
        if self._entry is not None:
            self._desk.write(self._entry, STATE, self._counts)

    def hide(self) -> None:
        """The place in the desk is another's from now on: nobody finds anything by it any more."""
        self._entry = None

    def leave(self) -> None:
        """This worker's is its own again."""
        if self._entry is not None:
            self._desk.write(self._entry, STATE_MARK, 0)
        self._state.unshare()
        self.home = None


def _own(desk: SharedHeader, entry: int) -> tuple[int, int]:
    return desk.read(entry, DESCRIPTOR), desk.read(entry, MARK)
