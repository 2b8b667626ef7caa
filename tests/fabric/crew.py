"""Workers of a data plane in threads of this process, which share its memory in earnest."""

from __future__ import annotations

import functools
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.backend import HOST, backend_of, in_host_memory
from spotmpi.arrays.narrowing import Narrowing
from spotmpi.errors import PeersLost
from spotmpi.fabric import Part, Shape
from spotmpi.fabric.neighbours.shared_memory import Segment
from spotmpi.fabric.planes.devices import Devices
from spotmpi.fabric.planes.plane import Line, Ways
from spotmpi.fabric.planes.shared_arena import SMALL
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.protocol.host_ring import FIRST, RING

DATA = [Shape("float32", 70_001), Shape("float64", 1_500), Shape("float32", 1)]
WORD = [Shape("float64", 16)]
LIMIT = 60


class Post:
    """Where all find what others have sent them."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.boxes: dict[tuple[int, int, int], deque[Any]] = {}
        self.news = threading.Condition()
        self.sent = 0
        """Messages so far."""
        self.breaks: tuple[int, Sequence[threading.Event]] = (0, ())
        """When so many have been sent, these happen."""
        self._said: list[Any] = []
        self._barrier = threading.Barrier(workers)

    def add(self, values: Any) -> Any:
        """What all say in sum, once they have."""
        with self.news:
            self._said.append(values.copy())
        self._barrier.wait(LIMIT)
        said = sum(self._said[-self.workers :])
        self._barrier.wait(LIMIT)
        return said


class Threads(Line):
    """Messages between threads. What was given up comes all the same, as late as can be."""

    def __init__(self, me: int, post: Post, broken: threading.Event) -> None:
        self.me, self.post, self.broken = me, post, broken
        self._last = 0
        self._receives: dict[int, tuple[Any, Any]] = {}
        self._sent: list[int] = []
        self.given_up: list[Any] = []
        self.most = 0
        """Messages under way at a time."""
        self.bytes = 0
        """Sent."""

    def send(self, to: int, ring: int, what: Any) -> int:
        """It is through as soon as it is asked for."""
        with self.post.news:
            self.post.boxes.setdefault((self.me, to, ring), deque()).append(what.copy())
            self.post.sent += 1
            until, events = self.post.breaks
            if self.post.sent >= until:
                for event in events:
                    event.set()
            self.bytes += what.nbytes
            self.post.news.notify_all()
        self._last += 1
        self._sent.append(self._last)
        return self._last

    def receive(self, source: int, ring: int, room: Any) -> int:
        """It has come when there is something in the box."""
        self._last += 1
        self._receives[self._last] = (source, self.me, ring), room
        self.most = max(self.most, len(self._receives))
        return self._last

    def through(self) -> list[int]:
        """In the order in which they were asked for."""
        with self.post.news:
            if self.broken.is_set():
                raise PeersLost("the line is broken")
            found, self._sent = self._sent, []
            for handle, (box, room) in list(self._receives.items()):
                if came := self.post.boxes.get(box):
                    room[:] = came.popleft()
                    del self._receives[handle]
                    found.append(handle)
            if not found:
                self.post.news.wait(0.01)
            return found

    def give_up(self) -> None:
        """Their rooms are written to later."""
        self.given_up += [room for _, room in self._receives.values()]
        self._receives, self._sent = {}, []

    def come_late(self) -> None:
        """What was given up comes now, and is rubbish."""
        for room in self.given_up:
            room.view(np.uint8).fill(255)  # as floats, NaN


def in_rings(shape: Shape) -> Sequence[str]:
    """Whatever is not small."""
    return (FIRST,) if shape.size <= SMALL else (RING,)


class On(SharedMemoryPlane):
    """On a host of this number."""

    ways_of = staticmethod(in_rings)

    def __init__(self, ways: Ways, host: int) -> None:
        super().__init__(ways)
        self.neighbours.host = host


class Worker:
    """One worker's plane, and the arenas that all have."""

    ahead = False
    """It has what it starts summed while it does something else."""
    backend = HOST
    """Whose its data's arrays are."""

    def __init__(self, me: int, host: int = 0, post: Post | None = None) -> None:
        self.me = me
        self.broken = threading.Event()
        self.line = None if post is None else Threads(me, post, self.broken)
        self.host = host
        ways = Ways(self.by_mpi, self.broken.is_set, self.line)
        if self.backend is HOST:
            self.plane: Any = On(ways, host)
            self.node = self.plane
        else:
            self.plane = Devices(ways, lambda ways: On(ways, host))
            self.node = self.plane.node
        self.post = post
        self.by_mpi_instead: list[Part] = []
        self.handles: list[int] = []
        """What it has started last."""
        self.data = self.word = None  # type: Any

    def by_mpi(self, parts: Sequence[Part]) -> None:
        """What there is instead of MPI: it says who was asked."""
        for part in parts:
            self._one_by_mpi(part)

    def _one_by_mpi(self, part: Part) -> None:
        own = [one for arena in (self.data, self.word) for one in arena.results]
        if self.post is not None and not any(part.result is one for one in own):
            part.result[:] = self.post.add(part.contribution)
            return
        self.by_mpi_instead.append(part)
        part.result[...] = 77 if part.result.dtype.kind == "u" else -1

    def furnish(self, form: str | None = None) -> None:
        """As a trainer does; with sums that are narrowed between hosts."""
        layout = DATA if form is None else [narrowed(form, shape) for shape in DATA]
        layout = [shape._replace(backend=self.backend) for shape in layout]
        self.data = self.plane.arena(layout, "data")
        self.word = self.plane.arena(WORD, "word")

    def bring(self, number: int) -> None:
        """What can be told from all others'."""
        for arena in (self.data, self.word):
            for index, flat in enumerate(arena.contributions):
                backend_of(flat).from_host(flat, brought(self.me, number, index, flat))

    def start(self) -> list[int]:
        """All parts of a round."""
        self.handles = []
        for arena in (self.data, self.word):
            for part in arena.parts:
                self.handles.append(self.plane.start(part))
                if self.ahead:
                    self.plane.proceed()
        return self.handles

    def round(self) -> list[Any]:
        """Start, wait, commit; returns copies of the sums."""
        self.plane.wait(self.start())
        for arena in (self.data, self.word):
            arena.turn()
        for one in self.narrowings:
            one.turn()
        return self.record()

    @property
    def narrowings(self) -> list[Narrowing]:
        """Of what is narrowed."""
        return [shape.narrowing for shape in self.data.layout if shape.narrowing is not None]

    def rests(self) -> list[Any]:
        """Copies of what it has kept."""
        return [one.rest.copy() for one in self.narrowings]

    def record(self) -> list[Any]:
        """Copies of the last sums."""
        return [
            backend_of(flat).to_host(flat)
            for arena in (self.data, self.word)
            for flat in arena.record
        ]


