"""The data plane of workers that share the memory of their hosts.

Neighbours (workers of one host) can read each other's contributions. When all have started a part,
each sums its slice over all contributions, in the order of the members, into one result for all.
When all slices are there, the part is done. So a round reads every contribution once and writes the
result once. After a failure the survivors' contributions are as they were.

Two results take turns: while the next one is summed, the last one, the record, stays as it is. Each
worker sums small arrays, such as the control word, by itself.

With several hosts, each has its own result, and sums travel between them (`rings`): large arrays in
rings, others straight, small ones by the first workers of the hosts; what one worker brings is
given on as it is. If several ways may be the fastest, all are tried after a change of the members.

A worker that waits sleeps, and looks for losses after each sleep (`host_barrier`). Arenas without a
name are not shared, and small ones only if a large one goes before them in the same round. What is
not shared goes by rows (`unshared_sums`) if it is small, and all members are on one host and have
summed a large array before. MPI sums the rest, or all if workers of a host cannot share memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.arrays.word_view import WordView
from spotmpi.errors import PeersLost, SpotmpiError
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.neighbours.shared_header import SharedHeader, key_of
from spotmpi.fabric.neighbours.shared_memory import Found, Segment
from spotmpi.fabric.planes.double_buffer import DoubleBuffer, possible
from spotmpi.fabric.planes.host_barrier import HostBarrier
from spotmpi.fabric.planes.named_arena import NamedArena, ways_of
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
from spotmpi.fabric.planes.rings import Rings
from spotmpi.fabric.planes.shared_arena import SharedArena
from spotmpi.fabric.planes.sum_thread import SumThread
from spotmpi.fabric.planes.unshared_sums import UnsharedSums
from spotmpi.kernels import cpu, moving
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.trials import Choice

__all__ = ["SharedMemoryPlane"]

_LOG = logging.getLogger(__name__)

_SUMMED = ("float32", "float64", "uint32")
"""The dtypes for which there is a kernel that adds up."""

_WORTH_IT = 1024
"""Fewest elements of an array for which it is worth loading Numba, to wait without MPI."""

_EVIDENCE = 2.0
"""Seconds to wait for news of a loss if memory cannot be reached; without news it is an error."""


@dataclass(eq=False)
class _Call:
    """A part that was started."""

    part: Part
    number: int = 0
    """Its number in headers; 0 if it stands in no header."""
    named: NamedArena | None = None
    """What is known of its arena; None if that has no name, or nothing is shared."""
    way: str = ""
    """The way of its sum between hosts; empty if it does not go from host to host."""
    summed: SharedArena | None = None
    """Its arena, once the thread has done this worker's share."""


