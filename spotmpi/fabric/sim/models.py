"""Models that workers of a simulation publish and fetch, and marks that they send each other.

It is drawn whether two workers are neighbours or on two hosts. An answer from another host comes
some time after the ask. It is the model as it was at a random moment in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spotmpi.arrays.backend import backend_of, fill
from spotmpi.fabric import Buffer, Fetch, Fetched, Publish, Signal, Signals
from spotmpi.fabric.sim.collectives import RUBBISH
from spotmpi.fabric.sim.workers import Process, Workers
from spotmpi.protocol.membership import WorkerId

__all__ = ["Marks", "Models"]

_NEAR = 0.5
"""Chance that two workers are neighbours."""

_LATE, _BY = 0.125, 1000
"""Chance that a mark is late, and the factor by which it then takes longer."""


class _Publication(NamedTuple):
    number: int
    arrays: list[Any]
    """Copies of the arrays, in the memory of the host."""


@dataclass(eq=False)
class _Ask:
    """A worker that was asked for its model."""

    wanted: Fetch
    answer: _Publication | None = None


@dataclass(eq=False)
class _Seat:
    """What one worker has published, asked for and received."""

    published: int = 0
    shown: _Publication | None = None
    taken: int = -1
    """The last publication that a worker had which wanted it for itself."""
    ask: _Ask | None = None
    come: Fetched | None = None
    """Answer from another host, until it is the reply to a fetch."""
    room: list[Buffer] = field(default_factory=list)
    """Arrays of the last reply."""


class Models:
    """All published models of one simulation."""

    def __init__(self, workers: Workers) -> None:
        self._time, self._workers = workers.time, workers
        self._seats: dict[WorkerId, _Seat] = {}
        self._near: dict[frozenset[WorkerId], bool] = {}
        """Whether two workers are neighbours, for each pair that was drawn."""

    def publish(self, me: WorkerId, process: Process, request: Publish) -> Any:
        """Perform `Publish`."""
        model = request.model
        seat = self._seats.setdefault(me, _Seat())
        arrays = [backend_of(array).to_host(array) for array in model]
        seat.shown = _Publication(seat.published, arrays)
        seat.published += 1
        if list(map(_described, seat.room)) != list(map(_described, model)):
            seat.ask = seat.come = None
            seat.room = []
            for array in model:
                dtype, (size,) = _described(array)
                seat.room.append(backend_of(array).zeros(dtype, size))
        return self._workers.reply(me, None, self._time.delays.message)

    def fetch(self, me: WorkerId, process: Process, request: Fetch) -> Any:
        """Perform `Fetch`."""
        found = self._fetched(me, request)
        return self._workers.reply(me, found, self._time.delays.message)

    def _fetched(self, me: WorkerId, request: Fetch) -> Fetched | None:
        seat, worker = self._seats.get(me), request.worker
        if seat is None or seat.shown is None:
            return None
        fill(seat.room, RUBBISH)  # what was fetched before must not be used any more
        come, seat.come = seat.come, None
        if come is not None and not self._is_there(me, come.worker):
            come = None
        if worker != me and self._is_there(me, worker):
            near = self._is_near(me, worker)
            if not near and seat.ask is None:
                seat.ask = _Ask(request)
                self._time.after(self._time.delays.message, self._answer, me, seat.ask)
            if near and come is None and (found := self._found(request)) is not None:
                come = Fetched(worker, *found)
        return come and self._reply(seat, come)

    def move_on(self, me: WorkerId) -> None:
        """Forget what ``me`` published and fetched: it is in another training from now on."""
        self._seats.pop(me, None)

    def give_up(self, me: WorkerId) -> None:
        """Drop what is under way between hosts, because there is a build."""
        if (seat := self._seats.get(me)) is not None:
            seat.ask = seat.come = None

    def _reply(self, seat: _Seat, found: Fetched) -> Fetched | None:
        if list(map(_described, found.model)) != list(map(_described, seat.room)):
            return None
        for room, values in zip(seat.room, found.model, strict=True):
            backend_of(room).from_host(room, values)
        return found._replace(model=seat.room)

    def _is_near(self, *pair: WorkerId) -> bool:
        if (both := frozenset(pair)) not in self._near:
            self._near[both] = self._time.random.random() < _NEAR
        return self._near[both]

    def _is_there(self, me: WorkerId, worker: WorkerId) -> bool:
        """Return True if ``me`` takes ``worker`` for a live member. A dead one may be read."""
        process = self._workers.processes.get(me)
        return (
            process is not None
            and process.data is not None
            and worker in process.data.members
            and worker not in process.dead_known
        )

    def _found(self, request: Fetch) -> _Publication | None:
        """Return what a worker that asks so is given; if it is unread, it is read now."""
        seat = self._seats.get(request.worker)
        if seat is None or seat.shown is None:
            return None
        if request.unread:
            if seat.taken == seat.shown.number:
                return None
            seat.taken = seat.shown.number
        return seat.shown

    def _answer(self, me: WorkerId, ask: _Ask) -> None:
        """Take the model that is the answer, as it is at this moment."""
        if ask.wanted.worker in self._workers.processes:
            ask.answer = self._found(ask.wanted)
        self._time.after(self._time.delays.collective, self._come, me, ask)

    def _come(self, me: WorkerId, ask: _Ask) -> None:
        """Deliver the answer, or end the ask if none will come."""
        seat, process = self._seats.get(me), self._workers.processes.get(me)
        if seat is None or seat.ask is not ask:
            return
        seat.ask = None
        if process is not None and not process.revoked and ask.answer is not None:
            seat.come = Fetched(ask.wanted.worker, *ask.answer)


class Marks:
    """Marks that workers of one simulation send each other. Some come too late to be of use."""

    def __init__(self, workers: Workers) -> None:
        self._time, self._workers = workers.time, workers
        self._told = 0
        """Number of marks that all workers have sent so far."""
        self._come: dict[WorkerId, dict[WorkerId, tuple[int, bytes]]] = {}
        """By receiver and sender: number and bytes of the last mark that has come."""

    def signal(self, me: WorkerId, process: Process, request: Signal) -> Any:
        """Perform `Signal`."""
        self._told += 1
        for worker in _others(me, process):
            late = self._time.random.random() < _LATE
            longest = self._time.delays.message * (_BY if late else 1)
            self._time.after(longest, self._arrive, worker, me, self._told, request.mark)
        return self._workers.reply(me)

    def signals(self, me: WorkerId, process: Process, request: Signals) -> Any:
        """Perform `Signals`."""
        known = self._come.get(me, {})
        marks = {one: known[one][1] if one in known else None for one in _others(me, process)}
        return self._workers.reply(me, marks)

    def _arrive(self, to: WorkerId, worker: WorkerId, number: int, mark: bytes) -> None:
        known = self._come.setdefault(to, {})
        if worker not in known or known[worker][0] < number:
            known[worker] = number, mark


def _others(me: WorkerId, process: Process) -> list[WorkerId]:
    """Return the other members that ``me`` takes for alive."""
    if process.data is None:
        return []
    return [one for one in process.data.members if one not in (me, *process.dead_known)]


def _described(array: Buffer) -> tuple[str, tuple[int, ...]]:
    return backend_of(array).describe(array)
