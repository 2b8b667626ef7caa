"""A newcomer, its sponsor, and the bridge between the two.

A newcomer is started long before MPI knows it. When it is ready, a thread of its sponsor spawns a
stand-in that does nothing, and the launcher gives the newcomer what mpirun tells the stand-in. The
sponsor and the newcomer have a *bridge*, their own communicator, until the newcomer is a member.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from spotmpi.fabric.mpi.calls import (
    MPI,
    PAUSE,
    Sent,
    collective,
    done,
    peers_lost,
    take,
    threads,
)
from spotmpi.fabric.mpi.paths import Paths
from spotmpi.fabric.planes.travels import MESSAGE
from spotmpi.fabric.retired import Retired
from spotmpi.protocol.joining import Stage, after
from spotmpi.protocol.membership import WorkerId

_LOG = logging.getLogger(__name__)

CONNECT, HELLO, BRIEFING, READY, COME, ADMITTED = range(1, 7)
"""Tags on the bridge. MPI itself has the first one, when it connects the newcomer to all members.
The others are those of messages between the two, in the order in which they are sent."""
BRIDGE = 1
"""The newcomer's rank on the bridge; the sponsor's is 0."""

_FEW_THREADS = "MPI was not started with MPI_THREAD_MULTIPLE, without which no worker can join"


@dataclass
class Guest:
    """A newcomer, as its sponsor sees it. A thread in `spawn` writes ``bridge`` and ``failure``."""

    bridge: MPI.Intracomm | None = None
    failure: str | None = None
    stage: Stage = Stage.SPAWNED
    briefed: int = 0
    """Briefings that were sent to it."""
    sent: list[Sent] = field(default_factory=list)

    def send(self, data: bytes, tag: int) -> None:
        """Send ``data`` to the newcomer, in pieces of which the last one is shorter than the others
        (docs/adr/0033 tells why). Returns at once."""
        bridge = self.bridge
        assert bridge is not None
        try:
            for start in range(0, len(data) + 1, MESSAGE):
                piece = data[start : start + MESSAGE]
                self.sent.append((bridge.Isend([piece, MPI.BYTE], BRIDGE, tag), piece, bridge))
        except MPI.Exception as error:
            self.failure = error.Get_error_string()

    def listen(self) -> None:
        """See whether the newcomer has knocked, after its last briefing."""
        assert self.bridge is not None
        try:
            said = take(self.bridge, BRIDGE, READY)
            if said is not None and int(said) == self.briefed:
                self.stage = after(self.stage, "knocks")
        except MPI.Exception as error:
            self.failure = error.Get_error_string()

    def let_go(self, why: str) -> None:
        """Give the newcomer up. It learns that from the bridge, unless it is admitted."""
        self.failure = self.failure or why
        if self.bridge is not None and self.stage is not Stage.LEARNING:
            self.bridge.Revoke()


class Guests:
    """The newcomers that this worker sponsors."""

    def __init__(
        self,
        stand_in: tuple[str, ...],
        follow: Callable[[Iterable[WorkerId]], None],
        retired: Retired[MPI.Comm],
    ) -> None:
        """``stand_in``: the program to spawn. ``follow`` is called when MPI knows a newcomer."""
        self._stand_in = stand_in
        self._follow = follow
        self._retired = retired
        self._guests: dict[WorkerId, Guest] = {}
        self._leaving: list[Sent] = []
        """Messages to newcomers that are no guests any more."""

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Have a thread spawn the newcomer: that blocks until it is there. See `Fabric.sponsor`."""
        # At each call: `done` asks their bridge, which is freed some time after it is retired.
        self._leaving = [one for one in self._leaving if not done(one)]
        for worker in self._guests.keys() - {newcomer}:
            (guest := self._guests.pop(worker)).let_go("it is to be given up")
            self._leaving += guest.sent  # such as its briefing, which may be under way
            self._retired.add(guest.bridge)
        if newcomer is None:
            return None
        if newcomer not in self._guests:
            if not threads():
                return _FEW_THREADS
            _LOG.info("newcomer %d is spawned", newcomer)
            guest = self._guests[newcomer] = Guest()
            program = [*self._stand_in, str(newcomer)]
            known = partial(self._follow, [newcomer])
            thread = threading.Thread(target=spawn, args=(guest, program, known), daemon=True)
            thread.start()
        return self._guests[newcomer].failure

    def brief(self, briefing: Callable[[], bytes]) -> None:
        """Send the briefing to newcomers that wait for it."""
        for guest in self._guests.values():
            spawned = guest.stage is Stage.SPAWNED and guest.failure is None
            if spawned and guest.bridge is not None:
                guest.stage = after(guest.stage, "ready")
                guest.briefed += 1
                guest.send(briefing(), BRIEFING)

    def move_on(self) -> None:
        """Have newcomers briefed again."""
        for guest in self._guests.values():
            if guest.stage in (Stage.BRIEFED, Stage.KNOCKING):
                guest.stage = Stage.SPAWNED

    def knocking(self) -> WorkerId | None:
        """Return the newcomer that has knocked, or None."""
        for worker, guest in self._guests.items():
            if guest.stage is Stage.BRIEFED and guest.failure is None:
                guest.listen()
            if guest.stage is Stage.KNOCKING and guest.failure is None:
                return worker
        return None

    def invite(self, newcomer: WorkerId) -> MPI.Intracomm:
        """Tell the newcomer to come. Returns its bridge."""
        guest = self._guests[newcomer]
        assert guest.bridge is not None
        guest.send(b"", COME)
        return guest.bridge

    def turn_away(self, newcomer: WorkerId) -> None:
        """Give up the newcomer, which could not come."""
        self._guests[newcomer].let_go("it could not be connected to all workers")

    def welcome(self, newcomer: WorkerId, briefing: bytes) -> None:
        """Send the briefing to the newcomer, which was admitted."""
        guest = self._guests[newcomer]
        guest.stage = after(guest.stage, "admitted")
        guest.send(briefing, ADMITTED)


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


