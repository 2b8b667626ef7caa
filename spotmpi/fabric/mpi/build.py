"""The build: all members alive replace their paths, together (see `recovery`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotmpi.errors import PeersLost
from spotmpi.fabric.mpi.calls import MPI, PAUSE, Path, collective, peers_lost, ranks_of
from spotmpi.fabric.mpi.departure import Departure
from spotmpi.fabric.mpi.guests import BRIDGE, CONNECT, Guests
from spotmpi.fabric.mpi.paths import Paths
from spotmpi.fabric.retired import Retired
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.recovery import Built, PlannedChange


class Build:
    """This worker's part in the builds of new paths."""

    def __init__(self, paths: Paths, guests: Guests, retired: Retired[MPI.Comm]) -> None:
        self._paths = paths
        self._guests = guests
        self._retired = retired
        self._departure: Departure | None = None
        """Departure from the last build, if there was one."""

    def rebuild(self, members: frozenset[WorkerId] | None, change: PlannedChange) -> Built:
        """Perform `Rebuild`."""
        data, control = self._paths.data, self._paths.control
        self._paths.mailbox.forget(data.path.workers, self._retired)
        self._retired.free()
        shrunk, alive = _shrink(data.path)
        if control.agree(shrunk is not None and members == frozenset(alive)):
            assert shrunk is not None
            self._departure = Departure(self._paths.me, shrunk, alive)
            if not change:
                self._retired.add(data.path.comm)
                data.go_on(Path(shrunk, alive))
                return Built(True, frozenset(alive))
            old = data.path.comm, control.path.comm
            if self._change(shrunk, alive, change):
                self._departure.tell(change.leaving)
                self._retired.add(*old, shrunk)
                newcomer = None if change.newcomer is None else self._paths.workers[-1]
                return Built(True, frozenset(alive), newcomer)
        if change.newcomer is not None and change.sponsor == self._paths.me:
            self._guests.turn_away(change.newcomer)
        self._retired.add(shrunk)
        while True:
            renewed, alive = _shrink(control.path)
            if control.agree(renewed is not None):
                break
            self._retired.add(renewed)
        assert renewed is not None
        self._retired.add(control.path.comm)
        control.renew(Path(renewed, alive))
        return Built(False, frozenset(alive))

    def depart(self) -> None:
        """Perform `Depart`."""
        if self._departure is None:
            return
        control = self._paths.control
        others = control.path.workers
        self._departure.tell(others)
        control.ring(others)
        while True:
            control.listen()
            if not self._departure.within(control.known_dead):
                return
            control.doorbell.wait(PAUSE)

    def _change(self, shrunk: MPI.Intracomm, alive: list[WorkerId], change: PlannedChange) -> bool:
        """Go on from ``shrunk`` without the workers that leave, or with the newcomer. True if done.

        All members end each stage together. A revocation that arrives while a communicator is made
        crashes Open MPI 5.0.11, so none is revoked before all have it.
        """
        if change.leaving:
            return self._go_on_without(shrunk, self._paths.me in change.leaving)
        assert change.newcomer is not None
        assert change.sponsor is not None
        sponsors = change.sponsor == self._paths.me
        bridge = self._guests.invite(change.newcomer) if sponsors else MPI.COMM_SELF
        leader = alive.index(change.sponsor)
        between = self._stage(
            shrunk, lambda: shrunk.Create_intercomm(leader, bridge, BRIDGE, CONNECT)
        )
        self._retired.add(between)
        data = between and self._stage(between, lambda: between.Merge(high=False))
        furnished = data and self._stage(data, lambda: self._paths.furnish(data))
        if furnished is None:
            return False
        self._paths.enter(furnished)
        return True

    def _go_on_without(self, shrunk: MPI.Intracomm, leaves: bool) -> bool:
        """Remove the workers that leave from all communicators of the others. True if done. MPI may
        never learn that they are gone, and would wait for them."""
        place = MPI.UNDEFINED if leaves else 0
        part = self._stage(shrunk, lambda: shrunk.Split(place, shrunk.Get_rank()))
        if part is None:
            return False
        furnished = self._stage(
            shrunk if leaves else part, lambda: leaves or self._paths.furnish(part)
        )
        if furnished is not None and not leaves:
            self._paths.enter(furnished)
        return furnished is not None

    def _stage(self, comm: MPI.Comm, make: Callable[[], Any]) -> Any:
        """Return what all have made together from ``comm``, or None if one of them could not."""
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        made = None
        try:
            made = collective(comm, make)
        except PeersLost:
            comm.Revoke()  # the others may wait for this worker in it
        return made if self._paths.control.agree(made is not None) else None


def _shrink(path: Path) -> tuple[MPI.Intracomm | None, list[WorkerId]]:
    """Return a communicator of those alive, and these by rank. None: it could not be made."""
    comm, workers = path
    try:
        shrunk = MPI.Intracomm(comm.Shrink())
    except MPI.Exception as error:
        peers_lost(error, comm)
        return None, []
    shrunk.Set_errhandler(MPI.ERRORS_RETURN)
    group = shrunk.Get_group()
    try:
        return shrunk, [workers[rank] for rank in ranks_of(group, comm)]
    finally:
        group.Free()
