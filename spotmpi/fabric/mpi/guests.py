"""The sponsor's side of a newcomer, and the bridge between the two."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spotmpi.fabric.mpi.calls import MPI, PAUSE, Sent, peers_lost, take
from spotmpi.protocol.joining import Stage

__all__ = ["BRIDGE", "CHARTER", "COME", "PROSPECTUS", "READY", "Guest", "cross", "spawn"]

_LOG = logging.getLogger(__name__)

HELLO, PROSPECTUS, READY, COME, CHARTER = range(2, 7)
"""Tags of messages between a newcomer and its sponsor, in the order in which they are sent."""
BRIDGE = 1
"""The newcomer's rank on the bridge; the sponsor's is 0."""


@dataclass
class Guest:
    """A newcomer, as its sponsor sees it. A thread in `spawn` writes ``bridge`` and ``failure``."""

    bridge: MPI.Intracomm | None = None
    failure: str | None = None
    stage: Stage = Stage.SPAWNED
    briefed: int = 0
    """Prospectuses that were sent to it."""
    sent: list[Sent] = field(default_factory=list)

    def send(self, data: bytes, tag: int) -> None:
        """Send ``data`` to the newcomer. Returns at once."""
        assert self.bridge is not None
        try:
            self.sent.append((self.bridge.Isend([data, MPI.BYTE], BRIDGE, tag), data, self.bridge))
        except MPI.Exception as error:
            self.failure = error.Get_error_string()

    def let_go(self, why: str) -> None:
        """Give the newcomer up. It learns that from the bridge, unless it is admitted."""
        self.failure = self.failure or why
        if self.bridge is not None and self.stage is not Stage.LEARNING:
            self.bridge.Revoke()


def spawn(guest: Guest, program: list[str], known: Callable[[], None]) -> None:
    """Connect the newcomer whose stand-in ``program`` is to MPI. For a thread of the sponsor.
    ``known`` is called as soon as MPI knows the newcomer here."""
    try:
        where = MPI.Info.Create({"wdir": os.sep})
        parent = MPI.COMM_SELF.Spawn(program[0], program[1:], 1, where)
        parent.Set_errhandler(MPI.ERRORS_RETURN)
        known()
        # If the newcomer dies here, this thread waits on, but nothing else depends on it.
        while take(parent, 0, HELLO) is None:
            if guest.failure is not None:
                return
            time.sleep(PAUSE)
        bridge = parent.Merge(False)
        bridge.Set_errhandler(MPI.ERRORS_RETURN)
        guest.bridge = bridge
        _LOG.info("a bridge leads to the newcomer")
        if guest.failure is not None:  # it was let go meanwhile: only the bridge can tell it that
            bridge.Revoke()
    except MPI.Exception as error:
        guest.failure = error.Get_error_string()
        _LOG.info("no newcomer could be spawned: %s", guest.failure)


def cross() -> MPI.Intracomm:
    """Make the bridge on the newcomer's side, and return it. Blocks; raises PeersLost."""
    parent = MPI.Comm.Get_parent()
    try:
        parent.Set_errhandler(MPI.ERRORS_RETURN)
        parent.Send([b"", MPI.BYTE], 0, HELLO)
        bridge: MPI.Intracomm = parent.Merge(True)
        bridge.Set_errhandler(MPI.ERRORS_RETURN)
    except MPI.Exception as error:
        raise peers_lost(error, parent) from error
    return bridge
