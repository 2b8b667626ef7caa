"""One copy of the state for all workers of a host, and room for the next: who has it, and where.

The first worker offers its copy. When all have come to the round, a worker that has none yet looks
if anybody has one already, and else takes the first worker's. Each then sees both copies where its
own was. They lie in one worker's segment and outlive that worker: all who see them keep it open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotmpi.fabric.neighbours.shared_header import (
    STATE,
    STATE_HOME,
    STATE_MARK,
    Entry,
)
from spotmpi.fabric.neighbours.shared_memory import Found, Segment
from spotmpi.fabric.planes.double_buffer import DoubleBuffer

__all__ = ["SharedState"]


class SharedState:
    """One worker's view of the state that all workers of a host share."""

    def __init__(self, state: DoubleBuffer, segment: Segment, place: int, entry: Entry) -> None:
        """Begin with this worker's own state. ``place``: the byte of a segment for the state."""
        self._state = state
        self._segment = segment
        self._place = place
        self._entry: Entry | None = entry
        self.home: Segment | None = None
        """The segment of the state; None while this worker's state is its own."""
        self._counts = 0
        """Which of the two copies there is the state that counts."""

    @property
    def there(self) -> bool:
        """True if the shared state was found."""
        return self.home is not None

    def offer(self) -> None:
        """Write this worker's state to its segment: workers that find no other one take it. Only
        the first worker does this, before it starts a part. Others may see these
        bytes already: the write does not change them."""
        if self.home is None:
            self._state.write_to(self._segment, self._place)

    def find(
        self,
        members: Sequence[Entry],
        reach: Callable[[Found], Segment],
        publish: Callable[[int, int], None],
    ) -> None:
        """Find the state and use it, after all ``members`` have started a part and before any can
        be done. ``publish``: writes a number to an address after all that was written before."""
        assert self._entry is not None
        home, counts = members[0].segment(), 0
        for one in members:
            if one.read(STATE_MARK):
                home, counts = one.segment(STATE_HOME, STATE_MARK), one.read(STATE)
                break
        there = self._segment if home == self._segment.here else reach(home)
        size = self._state.bytes
        self._state.share(there, self._place + counts * size, self._place + (1 - counts) * size)
        self.home, self._counts = there, counts
        self._entry.write(STATE, counts)
        self._entry.write(STATE_HOME, there.descriptor)
        publish(self._entry.address(STATE_MARK), there.mark)

    def advance(self) -> None:
        """Make the next state count here. Others may do so a moment earlier or later."""
        self._state.exchange()
        self._counts = 1 - self._counts
        if self._entry is not None:
            self._entry.write(STATE, self._counts)

    def hide(self) -> None:
        """Forget the entry in the header: others find nothing by it any more."""
        self._entry = None

    def leave(self) -> None:
        """Keep the state in memory of this worker's own again."""
        if self._entry is not None:
            self._entry.write(STATE_MARK, 0)
        self._state.unshare()
        self.home = None
