"""Messages of a data plane from worker to worker, over MPI."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import PeersLost
from spotmpi.fabric.mpi_calls import MPI, PAUSE, has_left, is_broken, peers_lost
from spotmpi.fabric.planes.plane import Handle, Line
from spotmpi.protocol.membership import WorkerId

__all__ = ["MpiLine"]

_TAG = 16
"""The tag of ring 0; no others lie beyond it on this communicator."""

_NAP, _LONGEST_NAP = 5e-5, 1e-3
"""Seconds between two looks for messages: a tenth of what has been waited for by then, between
these. The kernel's buffers keep the line busy meanwhile, and a core is free for others."""

_FRUITLESS = 10 * PAUSE
"""Seconds in vain after which it is asked whether anybody is lost."""

Way = Callable[[], tuple[MPI.Intracomm, Sequence[WorkerId]]]
"""The communicator of now, and its members by rank."""


@dataclass
class _Message:
    """On its way: MPI reads or writes where it lies until the request is through."""

    handle: Handle
    request: MPI.Request
    buffer: Buffer
    comes: bool

    def ended(self) -> bool:
        """Whether MPI has let go of it."""
        try:
            return bool(self.request.Test()) if self.comes else has_left(self.request)
        except MPI.Exception:  # it ended with an error, and MPI has freed it
            return True


class MpiLine(Line):
    """On whatever the data path's communicator is when a message begins."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._last: Handle = 0
        self._coming: dict[Handle, _Message] = {}
        self._leaving: dict[WorkerId, deque[_Message]] = {}
        """To each worker: they leave in this order, so only the first one is looked at."""
        self._idle_since: float | None = None
        """When messages were last looked for in vain, and had come before."""
        self._given_up: list[_Message] = []
        """What MPI has not let go of yet."""

    def send(self, to: WorkerId, ring: int, what: Buffer) -> Handle:
        """By Isend."""
        comm, members = self._way()
        whither = members.index(to), _TAG + ring
        message = self._begin(comm, comm.Isend, what, whither, comes=False)
        self._leaving.setdefault(to, deque()).append(message)
        return message.handle

    def receive(self, source: WorkerId, ring: int, room: Buffer) -> Handle:
        """By Irecv."""
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
        """Looks, sleeps a little between two looks, and asks at last whether somebody is lost."""
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
        """Those that have come, and those that have left."""
        came = MPI.Request.Testsome([message.request for message in self._coming.values()])
        handles = list(self._coming)
        found = [handles[index] for index in came or ()]
        for handle in found:
            del self._coming[handle]
        for leaving in self._leaving.values():
            while leaving and has_left(leaving[0].request):
                found.append(leaving.popleft().handle)
        return found

    def give_up(self) -> None:
        """A message that nothing has come of yet is not waited for any more. What else MPI holds on
        to stays where it is until MPI lets go of it."""
        for message in self._coming.values():
            # What came together with an error is through, and no request any more.
            if message.request != MPI.REQUEST_NULL:
                message.request.Cancel()
        self._given_up += chain(self._coming.values(), *self._leaving.values())
        self._coming, self._leaving, self._idle_since = {}, {}, None
        self._given_up = [message for message in self._given_up if not message.ended()]
