"""The data plane of workers that share the memory of their hosts.

Neighbours (workers of one host) can read each other's contributions. When all have started a part,
each sums its slice over all contributions, in the order of the members, into one result for all.
When all slices are there, the part is done. So a round reads every contribution once and writes the
result once. After a failure the survivors' contributions are as they were.

Two results take turns: while the next one is summed, the last one, the record, stays as it is. Each
worker sums small arrays, such as the control word, by itself.

With several hosts, each has its own result, and sums travel between them (`rings`): large arrays in
rings, others straight, small ones by the first workers of the hosts. If it is not clear which way
is fastest, all are tried in the first rounds after a change of the members.

A worker that waits sleeps, and looks for losses after each sleep (`host_barrier`). Arenas without a
name and tiny models go by MPI; so does everything if workers of one host cannot share memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.errors import PeersLost, SpotmpiError
from spotmpi.fabric.planes.double_buffer import DoubleBuffer, possible
from spotmpi.fabric.planes.host_barrier import HostBarrier
from spotmpi.fabric.planes.neighbours import Neighbours
from spotmpi.fabric.planes.plane import (
    Arena,
    Between,
    Handle,
    Part,
    Plane,
    Shape,
    Ways,
    private_arena,
)
from spotmpi.fabric.planes.rings import MESSAGE, Rings
from spotmpi.fabric.planes.shared_arena import SMALL, SharedArena
from spotmpi.fabric.planes.shared_header import SharedHeader, key_of
from spotmpi.fabric.planes.shared_memory import Found, Segment, bytes_of
from spotmpi.fabric.planes.sum_thread import SumThread
from spotmpi.kernels import cpu, moving
from spotmpi.protocol.host_ring import FIRST, RING, STRAIGHT
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.trials import Choice, Trial

__all__ = ["TRIED", "SharedMemoryPlane", "ways_of"]

_LOG = logging.getLogger(__name__)

_SUMMED = ("float32", "float64")
"""The dtypes for which there are kernels."""

_WORTH_IT = 1024
"""Elements of an array from which on it is worth the time to load Numba, to wait without MPI."""

_LARGE = 4 << 20
"""Bytes of an array that always goes in rings if there are several hosts."""

_TURNS = 4
"""Rounds of each way that count in a trial of the fastest way."""

TRIED = 2 * (_TURNS + 1)
"""Rounds with the same members in which ways are tried; there are never more than two ways."""

_EVIDENCE = 2.0
"""Seconds to wait for news of a loss if memory cannot be reached; without news it is an error."""


def ways_of(shape: Shape) -> Sequence[str]:
    """Return the ways that such an array may take between hosts. Several ways are tried."""
    size = bytes_of(shape.dtype, shape.size)
    if shape.size <= SMALL:
        return (FIRST,)
    if size >= _LARGE or shape.narrowing is not None:
        return (RING,)
    return (FIRST, STRAIGHT) if size <= MESSAGE else (STRAIGHT, RING)


@dataclass
class _Tried:
    """The trial of an array that may take several ways."""

    trial: Trial
    begun: int = 0
    """The number of sums that were started."""
    seconds: list[float] = field(default_factory=list)
    """The times of the sums on this worker, until a way is chosen."""


@dataclass
class _Named:
    """An arena with a name, and what is known of it."""

    arena: Arena
    agreed: bool | None = None
    """True if all members share theirs; None: not known yet, or sums stay on this host."""
    went: dict[int, str] = field(default_factory=dict)
    """The way by which each array is being summed, or was last."""
    tried: dict[int, _Tried] = field(default_factory=dict)
    """The trials of arrays that may take several ways, among these members."""


@dataclass
class _Call:
    """A part that was started."""

    part: Part
    number: int = 0
    """Its number in headers; 0 if it stands in no header."""
    named: _Named | None = None
    """What is known of its arena; None if that has no name, or nothing is shared."""
    way: str = ""
    """The way of its sum between hosts; empty if it does not go from host to host."""
    summed: bool = False
    """True if the thread has done this worker's share."""


