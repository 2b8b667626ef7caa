"""Messages of a data plane between two workers, over MPI."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import PeersLost
from spotmpi.fabric.mpi.calls import MPI, PAUSE, Path, is_broken, let_go, peers_lost
from spotmpi.fabric.planes.plane import Handle, Line
from spotmpi.protocol.membership import WorkerId

__all__ = ["MpiLine"]

_TAG = 16
"""The tag of ring 0. On this communicator only rings have this tag or larger ones."""

_NAP, _LONGEST_NAP = 5e-5, 1e-3
"""Shortest and longest pause between two looks for messages, in seconds. A pause is a tenth of the
wait so far. The kernel's buffers keep the line busy meanwhile, and a core is free for others."""

_FRUITLESS = 10 * PAUSE
"""Seconds without a message after which `through` checks whether a worker is lost."""


@dataclass
class _Message:
    """A message under way. MPI reads or writes its buffer until the request is through."""

    handle: Handle
    request: MPI.Request
    buffer: Buffer
    comes: bool

    def ended(self) -> bool:
        """True if MPI has let go of it."""
        try:
            return bool(self.request.Test()) if self.comes else let_go(self.request)
        except MPI.Exception:  # it ended with an error, and MPI has freed it
            return True


class MpiLine(Line):
    """A line on the communicator that the data path has when a message begins."""

    def __init__(self, way: Callable[[], Path]) -> None:
        self._way = way
        self._last: Handle = 0
        self._coming: dict[Handle, _Message] = {}
        self._leaving: dict[WorkerId, deque[_Message]] = {}
        """Messages to each worker. They leave in this order, so only the first one is checked."""
        self._idle_since: float | None = None
        """Time since which looks have found nothing. None: the last one found something."""
        self._given_up: list[_Message] = []
        """Messages that were given up, but that MPI has not let go of yet."""

    def send(self, to: WorkerId, ring: int, what: Buffer) -> Handle:
        """Send with Isend."""
        comm, members = self._way()
        whither = members.index(to), _TAG + ring
        message = self._begin(comm, comm.Isend, what, whither, comes=False)
        self._leaving.setdefault(to, deque()).append(message)
        return message.handle

    def receive(self, source: WorkerId, ring: int, room: Buffer) -> Handle:
        """Receive with Irecv."""
        comm, members = self._way()
        whence = members.index(source), _TAG + ring
        message = self._begin(comm, comm.Irecv, room, whence, comes=True)
        self._coming[message.handle] = message
        return message.handle

    def _begin(
        self,
        comm: MPI.Intracomm,
        begin: Callable[..., MPI.Request],
        buffer: Buffer,
        where: tuple[int, int],
        comes: bool,
    ) -> _Message:
        try:
            request = begin(buffer, *where)
        except MPI.Exception as error:
            raise peers_lost(error, comm) from error
        self._last += 1
        return _Message(self._last, request, buffer, comes)

    def through(self) -> list[Handle]:
        """Look for messages that are through, with short sleeps, and at last for a lost worker."""
        comm, _ = self._way()
        began = now = time.monotonic()
        self._idle_since = self._idle_since or began
        try:
            while not (done := self._done()):
                if now > began + _FRUITLESS:
                    if is_broken(comm):
                        raise PeersLost("a worker of another host is lost, or has met a loss")
                    return []
                time.sleep(min(max(_NAP, 0.1 * (now - self._idle_since)), _LONGEST_NAP))
                now = time.monotonic()
        except MPI.Exception as error:
            raise peers_lost(error, comm) from error
        self._idle_since = None
        return done

    def _done(self) -> list[Handle]:
        """Return the handles of messages that have come or left."""
        came = MPI.Request.Testsome([message.request for message in self._coming.values()])
        handles = list(self._coming)
        found = [handles[index] for index in came or ()]
        for handle in found:
            del self._coming[handle]
        for leaving in self._leaving.values():
            while leaving and let_go(leaving[0].request):
                found.append(leaving.popleft().handle)
        return found

    def give_up(self) -> None:
        """Forget all messages, and cancel those that have not come yet. The memory of each stays
        until MPI lets go of it."""
        for message in self._coming.values():
            # A message that came together with an error is no request any more.
            if message.request != MPI.REQUEST_NULL:
                message.request.Cancel()
        self._given_up += chain(self._coming.values(), *self._leaving.values())
        self._coming, self._leaving, self._idle_since = {}, {}, None
        self._given_up = [message for message in self._given_up if not message.ended()]
