"""An arena whose contributions neighbours can read, and how they are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.fabric.planes.desks import DESCRIPTOR, HOME, HOME_MARK, MARK, OPEN, Desk
from spotmpi.fabric.planes.meetings import Meetings
from spotmpi.fabric.planes.plane import Arena, Shape
from spotmpi.fabric.planes.rings import Rings
from spotmpi.fabric.planes.shared_memory import PAGE, Found, Memory, Segment, bytes_of
from spotmpi.protocol.host_ring import RING, STRAIGHT, cut

__all__ = ["SMALL", "SharedArena"]

SMALL = 512
"""Elements of arrays that everybody sums for itself, or with several hosts the first of each."""


class Neighbours(Protocol):
    """What an arena needs of the plane that it belongs to."""

    present: list[Desk]
    rings: Rings | None
    meetings: Meetings

    def reached(self, found: Found, length: int) -> Segment:
        """A member's segment. Raises PeersLost if that is lost."""


class SharedArena(Arena):
    """An arena that neighbours can read; for small arrays, its contributions and what all hosts
    have brought together.

    The results lie in the segment of one worker, the home, which outlives it: all who use it keep
    it open. Until they are somewhere, and once memory is not shared any more, they are private.
    """

    def __init__(self, desk: Desk, key: int, layout: Sequence[Shape]) -> None:
        self.key = key
        self.layout = layout
        sizes = [bytes_of(shape.dtype, shape.size) for shape in layout]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._bytes = sum(sizes)
        self.small = max(shape.size for shape in layout) <= SMALL
        self._length = PAGE + self._bytes * (2 if self.small else 3)
        self._segment = Segment(self._length)
        own = Memory(self._bytes, self._segment, PAGE)
        self._regions = [Memory(self._bytes), Memory(self._bytes)]
        """Of the open round's results, and of the record's."""
        self._peers: dict[Found, Memory] = {self._segment.here: own}
        self._desk = desk
        self._entry: int | None = desk.enter(key, self._segment)
        self._home: Segment | None = None
        self._open = 0
        self._bindings = 0
        """When the rest was last looked at: ..."""
        self._inputs: list[list[Buffer]] | None = None
        """... of each array the slices of all members, in their order; None: not all share it."""
        self._members: list[tuple[Desk, int]] = []
        """Where each of them has it in its desk."""
        self._slices: list[slice] = []
        self._told: list[Buffer] = []
        """Where the first of this host leaves the sums of small arrays over all hosts."""
        places = iter([*self._regions, own])
        super().__init__(layout, lambda: self._arrays(next(places)), in_place=False)
        self.weighs = not self.small

    @property
    def common(self) -> list[Buffer]:
        """What is the same memory for all members."""
        return [] if self._home is None else [*self.results, *self.record]

    @property
    def shared(self) -> bool:
        """Whether others can find it."""
        return self._entry is not None

    def turn(self) -> None:
        """The open round is committed."""
        super().turn()
        self._regions.reverse()
        self._open = 1 - self._open
        if self._entry is not None:
            self._desk.write(self._entry, OPEN, self._open)

    def show(self, weight: float) -> None:
        """What is brought has this weight."""
        if self._entry is not None:
            self._desk.weigh(self._entry, weight)

    def reached(self, bindings: int) -> bool:
        """Whether it is known that all of this host share one like this."""
        return self._bindings == bindings and self._inputs is not None

    def reaches_all(self, bindings: int, node: Neighbours) -> bool:
        """Whether all of this host have shared one like this, after all have started a part."""
        if self._bindings != bindings:
            self._look_around(node)
            self._bindings = bindings
        return self._inputs is not None

    def sum(self, number: int, rings: Rings | None, way: str) -> None:
        """Do this worker's share of an array that all have brought; ``way``: if there are several
        hosts, between them."""
        assert self._inputs is not None
        result = self.results[number][self._slices[number]]
        weights = [desk.weight(entry) for desk, entry in self._members]
        brought = [
            (one, weight)
            for one, weight in zip(self._inputs[number], weights, strict=True)
            if weight  # what does not count may be anything, NaN too
        ]
        narrowing = self.layout[number].narrowing
        if rings is not None and way == RING:
            rings.sum(brought, result, narrowing)
            return
        if narrowing is not None:
            narrowing.begin([])
        if rings is not None and way == STRAIGHT:
            rings.straight(brought, result)
        elif rings is not None:
            rings.by_firsts(brought, result)
            if self.small and rings.leads:
                self._told[number][:] = result
        elif result.size and brought:
            HOST.kernels.scaled_sum(result, *map(list, zip(*brought, strict=True)))
        elif result.size:
            result.fill(0)

    def take(self, number: int) -> None:
        """Get a small array's sum from the first of this host, which has left it."""
        self.results[number][:] = self._told[number]

    def part(self) -> None:
        """Share nothing any more, now and later."""
        if self._entry is not None:
            self._desk.clear(self._entry)
            self._entry = None
        if self._home is not None:
            for region in self._regions:
                region.part()
            self._home = None

    def _look_around(self, node: Neighbours) -> None:
        """Find the memory of this host's members, after all have started a part of this arena."""
        entries = [desk.entry(self.key) for desk in node.present]
        known = [entry for entry in entries if entry is not None]
        self._inputs = None
        if len(known) < len(entries):
            self.part()
            return
        members = self._members = list(zip(node.present, known, strict=True))
        found = [
            Found(desk.found.process, desk.read(entry, DESCRIPTOR), desk.read(entry, MARK))
            for desk, entry in members
        ]
        self._peers = {
            one: self._peers.get(one) or Memory(self._bytes, node.reached(one, self._length), PAGE)
            for one in found
        }
        if not self.small and self._home is None:
            self._find_home(members, found, node)
        me, count = node.present.index(self._desk), len(members)
        whole = self.small or node.rings is not None
        self._slices = [
            slice(None) if whole else cut(shape.size, me, count) for shape in self.layout
        ]
        if self.small and node.rings is not None:
            first = node.reached(found[0], self._length)
            self._told = self._arrays(Memory(self._bytes, first, PAGE + self._bytes))
        arrays = [self._arrays(self._peers[one]) for one in found]
        self._inputs = [
            [flats[number][part] for flats in arrays] for number, part in enumerate(self._slices)
        ]

    def _find_home(
        self, members: Sequence[tuple[Desk, int]], found: Sequence[Found], node: Neighbours
    ) -> None:
        """Where anybody has it already; or else with the first."""
        home, turn = found[0], members[0]
        for desk, entry in members:
            if mark := desk.read(entry, HOME_MARK):
                home = Found(desk.found.process, desk.read(entry, HOME), mark)
                turn = desk, entry
                break
        self._open = turn[0].read(turn[1], OPEN)
        own = home == self._segment.here
        self._home = self._segment if own else node.reached(home, self._length)
        for region, result in zip(self._regions, (self._open, 1 - self._open), strict=True):
            region.show(self._home, PAGE + self._bytes * (1 + result))
        assert self._entry is not None
        self._desk.write(self._entry, OPEN, self._open)
        self._desk.write(self._entry, HOME, self._home.descriptor)
        # Whoever reads this number finds those before it.
        node.meetings.publish(self._desk.address(self._entry, HOME_MARK), self._home.mark)

    def _arrays(self, memory: Memory) -> list[Buffer]:
        return [
            memory.array(shape.dtype, shape.size, start)
            for shape, start in zip(self.layout, self._starts, strict=True)
        ]
