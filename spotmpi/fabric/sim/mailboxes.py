"""Messages that workers of a simulation post to each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import PeersLost
from spotmpi.fabric import Message, Post, Receive
from spotmpi.fabric.sim.workers import LATER, Process, Workers
from spotmpi.protocol.membership import WorkerId

__all__ = ["Mailboxes"]


class Mailboxes:
    """All messages of one simulation. The last ones of a worker that dies may never arrive."""

    def __init__(self, workers: Workers) -> None:
        self._time, self._workers = workers.time, workers
        self._arrival: dict[tuple[WorkerId, WorkerId], float] = {}
        """When the last message arrives that one worker has posted to another."""
        self._lost: set[tuple[WorkerId, WorkerId]] = set()
        """Sender and receiver where a message was lost, and with it all later ones."""
        self._come: dict[tuple[WorkerId, WorkerId, bytes], deque[bytearray]] = {}
        """By sender, receiver and key: what nobody has asked for yet."""

    def post(self, worker: WorkerId, process: Process, request: Post) -> Any:
        """Perform `Post`."""
        time, pair, content = self._time, (worker, request.to), bytes(memoryview(request.content))
        if request.to == worker:
            self._arrive(*pair, request.key, content, request.lent)
            return self._workers.reply(worker)
        earliest = time.now + time.delays.message * time.random.random() ** 2
        moment = self._arrival[pair] = max(earliest, self._arrival.get(pair, 0.0))
        time.at(moment, self._arrive, *pair, request.key, content, request.lent)
        return self._workers.reply(worker)

    def receive(self, worker: WorkerId, process: Process, request: Receive) -> Any:
        """Perform `Receive`."""
        found: Message | PeersLost | None = self._take(worker, request)
        if found is None and process.fails:
            found = PeersLost("simulated")
        if found is None and request.waits:
            return LATER
        process.waiting = None  # and nothing else answers it meanwhile
        return self._workers.reply(worker, found, self._time.delays.message)

    def move_on(self, me: WorkerId) -> None:
        """Forget what has come to ``me``: it is in another training from now on."""
        for known in [one for one in self._come if one[1] == me]:
            del self._come[known]

    def disturb(self, worker: WorkerId, process: Process) -> None:
        """Interrupt the worker if it waits for a message, and knows of a loss or a revocation."""
        if isinstance(process.waiting, Receive) and process.fails:
            process.waiting = None
            self._workers.reply(worker, PeersLost("simulated"))

    def _arrive(
        self, sender: WorkerId, to: WorkerId, key: bytes, content: bytes, lent: Sequence[Buffer]
    ) -> None:
        """Have a message arrive. What is lent is read only now."""
        pair = sender, to
        gone = sender not in self._workers.processes
        if pair in self._lost or (gone and self._time.random.random() < 0.5):
            self._lost.add(pair)
            return
        whole = bytearray().join([content, *lent])
        self._come.setdefault((*pair, key), deque()).append(whole)
        process = self._workers.processes.get(to)
        if process is not None and isinstance(request := process.waiting, Receive):
            message = self._take(to, request)
            if message is not None:
                process.waiting = None
                self._workers.reply(to, message)

    def _take(self, worker: WorkerId, request: Receive) -> Message | None:
        for sender in request.senders:
            if come := self._come.get((sender, worker, request.key)):
                content = come.popleft()
                if not come:
                    del self._come[sender, worker, request.key]
                return Message(sender, memoryview(content))
        return None
