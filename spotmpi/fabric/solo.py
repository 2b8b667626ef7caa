"""A fabric of one worker: ``python train.py`` simply trains, with or without MPI installed."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from spotmpi.fabric import (
    AddUp,
    Arena,
    Cancel,
    Depart,
    Fabric,
    Fetch,
    Message,
    Post,
    Proceed,
    Publish,
    Rebuild,
    Receive,
    Request,
    Revoke,
    Shape,
    Share,
    Signal,
    Signals,
    Start,
    Wait,
    Work,
)
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.planes.plane import private_arena
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.recovery import Built


class SoloFabric(Fabric):
    """The fabric of a worker that is alone: it loses nobody and waits for nobody."""

    def __init__(self) -> None:
        self.me = 0
        self.membership = Membership.first([socket.gethostname()])
        self._posted: dict[bytes, deque[bytes]] = {}
        """What it has posted to itself, by key."""

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return an arena in which the contribution is the sum."""
        return private_arena(layout, in_place=True)

    def perform(self, request: Request) -> Any:
        """Perform ``request`` at once. Training ends with a build, which is sealed at once too."""
        match request:
            case Rebuild(members):
                return Built(members is not None, frozenset({self.me}))
            case Start():
                return 0
            case Work(work):
                return work()
            case Proceed() | Share() | Revoke() | Wait() | Cancel() | Depart():
                pass
            case Publish() | Fetch() | Signal():
                pass  # there is nobody to show, ask or tell anything
            case Post(_, key, content, lent):
                self._posted.setdefault(key, deque()).append(b"".join([content, *lent]))
            case Receive(_, key) if key in self._posted:
                content = self._posted[key].popleft()
                if not self._posted[key]:
                    del self._posted[key]
                return Message(self.me, memoryview(bytearray(content)))
            case Receive(waits=False):
                return None
            case AddUp():
                return 1
            case Signals():
                return {}
            case _:
                raise RuntimeError(f"a worker alone was asked to {request}")
        return None

    def clock(self) -> float:
        """Return monotonic seconds of this host."""
        return time.monotonic()
