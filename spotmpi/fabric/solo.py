"""A fabric of one worker: ``python train.py`` simply trains, with or without MPI installed."""

from __future__ import annotations

import socket
import time
from typing import Any

from spotmpi.fabric import Fabric, Rebuild, Reduce, Request, Revoke, Share
from spotmpi.membership import Membership
from spotmpi.recovery import Built


class SoloFabric(Fabric):
    """Nobody to lose and nobody to wait for."""

    def __init__(self) -> None:
        self.me = 0
        self.membership = Membership.first([socket.gethostname()])

    def perform(self, request: Request) -> Any:
        """Sums of one; a build that is sealed at once, because training ends through the door."""
        match request:
            case Rebuild(members):
                return Built(members is not None, frozenset({self.me}))
            case Reduce() | Share() | Revoke():
                pass
            case _:
                raise RuntimeError(f"a worker alone was asked to {request}")
        return None

    def clock(self) -> float:
        """Monotonic seconds of this host."""
        return time.monotonic()
