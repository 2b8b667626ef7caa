"""The build of a simulation: Shrink and Agree, blocking, with one answer for all.

All alive get the answer, each at its own moment. If a worker dies that has yet to get it, the
others that wait must ask for it, as with MPI. They ask the first of those that came. It answers as
long as it is there, and if it dies, another one takes its place. But MPI does not know of a worker
that ended without dying, and a worker that asks such a one waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spotmpi.fabric import Depart, Rebuild
from spotmpi.fabric.sim.collectives import Data, Misuse
from spotmpi.fabric.sim.control_path import ControlPath
from spotmpi.fabric.sim.models import Models
from spotmpi.fabric.sim.newcomers import Newcomers
from spotmpi.fabric.sim.workers import LATER, Process, Workers
from spotmpi.protocol.membership import Worker, WorkerId
from spotmpi.protocol.recovery import Built, Lost, PlannedChange

__all__ = ["Builds", "Seal"]


@dataclass(frozen=True)
class Seal:
    """A build that succeeded: the new membership, and what it took to get there."""

    members: tuple[WorkerId, ...]
    """The members from now on, in ring order."""
    lost: frozenset[WorkerId]
    """Workers lost since the last seal."""
    change: PlannedChange
    """The change that was planned."""
    messages: int
    """Most tokens that one worker has sent since the last seal."""
    spoilt: int
    """Builds since the last seal that failed without a loss: newcomer gone, or revocation late."""
    unasked: bool
    """True if a worker began the recovery for an end or a plan, and not for a loss."""


@dataclass(eq=False)
class _Answer:
    """The answer of one build, on its way to all who came."""

    asked: WorkerId
    """Worker to ask for it."""
    due: set[WorkerId]
    """Workers that have yet to get it."""
    torn: bool = False
    """True if a worker died that had yet to get it."""
    departing: list[WorkerId] = field(default_factory=list)
    """Workers that have it, and wait until no other may have to ask."""


class Builds:
    """All builds of one simulation."""

    def __init__(
        self,
        members: tuple[WorkerId, ...],
        workers: Workers,
        control: ControlPath,
        newcomers: Newcomers,
        models: Models,
    ) -> None:
        self._time, self._workers, self._control = workers.time, workers, control
        self._newcomers, self._models = newcomers, models
        self._first = Data(members)
        """The data communicator of the first membership."""
        self.ring = [*members]
        """All workers that ever were members, in the order of admission."""
        self.sealed: Callable[[Seal], None] = lambda seal: None
        """Called with each seal."""
        self._turned_away = 0
        self._here: dict[WorkerId, Rebuild] = {}
        """Requests of the workers that wait in the build, or died in it."""
        self._awaited = 0
        """Number of members alive that have yet to come to the build."""
        self._answers: dict[WorkerId, _Answer] = {}
        """Answer of the last build that each worker was in."""

    def begin(self) -> Data:
        """Count one more member of the first membership. Returns its data communicator."""
        self._awaited += 1
        return self._first

    def gone(self, worker: WorkerId, process: Process) -> None:
        """Note that ``worker`` has ended or died."""
        if process.data is not None and worker not in self._here:
            self._awaited -= 1
        answer = self._answers.get(worker)
        if answer is not None and worker in answer.due:
            answer.torn = True
            self._got(worker, answer)

    def come(self, worker: WorkerId, process: Process, request: Rebuild) -> Any:
        """Perform `Rebuild`: ``worker`` waits in the build for all others alive."""
        if process.under_way:
            raise Misuse(f"worker {worker} builds with collectives under way")
        self._here[worker] = request
        self._awaited -= 1
        self.attempt()
        return LATER

    def depart(self, worker: WorkerId, process: Process, request: Depart) -> Any:
        """Perform `Depart`: ``worker`` goes on when no other may have to ask it for an answer."""
        answer = self._answers.get(worker)
        if answer is None or not answer.due:
            return None
        answer.departing.append(worker)
        return LATER

    def attempt(self) -> None:
        """End the build if all are here: seal it, or fail."""
        if not self._here or self._awaited:
            return
        time, processes, come = self._time, self._workers.processes, self._here
        alive = frozenset(worker for worker in come if worker in processes)
        if not alive:
            return
        # A worker that died inside may or may not have taken part in the agreement.
        said = {
            (request.members, request.change)
            for worker, request in come.items()
            if worker in alive or (request.members is None and time.random.random() < 0.5)
        }
        change = come[next(iter(alive))].change
        sealed = said == {(alive, change)}
        self._here = {}
        newcomer = change.newcomer
        if newcomer is not None:
            sealed = sealed and self._newcomers.knocks(newcomer, change.sponsor)
            if not sealed:
                self._turned_away += 1
                self._newcomers.turn_away(newcomer)
        admitted = newcomer if sealed else None
        order = [w for w in self.ring if w in alive]
        answer = _Answer(order[0], set(alive))
        order = [w for w in order if w not in (change.leaving if sealed else ())]
        if admitted is not None:
            self.ring.append(admitted)
            order.append(admitted)
        data = Data(tuple(order))
        if sealed:
            self._seal(data.members, alive, change)
        worker_of = None if admitted is None else Worker(admitted, "sim")
        control = 1 + max(processes[worker].control for worker in alive)
        self._awaited = len(alive)
        if admitted is not None:
            self._awaited += 1
        for worker in alive | {w for w in (admitted,) if w is not None}:
            process = processes[worker]
            if sealed:
                process.data, process.calls, process.revoked = data, 0, False
            self._models.give_up(worker)
            if not sealed or admitted is not None:
                process.control, process.control_revoked = control, False
                process.inbox = deque(e for e in process.inbox if isinstance(e, Lost))
            if worker in alive:
                self._answers[worker] = answer
                built = Built(sealed, alive, worker_of)
                time.after(time.delays.collective, self._comes, worker, answer, built)

    def _comes(self, worker: WorkerId, answer: _Answer, built: Built) -> None:
        if worker not in answer.due or (answer.torn and answer.asked in self._workers.returned):
            return
        self._got(worker, answer)
        self._workers.advance(worker, built)

    def _got(self, worker: WorkerId, answer: _Answer) -> None:
        answer.due.remove(worker)
        if not answer.due:
            for one in answer.departing:
                self._workers.reply(one)

    def _seal(
        self, members: tuple[WorkerId, ...], alive: frozenset[WorkerId], change: PlannedChange
    ) -> None:
        passage = [self._workers.processes[worker] for worker in alive]
        before = passage[0].data
        assert before is not None
        messages, lost = max(one.sent for one in passage), before.everybody - alive
        control, spoilt = self._control, self._turned_away + self._control.late
        unasked, control.late, control.unasked = control.unasked, False, False
        self._turned_away = 0
        for process in passage:
            process.sent = 0
        self.sealed(Seal(members, lost, change, messages, spoilt, unasked))
