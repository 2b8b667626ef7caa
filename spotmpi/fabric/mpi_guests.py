"""A newcomer at its sponsor's side, and the bridge between them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spotmpi.fabric.mpi_calls import MPI, PAUSE, Sent, peers_lost, take
from spotmpi.protocol.joining import Stage

__all__ = ["BRIDGE", "CHARTER", "COME", "PROSPECTUS", "READY", "Guest", "cross", "spawn"]

_LOG = logging.getLogger(__name__)

HELLO, PROSPECTUS, READY, COME, CHARTER = range(2, 7)
"""Tags between a newcomer and its sponsor, in this order."""
BRIDGE = 1
"""The newcomer's rank on the bridge; the sponsor's is 0."""


@dataclass
class Guest:
    """A newcomer, at its sponsor's side; a thread of the sponsor's writes the first two."""

    bridge: MPI.Intracomm | None = None
    failure: str | None = None
    stage: Stage = Stage.SPAWNED
    briefed: int = 0
    """How often."""
    sent: list[Sent] = field(default_factory=list)

    def send(self, data: bytes, tag: int) -> None:
        """Send it to the newcomer, at once."""
        assert self.bridge is not None
        try:
            self.sent.append((self.bridge.Isend([data, MPI.BYTE], BRIDGE, tag), data, self.bridge))
        except MPI.Exception as error:
            self.failure = error.Get_error_string()

    def let_go(self, why: str) -> None:
        """Nothing will come of it; it learns that from the bridge."""
        self.failure = self.failure or why
        if self.bridge is not None and self.stage is not Stage.LEARNING:
            self.bridge.Revoke()


def spawn(guest: Guest, program: list[str], known: Callable[[], None]) -> None:
    """A sponsor's thread: bring the newcomer in whose stand-in this program is. ``known`` is called
    as soon as MPI knows it here."""
    try:
        where = MPI.Info.Create({"wdir": os.sep})
        parent = MPI.COMM_SELF.Spawn(program[0], program[1:], 1, where)
        parent.Set_errhandler(MPI.ERRORS_RETURN)
        known()
        # One that dies here is waited for in vain, and in peace: nothing else depends on it.
        while take(parent, 0, HELLO) is None:
            if guest.failure is not None:
                return
            time.sleep(PAUSE)
        bridge = parent.Merge(False)
        bridge.Set_errhandler(MPI.ERRORS_RETURN)
        guest.bridge = bridge
        _LOG.info("a bridge leads to the newcomer")
        if guest.failure is not None:  # it was let go meanwhile, which only the bridge can tell it
            bridge.Revoke()
    except MPI.Exception as error:
        guest.failure = error.Get_error_string()
        _LOG.info("no newcomer could be spawned: %s", guest.failure)


def cross() -> MPI.Intracomm:
    """A newcomer's side of that: its bridge."""
    parent = MPI.Comm.Get_parent()
    try:
        parent.Set_errhandler(MPI.ERRORS_RETURN)
        parent.Send([b"", MPI.BYTE], 0, HELLO)
        bridge: MPI.Intracomm = parent.Merge(True)
        bridge.Set_errhandler(MPI.ERRORS_RETURN)
    except MPI.Exception as error:
        raise peers_lost(error, parent) from error
    return bridge