class SharedMemoryPlane(Plane):
    """For members that share the memory of their hosts; for all others MPI sums in place."""

    ways_of: Callable[[Shape], Sequence[str]] = staticmethod(ways_of)
    """The ways that an array may take between hosts."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self.neighbours = Neighbours(_new_header(), ways.line is not None)
        self.rings: Rings | None = None
        """The rings between hosts, if there are several."""
        self._members = 0
        self._begun = 0
        self._last: Handle = 0
        self._started: dict[Handle, _Call] = {}
        self._thread: SumThread[_Call] | None = None
        """The thread that sums while the worker does something else."""
        self._handed: Handle = 0
        """The handle of the last part that the thread was given."""
        self._arenas: dict[str, _Named] = {}
        """The last arena of each name."""
        self.barrier = HostBarrier(self._hopeless)

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Sum over these members from now on."""
        if self._started:
            raise RuntimeError(f"{len(self._started)} parts are under way among other members")
        self._begun = 0
        self._members = len(members)
        self.neighbours.bind(members, together)
        self.rings = None
        if together:
            hosts = self.neighbours.by_host(members)
            if len(hosts) > 1:
                assert self._ways.line is not None
                self.rings = Rings(hosts, self.neighbours.me, self._ways.line)
            _LOG.info("%d workers share the memory of %d hosts", len(members), len(hosts))
        else:
            _LOG.info("%d workers do not share memory", len(members))
        for named in self._arenas.values():
            named.agreed, named.tried = None, {}
            if isinstance(named.arena, SharedArena):
                if not together:
                    named.arena.unshare()
                self._tell_place(named.arena)
        self.barrier.join(self.neighbours.present)

    def _tell_place(self, arena: SharedArena) -> None:
        arena.alone = bool(self.neighbours.present) and self.rings is None
        arena.first = arena.alone and self.neighbours.place == 0

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return how these parts were summed last, also if workers were lost since then."""
        ways, choices = list[str](), list[Choice | None]()
        for part in parts:
            if (named := self._named(part)) is None:
                return None
            tried = named.tried.get(part.number)
            ways.append(named.went.get(part.number, ""))
            choices.append(None if tried is None else tried.trial.choice)
        return Between(self.neighbours.by_host(workers), ways, choices) if all(ways) else None

    def _named(self, part: Part) -> _Named | None:
        """Return what is known of a part's arena; None if that has no name, or another arena has it
        by now."""
        named = None if part.arena is None else self._arenas.get(part.arena.name)
        return named if named is not None and named.arena is part.arena else None

    def _way(self, named: _Named, index: int) -> str:
        """Return the way of an array that is started now; the same on all members."""
        if self.rings is None or named.agreed is False:
            return ""
        ways = self.ways_of(named.arena.layout[index])
        if len(ways) == 1:
            return ways[0]
        if (tried := named.tried.get(index)) is None:
            tried = named.tried[index] = _Tried(Trial(ways, self.rings.workers, _TURNS))
        tried.begun += 1
        return tried.trial.way(tried.begun - 1)

    def _choose(self) -> None:
        """Choose a way for each array for which all ways were tried. Collective."""
        # Sorted, as it is collective: members may have made their arenas in different orders.
        arrays = [
            (named, index, tried)
            for _, named in sorted(self._arenas.items())
            for index, tried in sorted(named.tried.items())
        ]
        for named, index, tried in arrays:
            trial = tried.trial
            if trial.choice is None and len(tried.seconds) == trial.rounds:
                assert self.rings is not None
                members = self._members
                table = HOST.zeros("float64", members * trial.rounds)
                table[self.rings.member :: members] = tried.seconds
                self._ways.total(Part(table, table))
                times = table.reshape(trial.rounds, members).tolist()
                size = named.arena.contributions[index].nbytes
                choice = trial.choose(int(size), times)
                name = named.arena.name
                _LOG.info("sums of %r, %d, go between hosts: %s", name, index, choice)

    # Rounds.

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Return memory that others can read, if it has a name and is worth it."""
        old = self._arenas.pop(name, None)
        if old is not None and isinstance(old.arena, SharedArena):
            old.arena.unshare()  # or others would find it, and wait for who uses it no more
        fits = all(shape.backend is HOST and shape.dtype in _SUMMED for shape in layout)
        large = max((shape.size for shape in layout), default=0) >= _WORTH_IT
        # Workers compare layouts, so these are the same on all. Before that, rounds have only
        # unnamed parts and small ones, which go by MPI.
        if not (name and fits and HostBarrier.possible and (large or self.barrier.loaded)):
            return private_arena(layout, in_place=True)
        self.barrier.load()
        for shape in layout:  # or others would wait for this in a round
            if shape.size >= _WORTH_IT:
                cpu.warm(shape.dtype)
            if shape.narrowing is not None:
                shape.narrowing.warm()
            if state is not None:
                moving.warm(shape.dtype)
        made = self._shared(layout, name, state) or private_arena(layout, in_place=True)
        made.name = name
        self._arenas[name] = _Named(made)
        return made

    def _shared(
        self, layout: Sequence[Shape], name: str, state: DoubleBuffer | None
    ) -> Arena | None:
        """Return a shared arena; None: nobody shares this one, as the others will see."""
        own = self.neighbours.own
        if own is None or self.neighbours.apart:
            return None
        if state is not None and not possible():
            state = None  # others that can exchange pages have another key for the arena
        size = 0 if state is None else state.bytes
        key = key_of(name, [(shape.dtype, shape.size) for shape in layout], size)
        try:
            made = SharedArena(own, key, layout, state)
        except (OSError, SpotmpiError) as error:
            _LOG.warning("sums of %r go by MPI and are slower: %s", name, error)
            return None
        self._tell_place(made)
        return made

    def start(self, part: Part) -> Handle:
        """Tell the others that the contribution is there; returns at once."""
        if self._thread is not None and isinstance(self._thread.failure, PeersLost):
            raise self._thread.failure
        self._last += 1
        call = self._started[self._last] = _Call(part)
        if self.neighbours.present and (named := self._named(part)) is not None:
            call.named = named
            call.way = named.went[part.number] = self._way(named, part.number)
            if self._meets(named.arena):
                if isinstance(named.arena, SharedArena):
                    named.arena.show(part.weight)
                self._begun += 1
                call.number = self.neighbours.bindings << 32 | self._begun
                self.barrier.ready(self._header, call.number)
        return self._last

    def _meets(self, arena: Arena) -> bool:
        """Return True if this host's members wait for each other to sum it; the same on all."""
        # On one host a small arena goes along with a large one, or else by MPI.
        large = self.rings is not None or not _is_small(arena.contributions)
        return large or any(other.number for other in self._started.values())

    def proceed(self) -> None:
        """Sum in a thread, unless MPI was started without threads."""
        if not self._ways.threads:
            return
        for handle, call in self._started.items():
            if handle > self._handed:
                if self._thread is None:
                    self._thread = SumThread(self._sum_early, "spotmpi sums")
                self._thread.give(call)
                self._handed = handle

    def _sum_early(self, call: _Call) -> bool:
        """Do this worker's share in the thread. Return False to leave it, and all later parts, to
        `wait`: if it is not known yet that all share the arena, or if MPI sums."""
        named = call.named
        if named is None:
            return False
        arena = named.arena
        if not (
            call.number
            and isinstance(arena, SharedArena)
            and not arena.small
            and arena.reached(self.neighbours.bindings, call.part)
            and (self.rings is None or named.agreed)
        ):
            return False
        self.barrier.all_ready(call.number)
        self._sum_of(named, arena, call)
        call.summed = True
        return True

    def wait(self, handles: Sequence[Handle]) -> None:
        """Wait for these in the order in which they were started: the same for all members."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.end()
        last, to_take = 0, list[tuple[Arena, int]]()
        for handle in sorted(handles):
            call = self._started[handle]
            if call.number:
                last = call.number
            if call.summed:
                continue
            if call.number:
                self.barrier.all_ready(last)
            named = call.named
            if not (call.number and named is not None and self._sum(named, call)):
                self._total(call.part)
                if named is not None and isinstance(named.arena, SharedArena):
                    named.arena.whole(call.part)
            elif self.rings is not None and not self.rings.leads:
                to_take.append((named.arena, call.part.number))
        if last:
            self.barrier.done(self._header, last)
            self.barrier.all_done(last)
        for arena, number in to_take:
            if isinstance(arena, SharedArena) and arena.small:
                arena.take(number)
        for handle in handles:
            del self._started[handle]
        self._choose()

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Forget these, and end the thread: nothing else is done outside `wait`. Messages under way
        between hosts come to rooms of these rings, which are not used again."""
        if self._thread is not None:
            if self.rings is not None:
                self.rings.halted = True
            self._thread.halt()
            self._thread = None
        for handle in handles:
            self._started.pop(handle, None)
        if self._ways.line is not None:
            self._ways.line.give_up()

    def interrupt(self) -> None:
        """Wake workers that sleep, so that they see that the data path is revoked."""
        self.barrier.wake()

    def is_everywhere(self, buffer: Buffer) -> bool:
        """Return True if ``buffer`` is the same memory for all members."""
        if self.rings is not None:
            return False
        arenas = [named.arena for named in self._arenas.values()]
        shared = [arena for arena in arenas if isinstance(arena, SharedArena)]
        return any(buffer is one for arena in shared for one in arena.common)

    @property
    def _header(self) -> SharedHeader:
        assert self.neighbours.own is not None
        return self.neighbours.own

    def _sum(self, named: _Named, call: _Call) -> bool:
        arena = named.arena if isinstance(named.arena, SharedArena) else None
        shared = arena is not None and arena.reaches_all(self, call.part)
        if self.rings is not None:
            if named.agreed is None:
                named.agreed = self._all(shared)
            shared = named.agreed
            if not shared:
                named.went[call.part.number] = ""
                named.tried.pop(call.part.number, None)
        if arena is not None:
            if shared:
                self._sum_of(named, arena, call)
            else:
                arena.unshare()
        return shared

    def _sum_of(self, named: _Named, arena: SharedArena, call: _Call) -> None:
        began = time.perf_counter()
        arena.sum(call.part.number, self.rings, call.way, call.part)
        tried = named.tried.get(call.part.number)
        if tried is not None and tried.trial.choice is None:
            tried.seconds.append(time.perf_counter() - began)

    def _total(self, part: Part) -> None:
        if part.narrowing is not None:
            part.narrowing.begin([])
        self._ways.total(part)

    def _all(self, flag: bool) -> bool:
        """Return True if ``flag`` is true on all members. Collective."""
        word = HOST.zeros("float64", 1)
        word[0] = flag
        self._ways.total(Part(word, word))
        return int(word[0]) == self._members

    def _hopeless(self) -> bool:
        """Return True if a worker that waits for others must leave off."""
        if self.neighbours.dead() or self._ways.broken():
            return True
        return self._thread is not None and self._thread.halted

    # For arenas.

    def reached(self, found: Found, length: int) -> Segment:
        """Return a member's segment. Raises PeersLost if that member is lost."""
        until = time.monotonic() + _EVIDENCE
        while True:
            try:
                return Segment.reach(found, length)
            except OSError as error:
                if self._hopeless():
                    raise PeersLost("a worker is lost whose memory was to be shared") from None
                if time.monotonic() > until:
                    raise SpotmpiError(f"memory for rounds cannot be shared: {error}") from error
                time.sleep(1e-3)


def _new_header() -> SharedHeader | None:
    """Return a header for this worker; None if it cannot share memory."""
    if not HostBarrier.possible:
        return None
    try:
        return SharedHeader.new()
    except (OSError, SpotmpiError) as error:
        _LOG.info("no memory is shared with other workers: %s", error)
        return None


def _is_small(buffers: Sequence[Buffer]) -> bool:
    return all(len(buffer) <= SMALL for buffer in buffers)
