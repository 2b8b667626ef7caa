"""The control path of a simulation: tokens between workers, revocations, and who hears of what."""

from __future__ import annotations

from typing import Any

from spotmpi.fabric import Poll
from spotmpi.fabric.sim.collectives import Data
from spotmpi.fabric.sim.faults import Faults
from spotmpi.fabric.sim.workers import LATER, Process, Workers
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.recovery import (
    ControlRevoked,
    Event,
    Received,
    RevokeControl,
    Send,
    TokenKind,
)


class ControlPath:
    """All control paths of one simulation, and the events that workers have yet to poll."""

    def __init__(self, workers: Workers, faults: Faults) -> None:
        self._time, self._workers, self._faults = workers.time, workers, faults
        self.late = self.unasked = False
        """True if a revocation came late, or a recovery began for no loss, since the last seal."""
        self._sent = 0
        """Number of tokens that were sent."""
        self._arrival: dict[tuple[WorkerId, WorkerId], float] = {}
        """When the last token arrives that one worker has sent to another."""
        self._in_flight: dict[WorkerId, dict[int, WorkerId]] = {}
        """By sender and number: who will get each token."""
        self._revocations = 0
        """Number of control paths that have been revoked. Control paths are numbered from 0."""

    def poll(self, worker: WorkerId, process: Process, request: Poll) -> Any:
        """Perform `Poll`."""
        if not process.inbox:
            return LATER
        event = process.inbox.popleft()
        if self._faults.deadly:  # the worker may be the one that dies now
            return self._workers.reply(worker, event)
        return event

    def hear(self, worker: WorkerId, process: Process, event: Event) -> None:
        """Let the worker have ``event``, now or when it polls."""
        if isinstance(process.waiting, Poll) and not process.inbox:
            self._workers.advance(worker, event)
        else:
            process.inbox.append(event)

    def send(self, worker: WorkerId, process: Process, request: Send) -> Any:
        """Perform `Send`."""
        to, token, time = request.to, request.token, self._time
        process.sent += 1
        if token.kind is TokenKind.RECONCILE and not token.lost:
            self.unasked = True
        earliest = time.now + time.delays.message * time.random.random() ** 2
        moment = max(earliest, self._arrival.get((worker, to), 0.0))
        self._arrival[worker, to] = moment
        self._sent += 1
        self._in_flight.setdefault(worker, {})[self._sent] = to
        time.at(moment, self._deliver, worker, self._sent, to, Received(token), process.control)
        return self._workers.reply(worker)

    def _deliver(
        self, sender: WorkerId, number: int, to: WorkerId, event: Event, control: int
    ) -> None:
        if self._in_flight[sender].pop(number, None) is None:
            return
        process = self._workers.processes.get(to)
        if process is not None and process.control == control:
            self.hear(to, process, event)

    def cut(self, worker: WorkerId) -> None:
        """Lose the last tokens of a worker that has died, or some of them, or none."""
        # Order is kept, so the list for each receiver is cut once.
        for receiver in set(self._in_flight.get(worker, {}).values()):
            numbers = [n for n, to in self._in_flight[worker].items() if to == receiver]
            for number in numbers[self._time.random.randint(0, len(numbers)) :]:
                del self._in_flight[worker][number]

    def revoke(self, worker: WorkerId, process: Process, request: RevokeControl) -> Any:
        """Perform `RevokeControl`."""
        process.control_revoked = True
        if self._revocations <= process.control:
            self._revocations = process.control + 1
            longest = self._time.delays.revoke
            for peer in self._workers.processes:
                if peer != worker:
                    self._time.after(longest, self._revoked, peer, process.control, process.data)
        return self._workers.reply(worker)

    def _revoked(self, worker: WorkerId, control: int, data: Data | None) -> None:
        process = self._workers.processes.get(worker)
        if process is None or process.control != control or process.control_revoked:
            return
        process.control_revoked = True
        # If the data differ, its sender has died, and it comes after a seal.
        self.late |= process.data is not data
        self.hear(worker, process, ControlRevoked())
