"""An arena whose contributions neighbours (workers of this host) can read, and its sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.arrays.narrowing import Narrowing
from spotmpi.errors import UsageError
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.neighbours.shared_header import UPDATE, Entry, SharedHeader
from spotmpi.fabric.neighbours.shared_memory import PAGE, Arrangement, Found, Memory, Segment
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.host_barrier import HostBarrier
from spotmpi.fabric.planes.plane import Arena, Move, Part, Shape
from spotmpi.fabric.planes.rings import Rings
from spotmpi.fabric.planes.shared_results import SharedResults
from spotmpi.fabric.planes.shared_state import SharedState
from spotmpi.fabric.planes.travels import Brought
from spotmpi.protocol.host_ring import GIVEN, RING, STRAIGHT, cut

__all__ = ["SMALL", "SharedArena"]

SMALL = 512
"""Elements of an array that each worker, or with several hosts the first of each, sums alone."""


class Node(Protocol):
    """What an arena needs of the plane that it belongs to."""

    neighbours: Neighbours
    rings: Rings | None
    barrier: HostBarrier

    def reached(self, found: Found, length: int) -> Segment:
        """Return a member's segment. Raises PeersLost if that member is lost."""


class _Sources(NamedTuple):
    """What an arena sums, if all of this host share it."""

    members: list[Entry]
    """Each member's entry of the arena."""
    inputs: list[list[Buffer]]
    """The slices of all members, for each array."""
    slices: list[slice]
    """The slice of each array that this worker sums."""
    told: list[Buffer]
    """Where the first worker of this host leaves the sums of small arrays over all hosts."""


