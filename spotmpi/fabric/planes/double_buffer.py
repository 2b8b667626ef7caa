"""State in two copies that exchange places: the one that counts, and room for the next one.

Arrays stay where they are; the pages below them are exchanged (mremap). That moves no byte and
few entries of page tables, and whoever reads meanwhile finds one state or the other, whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import SpotmpiError
from spotmpi.fabric.planes.shared_memory import Place, Segment, bytes_of

__all__ = ["DoubleBuffer", "possible"]


class DoubleBuffer:
    """The state of one worker: buffers, in memory of its own, or in memory that others have too."""

    def __init__(self, layout: Sequence[tuple[str, int]]) -> None:
        """Zeros of these dtypes and sizes, in memory of its own."""
        sizes = [bytes_of(dtype, size) for dtype, size in layout]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.bytes = sum(sizes)
        self._live, self._spare, self._between = (Place(self.bytes) for _ in range(3))
        self._live.use()
        self.shared = False
        self._stands = False
        self.live = self._buffers(layout, self._live)
        """What counts; always the same arrays."""
        self.next = self._buffers(layout, self._spare)
        """Room for what will count after `exchange`; always the same arrays, which are not to be
        touched before there is room (`stand`, `share`)."""

    def stand(self) -> None:
        """Have room for the next state, in memory of its own if it is not shared."""
        if not self._stands:
            self._spare.use()
            self._stands = True

    def share(self, segment: Segment, live: int, spare: int) -> None:
        """Both copies are in this segment from now on, from these bytes of it on. What counts must
        be there already."""
        self._spare.use(segment, spare)
        self._live.use(segment, live)
        self.shared = self._stands = True

    def exchange(self) -> None:
        """The next state counts, and what counted is room for the one after it."""
        self._live.move(self._between)
        self._spare.move(self._live)
        self._between.move(self._spare)

    def unshare(self) -> None:
        """What counts is in memory of its own from now on, and there is no room for the next."""
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
        """Copy what counts to this place in a segment."""
        there = Place(self.bytes)
        there.use(segment, at)
        there.copy(self._live)

    def _buffers(self, layout: Sequence[tuple[str, int]], place: Place) -> list[Buffer]:
        return [
            place.array(dtype, size, start)
            for (dtype, size), start in zip(layout, self._starts, strict=True)
        ]


@cache
def possible() -> bool:
    """Whether this machine's kernel can do it; found out by trying."""
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
