"""The two paths between the members, and how they are made."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from spotmpi.fabric.mpi.calls import MPI, Path, duplicate
from spotmpi.fabric.mpi.control import ControlPath
from spotmpi.fabric.mpi.data import DataPath
from spotmpi.fabric.mpi.mailbox import Mailbox
from spotmpi.fabric.neighbours.neighbours import on_several_hosts
from spotmpi.fabric.planes.plane import Plane, Ways
from spotmpi.fabric.token_bytes import Row, pack_row, unpack_rows
from spotmpi.launcher_channel import Name
from spotmpi.protocol.membership import Worker, WorkerId


class Furnished(NamedTuple):
    """Communicators of the same members, and what these have said of themselves."""

    data: MPI.Intracomm
    control: MPI.Intracomm
    rows: list[Row]
    """The members, by rank."""
    mail: Path | None
    """A path for messages, if a member is new."""
    together: bool
    """True if all can share memory with their neighbours."""


class Paths:
    """This worker's two paths to the other members."""

    def __init__(
        self,
        me: WorkerId,
        plane: Callable[[Ways], Plane],
        follow: Callable[[Iterable[WorkerId]], None],
        bury: Callable[[Name], None],
    ) -> None:
        self.me = me
        self.data = DataPath(me, plane)
        self.control = ControlPath(me, self.data.plane.neighbours, bury)
        self.mailbox = Mailbox(me, self.data.plane.neighbours.is_near)
        self._follow = follow
        self.workers = [Worker(me, socket.gethostname())]
        """The members when these paths were entered, by rank."""

    def others(self) -> Collection[WorkerId]:
        """Return the other members that are not known to be dead."""
        return set(self.data.path.workers) - self.control.known_dead - {self.me}

    def broken(self) -> bool:
        """Return True if a member is known here to be lost, or has revoked the data path."""
        self.control.listen()  # the next poll reports the losses that this finds
        return not self.control.known_dead.isdisjoint(self.data.path.workers) or self.data.broken()

    def furnish(self, data: MPI.Intracomm) -> Furnished:
        """Make what goes with ``data``, and introduce the members. Collective."""
        control = duplicate(data)
        bell, card = self.control.doorbell.address, self.data.plane.neighbours.card()
        mine = pack_row(Row(self.me, socket.gethostname(), bell, card, _own_name()))
        everybody = bytearray(len(mine) * data.Get_size())
        data.Allgather([mine, MPI.BYTE], [everybody, MPI.BYTE])
        rows = unpack_rows(everybody)
        cards = {row.worker: row.card for row in rows}
        mail = self.mailbox.furnish(data, [row.worker for row in rows])
        together = bytearray([self.data.plane.neighbours.reach(cards)])
        data.Allreduce(MPI.IN_PLACE, [together, MPI.UNSIGNED_CHAR], MPI.MIN)
        return Furnished(data, control, rows, mail, bool(together[0]))

    def enter(self, furnished: Furnished) -> None:
        """Use these communicators from now on. Local."""
        data, control, rows, mail, together = furnished
        self.workers = [Worker(row.worker, row.host) for row in rows]
        ids = [row.worker for row in rows]
        self._follow(ids)
        self.control.enter(control, rows)
        self.mailbox.enter(mail)
        self.data.enter(Path(data, ids), together, on_several_hosts(row.card for row in rows))


def _own_name() -> Name:
    """Return the name by which MPI knows this process."""
    space, rank = os.environ.get("PMIX_NAMESPACE", ""), os.environ.get("PMIX_RANK", "0")
    return Name(space.encode(), int(rank))
