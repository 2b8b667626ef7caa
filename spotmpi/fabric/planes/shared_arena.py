"""An arena whose contributions neighbours (workers of this host) can read, and its sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.errors import UsageError
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.host_barrier import HostBarrier
from spotmpi.fabric.planes.plane import Arena, Move, Part, Shape
from spotmpi.fabric.planes.rings import Rings
from spotmpi.fabric.planes.shared_header import (
    DESCRIPTOR,
    HOME,
    HOME_MARK,
    MARK,
    OPEN,
    UPDATE,
    SharedHeader,
)
from spotmpi.fabric.planes.shared_memory import PAGE, Found, Memory, Segment, bytes_of
from spotmpi.fabric.planes.shared_state import SharedState
from spotmpi.protocol.host_ring import RING, STRAIGHT, cut

__all__ = ["SMALL", "SharedArena"]

SMALL = 512
"""Elements of an array that each worker, or with several hosts the first of each, sums alone."""


class Neighbours(Protocol):
    """What an arena needs of the plane that it belongs to."""

    present: list[SharedHeader]
    rings: Rings | None
    barrier: HostBarrier

    def reached(self, found: Found, length: int) -> Segment:
        """Return a member's segment. Raises PeersLost if that member is lost."""


class SharedArena(Arena):
    """An arena that neighbours can read. Its segment holds contributions; room for two results or,
    if its arrays are small, for the sums over all hosts; and room for two copies of ``state``.

    The results of large arrays lie in one worker's segment, the home. All users keep it open, so it
    outlives that worker. Results are private before there is a home, and once nothing is shared.
    """

    def __init__(
        self,
        header: SharedHeader,
        key: int,
        layout: Sequence[Shape],
        state: DoubleBuffer | None = None,
    ) -> None:
        self.key = key
        self.layout = layout
        sizes = [bytes_of(shape.dtype, shape.size) for shape in layout]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._bytes = sum(sizes)
        self.small = max(shape.size for shape in layout) <= SMALL
        beside = PAGE + self._bytes * (2 if self.small else 3)
        self._length = beside + (0 if state is None else 2 * state.bytes)
        self._segment = Segment(self._length)
        own = Memory(self._bytes, self._segment, PAGE)
        self._regions = [Memory(self._bytes), Memory(self._bytes)]
        """The memory of the open round's results, and of the record's."""
        self._peers: dict[Found, Memory] = {self._segment.here: own}
        self._header = header
        self._entry: int | None = header.enter(key, self._segment)
        self._home: Segment | None = None
        self.alone = False
        """True if all members are on this host."""
        self.first = False
        """True if all members are on this host and this worker is the first of them."""
        self._update = 0
        self._shares: SharedState | None = None
        if state is not None and not self.small:
            self._shares = SharedState(state, self._segment, beside, header, self._entry)
        self._open = 0
        self._bindings = 0
        """The number of times the plane was bound when the fields below were found."""
        self._inputs: list[list[Buffer]] | None = None
        """The slices of all members, for each array; None if not all share the arena."""
        self._members: list[tuple[SharedHeader, int]] = []
        """The header of each member, and the arena's entry there."""
        self._slices: list[slice] = []
        self._told: list[Buffer] = []
        """Where the first worker of this host leaves the sums of small arrays over all hosts."""
        places = iter([*self._regions, own])
        super().__init__(layout, lambda: self._arrays(next(places)), in_place=False, state=state)
        self.weighs = not self.small

    @property
    def common(self) -> list[Buffer]:
        """The arrays that are the same memory for all members."""
        return [] if self._home is None else [*self.results, *self.record]

    @property
    def shared(self) -> bool:
        """True if others can find this arena."""
        return self._entry is not None

    def turn(self) -> None:
        """Make the open round's sums the record: the round is committed."""
        super().turn()
        self._regions.reverse()
        self._open = 1 - self._open
        if self._entry is not None:
            self._header.write(self._entry, OPEN, self._open)

    def show(self, weight: float) -> None:
        """Show the weight of this worker's contributions, and its mark of the update, to others."""
        if self._entry is not None:
            self._header.weigh(self._entry, weight)
            self._header.write(self._entry, UPDATE, self._update)

    @property
    def fuses(self) -> bool:
        """True if all members are on this host: they have one next state between them."""
        return self._shares is not None and self.alone and self.shared

    def fuse_update(self, moves: Sequence[Move], mark: int) -> None:
        """As in `Arena`."""
        assert self._shares is not None
        super().fuse_update(moves, mark)
        self._update = mark
        if self.first:
            self._shares.offer()

    def unfuse(self) -> None:
        """Leave the open round's sums in the results."""
        super().unfuse()
        self._update = 0

    def advance(self) -> None:
        """Make the next state count. All workers of the host have made it together; if memory is
        not shared after all, this one makes it by itself."""
        if self._shares is not None and self._shares.there:
            self._shares.advance()
        else:
            super().advance()

    def leave(self) -> None:
        """Keep the state in memory of this worker's own."""
        if self._shares is not None:
            self._shares.leave()
        super().leave()

    def whole(self, part: Part) -> None:
        """Make the next state, if it is shared, from the sum of ``part``, which was made elsewhere.
        If it is not shared, `advance` makes it."""
        if part.move is not None and self._shares is not None and self._shares.there:
            part.move(slice(None), [part.result], [1.0])

    def reached(self, bindings: int, part: Part) -> bool:
        """Return True if all of this host are known to share this arena and what ``part`` needs."""
        there = self._bindings == bindings and self._inputs is not None
        return there and (part.move is None or self._shares is None or self._shares.there)

    def reaches_all(self, bindings: int, node: Neighbours, part: Part) -> bool:
        """Return True if all of this host share this arena. All must have started a part before."""
        if self._bindings != bindings:
            self._look_around(node)
            self._bindings = bindings
        if self._inputs is None:
            return False
        if part.move is not None and self._shares is not None and not self._shares.there:
            reach, publish = partial(self._reach, node), node.barrier.publish
            self._shares.find(self._members, reach, publish)
        return True

    def sum(self, number: int, rings: Rings | None, way: str, part: Part) -> None:
        """Do this worker's share of array ``number``, whose contributions are all there. ``way``:
        its way between hosts, if there are several."""
        assert self._inputs is not None
        if not self._is_one_update():
            return
        result = self.results[number][self._slices[number]]
        weights = [header.weight(entry) for header, entry in self._members]
        brought = [
            (one, weight)
            for one, weight in zip(self._inputs[number], weights, strict=True)
            if weight  # what does not count may be anything, NaN too
        ]
        narrowing = part.narrowing
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
        elif part.move is not None:
            if result.size:
                part.move(self._slices[number], *map(list, zip(*brought, strict=True)))
        elif result.size and brought:
            HOST.kernels.scaled_sum(result, *map(list, zip(*brought, strict=True)))
        elif result.size:
            result.fill(0)

    def _is_one_update(self) -> bool:
        """Return True if all members do the same with the sum; False if some are in no step: then
        the round comes to nothing, and the control word says why. In a step it is a UsageError."""
        updates = {header.read(entry, UPDATE) for header, entry in self._members}
        if len(updates) == 1:
            return True
        if 0 in updates:
            return False
        raise UsageError(
            "two workers update the parameters that they share in different ways: give the "
            "optimizer the same learning rate on all workers in every step"
        )

    def take(self, number: int) -> None:
        """Copy a small array's sum, which the first worker of this host has left."""
        self.results[number][:] = self._told[number]

    def unshare(self) -> None:
        """Share no contributions and results any more, now and later. A state that is shared stays
        so until `leave`."""
        if self._entry is not None:
            self._header.clear(self._entry)
            self._entry = None
            if self._shares is not None:
                self._shares.hide()
        if self._home is not None:
            for region in self._regions:
                region.unshare()
            self._home = None

    def _reach(self, node: Neighbours, found: Found) -> Segment:
        return node.reached(found, self._length)

    def _look_around(self, node: Neighbours) -> None:
        """Find the memory of this host's members. All must have started a part of this arena."""
        entries = [header.entry(self.key) for header in node.present]
        known = [entry for entry in entries if entry is not None]
        self._inputs = None
        if len(known) < len(entries):
            self.unshare()
            return
        members = self._members = list(zip(node.present, known, strict=True))
        found = [
            Found(header.found.process, header.read(entry, DESCRIPTOR), header.read(entry, MARK))
            for header, entry in members
        ]
        self._peers = {
            one: self._peers.get(one) or Memory(self._bytes, node.reached(one, self._length), PAGE)
            for one in found
        }
        if not self.small and self._home is None:
            self._find_home(members, found, node)
        me, count = node.present.index(self._header), len(members)
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
        self, members: Sequence[tuple[SharedHeader, int]], found: Sequence[Found], node: Neighbours
    ) -> None:
        """Find the home: where any member has it already, else with the first member."""
        home, turn = found[0], members[0]
        for header, entry in members:
            if mark := header.read(entry, HOME_MARK):
                home = Found(header.found.process, header.read(entry, HOME), mark)
                turn = header, entry
                break
        self._open = turn[0].read(turn[1], OPEN)
        own = home == self._segment.here
        self._home = self._segment if own else node.reached(home, self._length)
        for region, result in zip(self._regions, (self._open, 1 - self._open), strict=True):
            region.show(self._home, PAGE + self._bytes * (1 + result))
        assert self._entry is not None
        self._header.write(self._entry, OPEN, self._open)
        self._header.write(self._entry, HOME, self._home.descriptor)
        # A worker that reads this number finds those before it.
        node.barrier.publish(self._header.address(self._entry, HOME_MARK), self._home.mark)

    def _arrays(self, memory: Memory) -> list[Buffer]:
        return [
            memory.array(shape.dtype, shape.size, start)
            for shape, start in zip(self.layout, self._starts, strict=True)
        ]