class SharedArena(Arena):
    """An arena that neighbours can read. Its segment holds contributions; room for two results or,
    if its arrays are small, for the sums over all hosts; and room for two copies of ``state``.

    The results of large arrays lie in one worker's segment (`SharedResults`). They are private
    before that is found, and once nothing is shared.
    """

    def __init__(
        self,
        header: SharedHeader,
        key: int,
        layout: Sequence[Shape],
        state: DoubleBuffer | None = None,
    ) -> None:
        self._key = key
        self._arrangement = Arrangement([(shape.dtype, shape.size) for shape in layout])
        size = self._arrangement.bytes
        self.small = max(shape.size for shape in layout) <= SMALL
        beside = PAGE + size * (2 if self.small else 3)
        self._length = beside + (0 if state is None else 2 * state.bytes)
        self._segment = Segment(self._length)
        own = Memory(size, self._segment, PAGE)
        self._common = SharedResults(self._segment, size)
        self._peers: dict[Found, Memory] = {self._segment.here: own}
        self._entry: Entry | None = header.enter(key, self._segment)
        self.alone = False
        """True if all members are on this host."""
        self.first = False
        """True if all members are on this host and this worker is the first of them."""
        self._update = 0
        self._shares: SharedState | None = None
        if state is not None and not self.small:
            self._shares = SharedState(state, self._segment, beside, self._entry)
        self._bindings = 0
        """The number of times the plane was bound when the sources were looked for."""
        self._sources: _Sources | None = None
        places = map(self._arrangement.arrays_in, [*self._common.memory, own])
        super().__init__(layout, lambda: next(places), in_place=False, state=state)
        self.weighs = not self.small

    @property
    def common(self) -> list[Buffer]:
        """The arrays that are the same memory for all members."""
        return [*self.results, *self.record] if self._common.there else []

    @property
    def shared(self) -> bool:
        """True if others can find this arena."""
        return self._entry is not None

    def turn(self) -> None:
        """Make the open round's sums the record: the round is committed."""
        super().turn()
        self._common.turn(self._entry)

    def show(self) -> None:
        """Show others what this worker's contributions count, and its mark of the update."""
        if self._entry is not None:
            self._entry.weight, self._entry.only = self.weight, self.only
            self._entry.write(UPDATE, self._update)

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

    def reaches_state(self, part: Part) -> bool:
        """Return True if ``part`` goes into no state, or into one that all of this host are known
        to share. To find such a state changes its place, so no script may run meanwhile."""
        return part.move is None or self._shares is None or self._shares.there

    def reaches_all(self, node: Node, part: Part) -> bool:
        """Return True if all of this host share this arena. All must have started a part before."""
        if self._bindings != node.neighbours.bindings:
            self._sources = None
            self._sources = self._look_around(node)
            self._bindings = node.neighbours.bindings
        if self._sources is None:
            return False
        if not self.reaches_state(part):
            assert self._shares is not None
            reach, publish = partial(self._reach, node), node.barrier.publish
            self._shares.find(self._sources.members, reach, publish)
        return True

    def sum(self, number: int, rings: Rings | None, way: str, part: Part) -> None:
        """Do this worker's share of array ``number``, whose contributions are all there. ``way``:
        its way between hosts, if there are several."""
        assert self._sources is not None
        members, _, slices, _ = self._sources
        if self._shares is not None and not _is_one_update(members):
            return
        result = self.results[number][slices[number]]
        arrays, weights = self._counted(number)
        narrowing = part.narrowing
        if narrowing is not None and (rings is None or way != RING):
            narrowing.begin([])
        if rings is not None:
            brought = list(zip(arrays, weights, strict=True))
            self._sum_between(number, brought, result, rings, way, narrowing)
        elif not result.size:
            return
        elif part.move is not None:
            part.move(slices[number], arrays, weights)
        elif arrays:
            of = self._arrangement.bytes // len(members)  # what this worker sums of all arrays
            HOST.kernels.scaled_sum(result, arrays, weights, of=of)
        else:
            result.fill(0)

    def _counted(self, number: int) -> tuple[list[Buffer], list[float]]:
        """Return what members bring to array ``number``, and its weights; nothing with weight 0."""
        assert self._sources is not None
        members, arrays = self._sources.members, self._sources.inputs[number]
        weights = [member.weight_in(number) if self.weighs else 1.0 for member in members]
        if not all(weights):  # what does not count may be anything, NaN too
            arrays = [one for one, weight in zip(arrays, weights, strict=True) if weight]
            weights = [weight for weight in weights if weight]
        return arrays, weights

    def _sum_between(
        self,
        number: int,
        brought: Sequence[Brought],
        result: Buffer,
        rings: Rings,
        way: str,
        narrowing: Narrowing | None,
    ) -> None:
        """Do this worker's share of a sum over several hosts."""
        assert self._sources is not None
        if way == GIVEN:
            if not number:
                self._give_all(rings)
        elif way == STRAIGHT:
            rings.straight(brought, result)
        elif way == RING:
            rings.sum(brought, result, narrowing)
        else:
            rings.by_firsts(brought, result)
            if self.small and rings.leads:
                self._sources.told[number][:] = result

    def _give_all(self, rings: Rings) -> None:
        """Give all arrays from host to host that one worker alone brings, and sum the others."""
        here: list[list[Brought]] = [
            [*zip(*self._counted(number), strict=True)] for number in range(len(self.layout))
        ]
        givers = dict(enumerate(rings.givers([*map(len, here)])))
        given = {number: host for number, host in givers.items() if host is not None}
        rings.give(
            {at: here[number][0][0] for at, number in enumerate(given) if here[number]},
            [self.results[number] for number in given],
            [*given.values()],
        )
        for number in sorted(givers.keys() - given.keys()):
            rings.sum(here[number], self.results[number])

    def take(self, number: int) -> None:
        """Copy a small array's sum, which the first worker of this host has left."""
        assert self._sources is not None
        self.results[number][:] = self._sources.told[number]

    def hide(self) -> None:
        """Have others find this arena no more, now and later. A state that is shared stays so until
        `leave`."""
        if self._entry is not None:
            self._entry.clear()
            self._entry = None
            if self._shares is not None:
                self._shares.hide()

    def keep_results(self) -> None:
        """Have results of this worker's own, with the present content. Others may still look for
        the arena."""
        self._common.unshare()

    def unshare(self) -> None:
        """Share no contributions and results any more."""
        self.hide()
        self.keep_results()

    def _reach(self, node: Node, found: Found) -> Segment:
        return node.reached(found, self._length)

    def _look_around(self, node: Node) -> _Sources | None:
        """Find the memory of this host's members; None if not all share the arena. All must have
        started a part of it."""
        present = node.neighbours.present
        members = [one for header in present if (one := header.entry(self._key)) is not None]
        if len(members) < len(present):
            return None
        found = [one.segment() for one in members]
        reach, size = partial(self._reach, node), self._arrangement.bytes
        self._peers = {one: self._peers.get(one) or Memory(size, reach(one), PAGE) for one in found}
        if not self.small and not self._common.there:
            assert self._entry is not None
            self._common.find(members, self._entry, reach, node.barrier.publish)
        whole = self.small or node.rings is not None
        slices = [
            slice(None) if whole else cut(shape.size, node.neighbours.place, len(members))
            for shape in self.layout
        ]
        told = list[Buffer]()
        if self.small and node.rings is not None:
            told = self._arrangement.arrays_in(Memory(size, reach(found[0]), PAGE + size))
        arrays = [self._arrangement.arrays_in(self._peers[one]) for one in found]
        inputs = [[flats[number][part] for flats in arrays] for number, part in enumerate(slices)]
        return _Sources(members, inputs, slices, told)


def _is_one_update(members: Sequence[Entry]) -> bool:
    """Return True if all members do the same with the sum; False if some are in no step: then the
    round comes to nothing, and the control word says why. In a step it is a UsageError."""
    updates = {member.read(UPDATE) for member in members}
    if len(updates) == 1:
        return True
    if 0 in updates:
        return False
    raise UsageError(
        "two workers update the parameters that they share in different ways: give the "
        "optimizer the same learning rate on all workers in every step"
    )
