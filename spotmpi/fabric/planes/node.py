"""The data plane of workers that share the memory of their hosts.

Every worker's contributions lie where its neighbours can read them. When all have come with theirs,
each sums its slice over all of them, in the order of the members, into one result for all; when all
slices are there, the round is through. So a round costs one reading of every contribution and one
writing of the result, and after a failure the survivors' contributions are as they were.

Results take turns: while the next is summed, the last one, the record, stays as it is. What is
small, such as the control word, is summed by everybody for itself.

If there are several hosts, each has a result of its own, and each worker's slice is summed on its
way round the hosts (`rings`). That is worth it for large arrays. What is small is summed by the
first of each host, which tells those of the others. The rest goes by MPI.

Who waits sleeps, and looks now and then whether somebody is lost (`meetings`). Arenas without
a name and tiny models go by MPI, and so does everything if workers of one host cannot reach each
other's memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.errors import PeersLost, SpotmpiError
from spotmpi.fabric.planes.beside import Beside
from spotmpi.fabric.planes.desks import DESCRIPTOR, HOME, HOME_MARK, MARK, OPEN, Desk
from spotmpi.fabric.planes.meetings import Meetings
from spotmpi.fabric.planes.plane import Arena, Handle, Part, Plane, Shape, Ways, private_arena
from spotmpi.fabric.planes.rings import Rings
from spotmpi.fabric.planes.shared_memory import PAGE, Found, Memory, Segment, bytes_of
from spotmpi.fabric.planes.watched import Watched
from spotmpi.protocol.host_ring import cut
from spotmpi.protocol.membership import WorkerId

__all__ = ["Node"]

_LOG = logging.getLogger(__name__)

_SUMMED = ("float32", "float64")
"""What there are kernels for."""

_WORTH_IT = 1024
"""Elements of an array, from which on waiting without MPI is worth the time to load Numba."""

_SMALL = 512
"""Elements of arrays that everybody sums for itself, or with several hosts the first of each."""

_BETWEEN = 1 << 18
"""Bytes of an arena from which on rings between hosts are faster than MPI: at 1 Gbit/s, between 3
and 4 hosts (`bench allreduce`)."""

_EVIDENCE = 2.0
"""Seconds in which a loss must be known that keeps memory from being reached."""

_CARD = struct.Struct("<qqqqq")
"""A worker's process, its desk's descriptor and mark, its host, and how often it was bound."""


class _SharedArena(Arena):
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
        self.small = max(shape.size for shape in layout) <= _SMALL
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

    def reaches_all(self, bindings: int, node: Node) -> bool:
        """Whether all of this host have shared one like this, after all have started a part."""
        if self._bindings != bindings:
            self._look_around(node)
            self._bindings = bindings
        return self._inputs is not None

    def sum(self, number: int, rings: Rings | None) -> None:
        """Do this worker's share of an array that all have brought."""
        assert self._inputs is not None
        result = self.results[number][self._slices[number]]
        weights = [desk.weight(entry) for desk, entry in self._members]
        brought = [
            (one, weight)
            for one, weight in zip(self._inputs[number], weights, strict=True)
            if weight  # what does not count may be anything, NaN too
        ]
        narrowing = self.layout[number].narrowing
        if rings is not None and not self.small:
            rings.sum(brought, result, narrowing)
            return
        if narrowing is not None:
            narrowing.begin([])
        if rings is not None and not rings.leads:
            return  # it takes what the first of its host leaves
        if result.size and brought:
            HOST.kernels.scaled_sum(result, *map(list, zip(*brought, strict=True)))
        elif result.size:
            result.fill(0)
        if rings is not None and self.small:
            rings.add_up(result)
            self._told[number][:] = result

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

    def _look_around(self, node: Node) -> None:
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
        self, members: Sequence[tuple[Desk, int]], found: Sequence[Found], node: Node
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


@dataclass
class _Call:
    """A part that was started."""

    part: Part
    number: int = 0
    """As it stands in desks; 0 of one that no desk tells of."""
    name: str = ""
    """Of its arena."""
    index: int = 0
    """Which array of it."""
    summed: bool = False
    """Its share was done beside the worker."""


