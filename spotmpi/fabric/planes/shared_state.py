"""One copy of the state for all workers of a host, and room for the next: who has it, and where.

The first worker offers its copy. When all have come to the round, a worker that has none yet looks
if anybody has one already, and else takes the first worker's. Each then sees both copies where its
own was. They lie in one worker's segment and outlive that worker: all who see them keep it open.
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
    """One worker's view of the state that all workers of a host share."""

    def __init__(
        self, state: DoubleBuffer, segment: Segment, place: int, header: SharedHeader, entry: int
    ) -> None:
        """Begin with this worker's own state. ``place``: the byte of a segment for the state."""
        self._state = state
        self._segment = segment
        self._place = place
        self._header = header
        self._entry: int | None = entry
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
        members: Sequence[tuple[SharedHeader, int]],
        reach: Callable[[Found], Segment],
        publish: Callable[[int, int], None],
    ) -> None:
        """Find the state and use it, after all ``members`` have started a part and before any can
        be done. ``publish``: writes a number to an address after all that was written before."""
        assert self._entry is not None
        header, entry = members[0]
        home, counts = Found(header.found.process, *_own(header, entry)), 0
        for header, entry in members:
            if mark := header.read(entry, STATE_MARK):
                home = Found(header.found.process, header.read(entry, STATE_HOME), mark)
                counts = header.read(entry, STATE)
                break
        there = self._segment if home == self._segment.here else reach(home)
        size = self._state.bytes
        self._state.share(there, self._place + counts * size, self._place + (1 - counts) * size)
        self.home, self._counts = there, counts
        self._header.write(self._entry, STATE, counts)
        self._header.write(self._entry, STATE_HOME, there.descriptor)
        publish(self._header.address(self._entry, STATE_MARK), there.mark)

    def advance(self) -> None:
        """Make the next state count here. Others may do so a moment earlier or later."""
        self._state.exchange()
        self._counts = 1 - self._counts
        if self._entry is not None:
            self._header.write(self._entry, STATE, self._counts)

    def hide(self) -> None:
        """Forget the entry in the header: others find nothing by it any more."""
        self._entry = None

    def leave(self) -> None:
        """Keep the state in memory of this worker's own again."""
        if self._entry is not None:
            self._header.write(self._entry, STATE_MARK, 0)
        self._state.unshare()
        self.home = None


def _own(header: SharedHeader, entry: int) -> tuple[int, int]:
    return header.read(entry, DESCRIPTOR), header.read(entry, MARK)
