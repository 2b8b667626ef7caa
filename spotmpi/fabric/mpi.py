"""The fabric over MPI with ULFM: the only module that imports mpi4py.

Two communicators. ``data`` carries collectives; whoever meets a failure revokes it, and the build
makes it anew by ``Shrink``. ``control`` carries tokens between two live workers, which works on a
communicator with dead members as long as nobody revokes it; only a recovery that fails half-way
does (see `recovery`), and then it is made anew as well.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import mpi4py

# MPI_Finalize can hang after a failure. Workers leave through the door, after which nobody
# needs them, and then simply exit.
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402 - the setting above must come first

from spotmpi.errors import PeersLost, SpotmpiError, UsageError  # noqa: E402
from spotmpi.fabric import Fabric, Poll, Rebuild, Reduce, Request, Revoke, Share  # noqa: E402
from spotmpi.fabric.doorbell import ADDRESS_BYTES, Doorbell  # noqa: E402
from spotmpi.fabric.wire import decode, encode  # noqa: E402
from spotmpi.membership import Membership, WorkerId  # noqa: E402
from spotmpi.recovery import (  # noqa: E402
    Built,
    ControlRevoked,
    Event,
    Lost,
    Received,
    RevokeControl,
    Send,
    Token,
)

_FAILURES = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED}
_TAG = 1
_HOST_BYTES = 256
_PAUSE = 1e-3
"""Seconds between two looks for a loss, a revocation, or a token that came without a ring."""


def abort() -> None:
    """End every process of the MPI job, this one included, with code 1. Does not return."""
    MPI.COMM_WORLD.Abort(1)


class MpiFabric(Fabric):
    """This process as a worker of the MPI job that it was started in. Starting is collective."""

    _started = False

    def __init__(self) -> None:
        if MpiFabric._started:
            # The world may have dead members by now, and nothing can be duplicated from it.
            raise UsageError("a process enters one Trainer: train all there is to train in it")
        MpiFabric._started = True
        world = MPI.COMM_WORLD
        world.Set_errhandler(MPI.ERRORS_RETURN)
        self._data = _duplicate(world)
        self._control = _duplicate(world)
        self.me = world.Get_rank()
        self._doorbell = Doorbell()
        hosts, bells = _introduce(world, self._doorbell.address)
        self.membership = Membership.first(hosts)
        here = hosts[self.me]
        self._bells = {w: bells[w] for w, host in enumerate(hosts) if host == here}
        self._data_ids = list(self.membership.ids)
        self._control_ids = list(self.membership.ids)
        self._control_rank = {worker: worker for worker in self._control_ids}
        self._known_dead: set[WorkerId] = set()
        self._revocation_told = False
        self._events: deque[Event] = deque()
        self._sending: list[tuple[MPI.Request, bytes]] = []
        self._status = MPI.Status()

    def clock(self) -> float:
        """Monotonic seconds of this host, the same for all its processes."""
        return time.monotonic()

    def perform(self, request: Request) -> Any:
        """Do it, blocking; what MPI reports of dead peers becomes `PeersLost`."""
        match request:
            case Reduce(buffers):
                for buffer in buffers:
                    self._collective(self._data.Allreduce, MPI.IN_PLACE, buffer)
            case Share(source, buffers):
                root = self._data_ids.index(source)
                for buffer in buffers:
                    self._collective(self._data.Bcast, buffer, root)
            case Revoke():
                self._data.Revoke()
            case Send(to, token):
                self._send(to, token)
            case Poll():
                return self._poll()
            case RevokeControl():
                self._control.Revoke()
                self._revocation_told = True
                self._ring(self._control_ids)
            case Rebuild(members):
                return self._rebuild(members)
        return None

    # The data path.

    def _collective(self, call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except MPI.Exception as error:
            raise _told(error) from error

    # The control path.

    def _send(self, to: WorkerId, token: Token) -> None:
        data = encode(token)
        try:
            sent = self._control.Isend([data, MPI.BYTE], self._control_rank[to], _TAG)
        except MPI.Exception as error:
            _told(error)  # the loss will be heard of in a poll; anything else is raised here
            return
        # Tokens are small enough to have left at once; the bytes must live until MPI says so.
        self._sending = [(r, d) for r, d in self._sending if not _done(r)]
        self._sending.append((sent, data))
        self._ring([to])

    def _ring(self, workers: Iterable[WorkerId]) -> None:
        for worker in self._bells.keys() & workers:
            self._doorbell.ring(self._bells[worker])

    def _poll(self) -> Event:
        while True:
            token = self._token()
            if token is not None:
                return Received(token)
            self._listen()
            if self._events:
                return self._events.popleft()
            self._doorbell.wait(_PAUSE)

    def _token(self) -> Token | None:
        """A token that has come; None also where a loss or a revocation keeps MPI from looking."""
        if self._revocation_told:
            return None
        try:
            # The first look makes MPI fetch what has come, the second one finds it.
            message = self._control.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
            message = message or self._control.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
            if message is None:
                return None
            data = bytearray(self._status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
        except MPI.Exception as error:
            _told(error)
            return None
        return decode(data)

    def _listen(self) -> None:
        """Look for what is no token."""
        lost = self._newly_dead()
        if lost:
            self._events.append(Lost(lost))
        if not self._revocation_told and self._control.Is_revoked():
            self._revocation_told = True
            self._events.append(ControlRevoked())

    def _newly_dead(self) -> frozenset[WorkerId]:
        failed = self._control.Get_failed()
        try:
            if failed.Get_size() == 0:
                return frozenset()
            # Without the acknowledgement, a probe for any source fails for ever.
            self._control.Ack_failed()
            dead = set(self._ids_of(failed, self._control, self._control_ids))
        finally:
            failed.Free()
        fresh = dead - self._known_dead
        self._known_dead |= fresh
        return frozenset(fresh)

    # The build.

    def _rebuild(self, members: frozenset[WorkerId] | None) -> Built:
        shrunk, alive = self._shrink(self._data, self._data_ids)
        if self._agree(shrunk is not None and members == frozenset(alive)):
            assert shrunk is not None
            self._data, self._data_ids = shrunk, alive
            return Built(True, frozenset(alive))
        while True:
            control, alive = self._shrink(self._control, self._control_ids)
            if self._agree(control is not None):
                break
        assert control is not None
        self._control, self._control_ids = control, alive
        self._control_rank = {worker: rank for rank, worker in enumerate(alive)}
        self._revocation_told = False
        self._events = deque(event for event in self._events if isinstance(event, Lost))
        return Built(False, frozenset(alive))

    def _shrink(
        self, comm: MPI.Intracomm, ids: list[WorkerId]
    ) -> tuple[MPI.Intracomm | None, list[WorkerId]]:
        try:
            shrunk = MPI.Intracomm(comm.Shrink())
        except MPI.Exception as error:
            _told(error)
            return None, []
        shrunk.Set_errhandler(MPI.ERRORS_RETURN)
        group = shrunk.Get_group()
        try:
            return shrunk, self._ids_of(group, comm, ids)
        finally:
            group.Free()

    def _agree(self, flag: bool) -> bool:
        """Whether all alive say ``flag``; one answer for all, whoever dies meanwhile."""
        while True:
            self._control.Ack_failed()
            try:
                return bool(self._control.Agree(int(flag)))
            except MPI.Exception as error:
                # A loss that not everybody had acknowledged. All alive get this same error.
                _told(error)

    @staticmethod
    def _ids_of(group: MPI.Group, comm: MPI.Comm, ids: list[WorkerId]) -> list[WorkerId]:
        parent = comm.Get_group()
        try:
            ranks = group.Translate_ranks(list(range(group.Get_size())), parent)
        finally:
            parent.Free()
        return [ids[rank] for rank in ranks]


def _duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    copy = comm.Dup()
    copy.Set_errhandler(MPI.ERRORS_RETURN)
    return copy


def _introduce(world: MPI.Intracomm, bell: bytes) -> tuple[list[str], list[bytes]]:
    """Everybody's host name and doorbell, by rank. Collective."""
    mine = socket.gethostname().encode()[:_HOST_BYTES].ljust(_HOST_BYTES, b"\0") + bell
    size = _HOST_BYTES + ADDRESS_BYTES
    everybody = bytearray(size * world.Get_size())
    world.Allgather([mine.ljust(size, b"\0"), MPI.BYTE], [everybody, MPI.BYTE])
    rows = [everybody[i : i + size] for i in range(0, len(everybody), size)]
    hosts = [row[:_HOST_BYTES].rstrip(b"\0").decode(errors="replace") for row in rows]
    return hosts, [bytes(row[_HOST_BYTES:]).rstrip(b"\0") for row in rows]


def _done(request: MPI.Request) -> bool:
    try:
        return bool(request.Test())
    except MPI.Exception as error:
        _told(error)  # the receiver is gone, and with it the need for these bytes
        return True


def _told(error: MPI.Exception) -> PeersLost:
    """`PeersLost` for the error classes of ULFM; anything else is no failure of a peer."""
    if error.Get_error_class() in _FAILURES:
        return PeersLost(error.Get_error_string())
    raise SpotmpiError(
        f"MPI reports {error.Get_error_string()}: this is no revocation; "
        "`spotmpi doctor` shows which MPI a run uses"
    ) from error