class Node(Plane):
    """For members that share the memory of their hosts; as `Plain` for all others."""

    between = _BETWEEN
    """Bytes of an arena that goes by rings if there are several hosts."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._own: Desk | None = None
        try:
            self._own = Desk.new()
        except (OSError, SpotmpiError) as error:
            _LOG.info("no memory is shared with other workers: %s", error)
        self._desks: dict[WorkerId, Desk] = {}
        """Of all whose memory can be reached from here."""
        self._watched = Watched()
        self._marks: dict[WorkerId, int] = {}
        """By which hosts are told apart, of all who were ever there."""
        self.present: list[Desk] = []
        """Of this host's members, if all members reach their neighbours'; or else empty."""
        self.rings: Rings | None = None
        """Between the hosts, if there are several."""
        self._members, self._together = 0, False
        self._agreed: dict[str, bool] = {}
        """Of arenas that go between hosts: whether all members share theirs."""
        self._bindings = 0
        """How often members were bound: the higher half of all numbers in desks."""
        self._begun = 0
        self._last: Handle = 0
        self._started: dict[Handle, _Call] = {}
        self._beside: Beside[_Call] | None = None
        """Sums while the worker does something else."""
        self._handed: Handle = 0
        """The last that it was given."""
        self._arenas: dict[str, Arena] = {}
        """Those that have a name; the last of each."""
        self._places: dict[int, tuple[str, int]] = {}
        """Of their contributions, by `id`: which arena, which array."""
        self.meetings = Meetings(self._in_vain)

    # Who is there.

    def card(self) -> bytes:
        """How the others reach this worker's desk."""
        found = Found(0, 0, 0) if self._own is None else self._own.found
        return _CARD.pack(*found, self.host(), self._bindings)

    @staticmethod
    def host() -> int:
        """By what this worker's host is told from others: they have lines between them. A worker
        whose line is cut must not go on by memory, so a network is a host of its own."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        network = os.stat("/proc/self/ns/net").st_ino
        digest = hashlib.blake2b(boot + network.to_bytes(8, "little"), digest_size=7).digest()
        return int.from_bytes(digest, "little")

    def reach(self, cards: Mapping[WorkerId, bytes]) -> bool:
        """Whether the memory of all these can be reached from here that are on this host."""
        read = {worker: _CARD.unpack_from(card) for worker, card in cards.items()}
        self._bindings = max(self._bindings, *(bindings for *_, bindings in read.values()))
        here = self.host()
        for worker, (*numbers, host, _) in read.items():
            found = Found(*numbers)
            self._marks[worker] = host
            if host != here:
                if self._ways.line is None:
                    return False
                continue
            known = self._desks.get(worker)
            if known is not None and known.found == found:
                continue
            try:
                own = self._own
                if own is not None and own.found == found:
                    self._desks[worker] = own
                else:  # watched first: what is found then is this process's
                    self._watched.follow(worker, found.process)
                    self._desks[worker] = Desk.of(found)
            except (OSError, SpotmpiError) as error:
                # Where it runs, the number of its process may be another's here.
                self._watched.forget([worker])
                _LOG.info("the memory of worker %d cannot be reached: %s", worker, error)
                return False
        return Meetings.possible

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """From now on these are summed over."""
        if self._started:
            raise RuntimeError(f"{len(self._started)} parts are under way among other members")
        self._bindings += 1
        self._begun = 0
        self._members, self._together = len(members), together
        self._desks = {one: desk for one, desk in self._desks.items() if one in members}
        self._watched.keep(members)
        self._agreed = {}
        self.present, self.rings = [], None
        if together:
            hosts = self._by_host(members)
            me = next(one for one, desk in self._desks.items() if desk is self._own)
            self.present = [self._desks[one] for host in hosts if me in host for one in host]
            if len(hosts) > 1:
                assert self._ways.line is not None
                self.rings = Rings(hosts, me, self._ways.line)
            _LOG.info("%d workers share the memory of %d hosts", len(members), len(hosts))
        else:
            _LOG.info("%d workers do not share memory", len(members))
        for arena in self._arenas.values():
            if isinstance(arena, _SharedArena) and not (together and self._is_shared(arena)):
                arena.part()
        self.meetings.seat(self.present)

    def _by_host(self, workers: Sequence[WorkerId]) -> list[list[WorkerId]]:
        hosts: dict[int, list[WorkerId]] = {}
        for one in workers:
            hosts.setdefault(self._marks[one], []).append(one)
        return list(hosts.values())

    def hosts(self, workers: Sequence[WorkerId], part: Part) -> list[list[WorkerId]]:
        """As they are by now known to be; some of them may be lost."""
        name, _ = self._places.get(id(part.contribution), ("", 0))
        arena = self._arenas.get(name)
        if not (self._together and isinstance(arena, _SharedArena) and arena.shared):
            return []
        hosts = self._by_host(workers)
        return hosts if len(hosts) > 1 and self._goes_round(arena) else []

    def _is_shared(self, arena: Arena) -> bool:
        """Whether it is worth it; the same for all members. What is small goes along with others
        on one host, and by MPI between hosts, out of memory that nobody shares."""
        if self.rings is None or _is_small(arena.contributions):
            return True
        return self._goes_round(arena)

    def _goes_round(self, arena: Arena) -> bool:
        size = sum(int(one.nbytes) for one in arena.contributions)
        return size >= self.between and not _is_small(arena.contributions)

    # Rounds.

    def arena(self, layout: Sequence[Shape], name: str = "") -> Arena:
        """Memory that others can read, if it has a name."""
        if isinstance(old := self._arenas.pop(name, None), _SharedArena):
            old.part()  # or others would find it, and wait for who uses it no more
        fits = all(shape.backend is HOST and shape.dtype in _SUMMED for shape in layout)
        large = max((shape.size for shape in layout), default=0) >= _WORTH_IT
        # Layouts are the same on all workers once they have compared them. Until then there are no
        # rounds but such as carry unnamed parts and small ones, which go by MPI.
        if not (name and fits and Meetings.possible and (large or self.meetings.loaded)):
            return private_arena(layout, in_place=True)
        self.meetings.load()
        for shape in layout:
            if shape.narrowing is not None:
                shape.narrowing.warm()
        made = self._shared(layout, name) or private_arena(layout, in_place=True)
        self._arenas[name] = made
        self._agreed.pop(name, None)
        self._places = {
            id(contribution): (of, index)
            for of, arena in self._arenas.items()
            for index, contribution in arena.every_contribution()
        }
        return made

    def _shared(self, layout: Sequence[Shape], name: str) -> Arena | None:
        """None: nobody shares this one, as the others will see."""
        if self._own is None or (self._desks and not self.present):
            return None
        what = repr([name, [(shape.dtype, shape.size) for shape in layout]]).encode()
        key = int.from_bytes(hashlib.blake2b(what, digest_size=7).digest(), "little") + 1
        try:
            return _SharedArena(self._own, key, layout)
        except (OSError, SpotmpiError) as error:
            _LOG.warning("sums of %r go by MPI and are slower: %s", name, error)
            return None

    def start(self, part: Part) -> Handle:
        """Tell the others that the contribution is there; returns at once."""
        if self._beside is not None and isinstance(self._beside.failure, PeersLost):
            raise self._beside.failure
        self._last += 1
        call = self._started[self._last] = _Call(part)
        if self.present and (place := self._places.get(id(part.contribution))) is not None:
            call.name, call.index = place
            arena = self._arenas[call.name]
            if self._meets(arena):
                if isinstance(arena, _SharedArena):
                    arena.show(part.weight)
                self._begun += 1
                call.number = self._bindings << 32 | self._begun
                self.meetings.ready(self._own_desk, call.number)
        return self._last

    def _meets(self, arena: Arena) -> bool:
        """Whether this host's members wait for each other to sum it; the same for all members."""
        if self.rings is not None:
            return self._goes_round(arena) or _is_small(arena.contributions)
        # A small arena goes along with something large, or else by MPI.
        large = not _is_small(arena.contributions)
        return large or any(other.number for other in self._started.values())

    def proceed(self) -> None:
        """In a thread, unless MPI was started without threads."""
        if not self._ways.threads:
            return
        for handle, call in self._started.items():
            if handle > self._handed:
                if self._beside is None:
                    self._beside = Beside(self._ahead, "spotmpi sums")
                self._beside.give(call)
                self._handed = handle

    def _ahead(self, call: _Call) -> bool:
        """Do this worker's share. Not where it is yet to be seen whether all share the arena, or
        where MPI sums: that is left to `wait`, and with it all that comes later."""
        arena = self._arenas.get(call.name)
        if not (
            call.number
            and isinstance(arena, _SharedArena)
            and not arena.small
            and arena.reached(self._bindings)
            and (self.rings is None or self._agreed.get(call.name))
        ):
            return False
        self.meetings.all_ready(call.number)
        arena.sum(call.index, self.rings)
        call.summed = True
        return True

    def wait(self, handles: Sequence[Handle]) -> None:
        """In the order in which they were started: the same for all members."""
        if self._beside is not None:
            beside, self._beside = self._beside, None
            beside.end()
        last, to_take = 0, []
        for handle in sorted(handles):
            call = self._started[handle]
            if call.number:
                last = call.number
            if call.summed:
                continue
            if call.number:
                self.meetings.all_ready(last)
            if not (call.number and self._sum(call)):
                self._total(call.part)
            elif self.rings is not None and not self.rings.leads:
                to_take.append(call)
        if last:
            self.meetings.done(self._own_desk, last)
            self.meetings.all_done(last)
        for call in to_take:
            arena = self._arenas[call.name]
            if isinstance(arena, _SharedArena) and arena.small:
                arena.take(call.index)
        for handle in handles:
            del self._started[handle]

    def cancel(self, handles: Sequence[Handle]) -> None:
        """They are forgotten: nothing is done but in `wait`. What is under way between hosts comes
        to room of these rings, which are not used again."""
        if self._beside is not None:
            if self.rings is not None:
                self.rings.halted = True
            self._beside.halt()
            self._beside = None
        for handle in handles:
            self._started.pop(handle, None)
        if self._ways.line is not None:
            self._ways.line.give_up()

    def dead(self) -> Collection[WorkerId]:
        """Neighbours."""
        return self._watched.dead

    def interrupt(self) -> None:
        """Wake who sleeps, to see that the data path is revoked."""
        self.meetings.wake()

    def is_everywhere(self, buffer: Buffer) -> bool:
        """Whether it is the same memory for all members."""
        if self.rings is not None:
            return False
        arenas = self._arenas.values()
        shared = [arena for arena in arenas if isinstance(arena, _SharedArena)]
        return any(buffer is one for arena in shared for one in arena.common)

    @property
    def _own_desk(self) -> Desk:
        assert self._own is not None
        return self._own

    def _sum(self, call: _Call) -> bool:
        found = self._arenas[call.name]
        arena = found if isinstance(found, _SharedArena) else None
        shared = arena is not None and arena.reaches_all(self._bindings, self)
        if self.rings is not None:
            if call.name not in self._agreed:
                self._agreed[call.name] = self._all(shared)
            shared = self._agreed[call.name]
        if arena is not None:
            if shared:
                arena.sum(call.index, self.rings)
            else:
                arena.part()
        return shared

    def _total(self, part: Part) -> None:
        if part.narrowing is not None:
            part.narrowing.begin([])
        self._ways.total(part)

    def _all(self, flag: bool) -> bool:
        """Whether all members say so. Collective."""
        word = HOST.zeros("float64", 1)
        word[0] = flag
        self._ways.total(Part(word, word))
        return int(word[0]) == self._members

    def _in_vain(self) -> bool:
        """Whether who waits for others is to leave off."""
        if self._watched.dead or self._ways.broken():
            return True
        return self._beside is not None and self._beside.halted

    # For arenas.

    def reached(self, found: Found, length: int) -> Segment:
        """A member's segment. Raises PeersLost if that is lost."""
        until = time.monotonic() + _EVIDENCE
        while True:
            try:
                return Segment.reach(found, length)
            except OSError as error:
                if self._in_vain():
                    raise PeersLost("a worker is lost whose memory was to be shared") from None
                if time.monotonic() > until:
                    raise SpotmpiError(f"memory for rounds cannot be shared: {error}") from error
                time.sleep(1e-3)


def _is_small(buffers: Sequence[Buffer]) -> bool:
    return all(len(buffer) <= _SMALL for buffer in buffers)