class SharedMemoryPlane(Plane):
    """Sums in the memory of hosts. What their workers cannot share is summed in other ways."""

    ways_of: Callable[[Shape], Sequence[str]] = staticmethod(ways_of)
    """The ways that an array may take between hosts."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self.neighbours = Neighbours(_new_header(), ways.line is not None)
        self.rings: Rings | None = None
        """The rings between hosts, if there are several."""
        self._begun = 0
        self._last: Handle = 0
        self._started: dict[Handle, _Call] = {}
        self._thread: SumThread[_Call] | None = None
        """The thread that sums while the worker does something else."""
        self._handed: Handle = 0
        """The handle of the last part that the thread was given."""
        self._arenas: dict[str, NamedArena] = {}
        """The last arena of each name."""
        self.barrier = HostBarrier(self._hopeless)
        self._unshared = UnsharedSums(self.neighbours, self.barrier, ways.total)

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Sum over these members from now on."""
        if self._started:
            raise RuntimeError(f"{len(self._started)} parts are under way among other members")
        self._begun = 0
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
            named.begin_again()
            if isinstance(named.arena, SharedArena):
                if not together:
                    named.arena.unshare()
                self._tell_place(named.arena)
        self.barrier.join(self.neighbours.present)
        self._unshared.bind()

    def _tell_place(self, arena: SharedArena) -> None:
        arena.alone = bool(self.neighbours.present) and self.rings is None
        arena.first = arena.alone and self.neighbours.place == 0

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return how these parts were summed last, also if workers were lost since then."""
        ways, choices = list[str](), list[Choice | None]()
        for part in parts:
            if (named := self._named(part)) is None:
                return None
            way, choice = named.last(part.number)
            ways.append(way)
            choices.append(choice)
        return Between(self.neighbours.by_host(workers), ways, choices) if all(ways) else None

    def _named(self, part: Part) -> NamedArena | None:
        """Return what is known of a part's arena; None if that has no name, or another arena has it
        by now."""
        named = None if part.arena is None else self._arenas.get(part.arena.name)
        return named if named is not None and named.arena is part.arena else None

    # Rounds.

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return memory that others can read, if it has a name and is worth it."""
        old = self._arenas.pop(name, None)
        if old is not None and isinstance(old.arena, SharedArena):
            old.arena.unshare()  # or others would find it, and wait for who uses it no more
        fits = all(shape.backend is HOST and shape.dtype in _SUMMED for shape in layout)
        # Workers compare layouts, so these are the same on all. Before that, rounds have only
        # unnamed parts and small ones, which are not shared.
        if not (name and fits and HostBarrier.possible):
            return private_arena(layout, in_place=True)
        large = any(shape.size >= _WORTH_IT for shape in layout)
        if large:
            self.barrier.load()
            cpu.warm(WordView.dtype)  # for pages: all would wait for it when a newcomer comes
        else:
            state = None  # Numba is loaded here or is not: so not all would fuse an update
        made = None
        if self.barrier.loaded:
            for shape in layout:  # or others would wait for this in a round
                if shape.size >= _WORTH_IT:
                    cpu.warm(shape.dtype)
                if shape.narrowing is not None:
                    shape.narrowing.warm()
                if state is not None:
                    moving.warm(shape.dtype)
            made = self._shared(layout, name, state)
        if made is None:
            made = private_arena(layout, in_place=True)
        made.name = name
        self._arenas[name] = NamedArena(made, large)
        return made

    def release(self, arena: Arena) -> None:
        """Forget this arena, unless another one has its name by now."""
        named = self._arenas.get(arena.name)
        if named is not None and named.arena is arena:
            del self._arenas[arena.name]
            if isinstance(arena, SharedArena):
                arena.hide()

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
        named = self._named(part) if self.neighbours.present else None
        if named is not None and self._meets(named):
            call.named = named
            ways = () if self.rings is None else self.ways_of(named.arena.layout[part.number])
            call.way = named.start(part.number, ways, self.rings)
            if isinstance(named.arena, SharedArena):
                named.arena.show()
            self._begun += 1
            call.number = self.neighbours.bindings << 32 | self._begun
            self.barrier.ready(self._header, call.number)
        return self._last

    def _meets(self, named: NamedArena) -> bool:
        """Return True if this host's members wait for each other to sum it; the same on all."""
        # A small arena goes along with a large one, or else as if not shared. If it is shared does
        # not count: only workers that have loaded Numba share it, and a newcomer may not have.
        return named.large or any(other.number for other in self._started.values())

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
        `wait`: if its arena has no name or not all share it, or if not all are known to share the
        state that it goes into."""
        named = call.named
        if named is None:
            return False
        arena = named.arena
        if not isinstance(arena, SharedArena) or not arena.reaches_state(call.part):
            return False
        self.barrier.all_ready(call.number)
        if not self._all_share(named, arena, call.part):
            return False
        self._sum_of(named, arena, call)
        call.summed = arena
        if arena.small:  # as the control word is, behind all else: nobody waits for `wait` here
            self.barrier.done(self._header, call.number)
        return True

    def wait(self, handles: Sequence[Handle]) -> None:
        """Sum these in the order in which they were started, which is the same for all members, and
        at last what is not shared. The thread goes on with others that it was given."""
        calls = [self._started[handle] for handle in sorted(handles)]
        if (thread := self._thread) is not None:
            given = {handle for handle in self._started if handle <= self._handed}
            if given > set(handles):
                thread.until(lambda: all(call.summed is not None for call in calls))
            else:
                self._thread = None
                thread.end()
        self._sum_all(calls)
        for handle in handles:
            del self._started[handle]
        if self.rings is not None and not self._started:  # else only some threads may be so far
            # Sorted, as it is collective: members may have made arenas in different orders.
            for _, named in sorted(self._arenas.items()):
                named.choose(self.rings, self._ways.total)

    def _sum_all(self, calls: Sequence[_Call]) -> None:
        """Sum what the thread has left of these, and wait for the others."""
        arenas = {one: one.summed or self._sum(one, one.named) for one in calls if one.named}
        # Before `done`: if this fails, workers make contributions again, and none may be through.
        self._unshared.sum([call.part for call in calls if call.named is None])
        if last := max((call.number for call in arenas), default=0):
            self.barrier.done(self._header, last)
            self.barrier.all_done(last)
            if self.rings is None:
                self._unshared.use_rows()  # all have told numbers: they have loaded Numba
        if self.rings is not None and not self.rings.leads:
            for call, arena in arenas.items():
                if arena is not None and arena.small:
                    arena.take(call.part.number)

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

    def _sum(self, call: _Call, named: NamedArena) -> SharedArena | None:
        """Sum a part as soon as all have started it. Return its arena if all share that; None if
        the part was summed otherwise."""
        arena = named.arena if isinstance(named.arena, SharedArena) else None
        self.barrier.all_ready(call.number)
        if self._all_share(named, arena, call.part):
            assert arena is not None
            self._sum_of(named, arena, call)
            return arena
        named.note_unshared(call.part.number)
        if arena is not None:
            arena.keep_results()  # this worker alone writes to them
        self._unshared.sum([call.part])
        if arena is not None:
            arena.hide()  # and not before: neighbours may not have looked for it yet
            arena.whole(call.part)
        return None

    def _all_share(self, named: NamedArena, arena: SharedArena | None, part: Part) -> bool:
        """Return True if all members share the arena of a part, which they have started. ``arena``:
        None if this worker does not. Collective when a part of it is first summed among these
        members. Raises PeersLost."""
        shared = arena is not None and arena.reaches_all(self, part)
        if self.rings is None:
            return shared
        if named.agreed is None:
            named.agreed = self.rings.all_agree(shared)
        return named.agreed

    def _sum_of(self, named: NamedArena, arena: SharedArena, call: _Call) -> None:
        began = time.perf_counter()
        arena.sum(call.part.number, self.rings, call.way, call.part)
        named.took(call.part.number, time.perf_counter() - began)

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
