"""The control path, which carries tokens between two live workers."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from spotmpi.fabric.doorbell import Doorbell
from spotmpi.fabric.mpi.calls import (
    EVIDENCE,
    MPI,
    PAUSE,
    Path,
    Sent,
    done,
    is_failure,
    no_loss,
    peers_lost,
    ranks_of,
)
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.token_bytes import Row, decode, encode
from spotmpi.launcher_channel import Name
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.recovery import ControlRevoked, Event, Lost, Received, Token

_LOG = logging.getLogger(__name__)

_TAG = 1
"""The tag of tokens. Marks have another one (`signals`)."""


class ControlPath:
    """This worker's side of the control path: tokens, and word of losses."""

    def __init__(self, me: WorkerId, neighbours: Neighbours, bury: Callable[[Name], None]) -> None:
        """``bury`` tells MPI of a neighbour's death."""
        self._me = me
        self._neighbours = neighbours
        self._bury = bury
        self.path = Path(MPI.COMM_SELF, [me])
        """Communicator of the members. A newcomer is alone as long as it is no member."""
        self.doorbell = Doorbell()
        self._bells: Mapping[WorkerId, bytes] = {}
        """Addresses of the doorbells of this host."""
        self._names: Mapping[WorkerId, Name] = {}
        """MPI's name of each member's process."""
        self.known_dead: set[WorkerId] = set()
        self._revocation_told = False
        self._events: deque[Event] = deque()
        self._sending: list[Sent] = []
        self._deaf_until: float | None = None
        """Time after which errors of this path that no loss explains are raised."""
        self._status = MPI.Status()

    def enter(self, comm: MPI.Intracomm, rows: list[Row]) -> None:
        """Use ``comm`` from now on, whose members are these by rank."""
        here = next(row.host for row in rows if row.worker == self._me)
        self._bells = {row.worker: row.bell for row in rows if row.host == here}
        self._names = {row.worker: row.name for row in rows}
        self.renew(Path(comm, [row.worker for row in rows]))

    def renew(self, path: Path) -> None:
        """Use ``path`` from now on. Of the events on the old one only losses count."""
        self.path = path
        self._revocation_told = False
        self._events = deque(event for event in self._events if isinstance(event, Lost))

    def send(self, to: WorkerId, token: Token) -> None:
        """Send a token. Returns at once."""
        data, (comm, workers) = encode(token), self.path
        try:
            sent = comm.Isend([data, MPI.BYTE], workers.index(to), _TAG)
        except MPI.Exception as error:
            peers_lost(error, comm)  # a poll will report the loss
            return
        self._sending = [one for one in self._sending if not done(one)]
        self._sending.append((sent, data, comm))
        self.ring([to])

    def ring(self, workers: Iterable[WorkerId]) -> None:
        """Wake those of ``workers`` that are on this host."""
        for worker in self._bells.keys() & workers:
            self.doorbell.ring(self._bells[worker])

    def revoke(self) -> None:
        """Interrupt this path for all members."""
        self.path.comm.Revoke()
        self._revocation_told = True
        self.ring(self.path.workers)

    def poll(self) -> Event:
        """Wait for the next event."""
        while True:
            token = self._token()
            if token is not None:
                return Received(token)
            self.listen()
            if self._events:
                return self._events.popleft()
            self.doorbell.wait(PAUSE)

    def _token(self) -> Token | None:
        """Return a token that has come, or None, also if a failure keeps MPI from looking."""
        if self._revocation_told:
            return None
        try:
            # The first probe makes MPI fetch what has come, the second one finds it.
            message = self.path.comm.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
            message = message or self.path.comm.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
            if message is None:
                self._deaf_until = None
                return None
            data = bytearray(self._status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
        except MPI.Exception as error:
            # `listen` learns of a loss, or of the end of this path. Other errors must pass soon.
            now = time.monotonic()
            self._deaf_until = self._deaf_until or now + EVIDENCE
            if not is_failure(error) and now > self._deaf_until:
                raise no_loss(error) from error
            return None
        self._deaf_until = None
        return decode(data)

    def listen(self) -> None:
        """Look for losses and a revocation of this path. The next poll reports them."""
        lost = self._newly_dead()
        if lost:
            self._events.append(Lost(lost))
        if not self._revocation_told and self.path.comm.Is_revoked():
            self._revocation_told = True
            self._events.append(ControlRevoked())

    def _newly_dead(self) -> frozenset[WorkerId]:
        # A newcomer that is being connected may be a neighbour already, and is no member.
        dead = set(self._neighbours.dead()) & self._names.keys() - self.known_dead
        for worker in dead:
            self._bury(self._names[worker])
        comm, workers = self.path
        failed = comm.Get_failed()
        try:
            if failed.Get_size():
                # Without the acknowledgement, a probe for any source fails for ever.
                comm.Ack_failed()
                dead.update(map(workers.__getitem__, ranks_of(failed, comm)))
        finally:
            failed.Free()
        fresh = dead - self.known_dead
        self.known_dead |= fresh
        if fresh:
            _LOG.debug("these are dead: %s", sorted(fresh))
        return frozenset(fresh)

    def agree(self, flag: bool) -> bool:
        """Return True if ``flag`` is True on all alive. All get one answer, even if one dies."""
        comm = self.path.comm
        while True:
            comm.Ack_failed()
            try:
                return bool(comm.Agree(int(flag)))
            except MPI.Exception as error:
                # Not everybody had acknowledged a loss. All alive get this same error.
                peers_lost(error, comm)