class Arrival:
    """This newcomer's way to its membership."""

    def __init__(self, paths: Paths, retired: Retired[MPI.Comm]) -> None:
        """Make the bridge. Blocks; raises PeersLost."""
        self._paths = paths
        self._retired = retired
        parent = MPI.Comm.Get_parent()
        try:
            parent.Set_errhandler(MPI.ERRORS_RETURN)
            parent.Send([b"", MPI.BYTE], 0, HELLO)
            self._bridge: MPI.Intracomm = parent.Merge(True)
            self._bridge.Set_errhandler(MPI.ERRORS_RETURN)
        except MPI.Exception as error:
            raise peers_lost(error, parent) from error
        self._briefed = 0
        """Briefings that have come."""
        self._pieces: dict[int, bytes] = {}
        """What has come by tag, of which more is to come."""

    def meet(self) -> bytes:
        """Perform `Meet`."""
        self._briefed += 1
        return self._await(BRIEFING)[1]

    def knock(self) -> bytes:
        """Perform `Knock`."""
        try:
            self._bridge.Send([str(self._briefed).encode(), MPI.BYTE], 0, READY)
        except MPI.Exception as error:
            raise peers_lost(error, self._bridge) from error
        tag, said = self._await(COME, BRIEFING)
        if tag == BRIEFING:
            self._briefed += 1
            return said
        alone, bridge = MPI.COMM_SELF, self._bridge
        between = collective(bridge, lambda: alone.Create_intercomm(0, bridge, 0, CONNECT))
        between.Set_errhandler(MPI.ERRORS_RETURN)
        data = collective(between, lambda: between.Merge(high=True))
        data.Set_errhandler(MPI.ERRORS_RETURN)
        self._paths.enter(collective(data, lambda: self._paths.furnish(data)))
        _, briefing = self._await(ADMITTED)
        self._retired.add(between, bridge)
        return briefing

    def _await(self, *tags: int) -> tuple[int, bytes]:
        """Return what comes first with one of ``tags``, after its tag. Blocks."""
        try:
            while True:
                for tag in tags:
                    while (piece := take(self._bridge, 0, tag)) is not None:
                        self._pieces[tag] = self._pieces.get(tag, b"") + piece
                        if len(piece) < MESSAGE:
                            return tag, self._pieces.pop(tag)
                time.sleep(PAUSE)
        except MPI.Exception as error:
            raise peers_lost(error, self._bridge) from error