def narrowed(form: str, shape: Shape) -> Shape:
    """The same, narrowed where that can be."""
    if shape.dtype != "float32":
        return shape
    zeros = (np.zeros(shape.size, np.float32) for _ in range(2))
    return shape._replace(narrowing=Narrowing(form, *zeros))


def brought(me: int, number: int, index: int, like: Any) -> Any:
    """Numbers whose sum depends on the order of summation."""
    return _drawn((me, number, index), like.size, like.dtype)


@functools.cache
def _drawn(of: tuple[int, int, int], size: int, dtype: Any) -> Any:
    found = np.random.default_rng(of).normal(size=size).astype(dtype)
    found.flags.writeable = False
    return found


def expected(workers: Sequence[Worker], number: int) -> list[Any]:
    """The sums, in the order of the members."""
    sums = []
    for arena in (workers[0].data, workers[0].word):
        for index, flat in enumerate(arena.contributions):
            total = brought(workers[0].me, number, index, flat)
            for worker in workers[1:]:
                total = total + brought(worker.me, number, index, flat)
            sums.append(total)
    return sums


def at_once(workers: Sequence[Worker], what: Callable[[Worker], Any]) -> list[Any]:
    """Each in a thread of its own. If one fails, or all stand still, none waits any longer."""

    def give_up() -> None:
        for worker in workers:
            worker.broken.set()

    def attempt(worker: Worker) -> Any:
        try:
            return what(worker)
        except BaseException:
            give_up()
            raise

    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(attempt, one) for one in workers]
        try:
            return [future.result(LIMIT) for future in futures]
        except FutureTimeoutError:
            give_up()
            raise


def meet(workers: Sequence[Worker]) -> None:
    """As the fabric does it when somebody comes."""
    cards = {worker.me: worker.plane.neighbours.card() for worker in workers}
    reached = [worker.plane.neighbours.reach(cards) for worker in workers]
    for worker in workers:
        worker.plane.bind(list(cards), all(reached))


def company(count: int) -> list[Worker]:
    """Workers that have met."""
    workers = [Worker(me) for me in range(count)]
    meet(workers)
    for worker in workers:
        worker.furnish()
    return workers


@contextmanager
def no_memory_to_share() -> Iterator[None]:
    """Whoever makes an arena meanwhile cannot share it."""

    def refuse(self: Segment, size: int) -> None:
        raise OSError("no memory")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Segment, "__init__", refuse)
        yield


def same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """To the bit."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(some, others, strict=True))


def check(workers: Sequence[Worker], number: int) -> None:
    """A round of all, as it must be."""
    for worker in workers:
        worker.bring(number)
    sums = expected(workers, number)
    for found in at_once(workers, Worker.round):
        assert same(found, sums)
    for worker in workers:
        assert not worker.by_mpi_instead
        for index, flat in enumerate(worker.data.contributions):
            assert same([in_host_memory(flat)], [brought(worker.me, number, index, flat)])


def lose(workers: list[Worker], which: int) -> None:
    """It is gone, and with it all that only it had."""
    workers.pop(which)
    gc.collect()
    for worker in workers:
        worker.broken.set()


def go_on(workers: Sequence[Worker]) -> None:
    """The survivors have found each other."""
    for worker in workers:
        worker.broken.clear()
        worker.plane.bind([one.me for one in workers], True)


def lost(worker: Worker) -> bool:
    """Whether a round breaks; what was started is given up."""
    try:
        worker.plane.wait(worker.start())
    except PeersLost:
        worker.plane.cancel(worker.handles)
        return True
    return False
