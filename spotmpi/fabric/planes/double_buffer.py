"""State in two copies that exchange places: the one that counts, and room for the next one.

Arrays stay where they are; the pages below them are exchanged (mremap). That copies no byte and few
entries of page tables. A reader at that moment finds one state or the other, whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import SpotmpiError
from spotmpi.fabric.neighbours.shared_memory import Arrangement, Place, Segment, bytes_of

__all__ = ["DoubleBuffer", "possible"]


class DoubleBuffer:
    """The state of one worker: buffers in its own memory, or in memory that others have, too."""

    def __init__(self, layout: Sequence[tuple[str, int]]) -> None:
        """Allocate zeros of these dtypes and sizes, in memory of this worker's own."""
        arrangement = Arrangement(layout)
        self.bytes = arrangement.bytes
        self._live, self._spare, self._between = (Place(self.bytes) for _ in range(3))
        self._live.use()
        self.shared = False
        self._stands = False
        self.live: list[Buffer] = arrangement.arrays_in(self._live)
        """The state that counts; always the same arrays."""
        self.next: list[Buffer] = arrangement.arrays_in(self._spare)
        """Room for the next state, which counts after `exchange`; always the same arrays. Do not
        touch them before there is room (`stand`, `share`)."""

    def stand(self) -> None:
        """Make room for the next state, in memory of this worker's own unless it is shared."""
        if not self._stands:
            self._spare.use()
            self._stands = True

    def share(self, segment: Segment, live: int, spare: int) -> None:
        """Keep both copies in this segment from now on, at these bytes. The state that counts must
        be there already."""
        self._spare.use(segment, spare)
        self._live.use(segment, live)
        self.shared = self._stands = True

    def exchange(self) -> None:
        """Make the next state count. The memory of the old one is room for the one after it."""
        self._live.move(self._between)
        self._spare.move(self._live)
        self._between.move(self._spare)

    def unshare(self) -> None:
        """Put the state into memory of this worker's own, and give up room for the next."""
        if not self._stands:
            return
        if self.shared:
            self._spare.use()
            self._spare.copy(self._live)
            self._spare.move(self._live)
        self._spare.leave()
        self._between.leave()
        self.shared = self._stands = False

    def write_to(self, segment: Segment, at: int) -> None:
        """Copy the state that counts into a segment, at its byte ``at``."""
        there = Place(self.bytes)
        there.use(segment, at)
        there.copy(self._live)


@cache
def possible() -> bool:
    """Return True if this machine's kernel can exchange pages. Finds out by a trial."""
    try:
        segment = Segment(2 * bytes_of("float64", 1))
        twins = DoubleBuffer([("float64", 1)])
        twins.share(segment, 0, bytes_of("float64", 1))
        twins.next[0][0] = 1.0
        twins.exchange()
        after = float(twins.live[0][0])
        twins.unshare()
        return after == 1.0 == float(twins.live[0][0])
    except (OSError, SpotmpiError):
        return False
