"""Marks that workers send each other on the control path, over MPI: small messages that nobody
waits for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from spotmpi.fabric import MARK
from spotmpi.fabric.mpi.calls import MPI, Path, Sent, done, peers_lost
from spotmpi.protocol.membership import WorkerId

__all__ = ["MpiSignals"]

_TAG = 2
"""The tag of marks. Tokens have another one."""


class MpiSignals:
    """One worker's side of the marks.

    Each mark goes straight to each of the others, by Issend as models do (`asks`). So a mark
    that is not taken yet stays at its sender. That is no more than a mark or two, as every worker
    takes what has come when it sends or reads marks.
    """

    def __init__(
        self, path: Callable[[], Path], others: Callable[[], Collection[WorkerId]]
    ) -> None:
        """``others`` returns the other members that are not known to be dead."""
        self._path = path
        self._others = others
        self._sending: list[Sent] = []
        self._known: dict[WorkerId, bytes] = {}
        self._status = MPI.Status()

    def tell(self, mark: bytes) -> None:
        """Perform `Signal`."""
        self.take()
        self._sending = [one for one in self._sending if not done(one)]
        comm, members = self._path()
        others = self._others()
        for rank, worker in enumerate(members):
            if worker in others:
                try:
                    request = comm.Issend([mark, MPI.BYTE], rank, _TAG)
                except MPI.Exception as error:
                    peers_lost(error, comm)  # it is lost: a poll will report that
                else:
                    self._sending.append((request, mark, comm))

    def heard(self) -> Mapping[WorkerId, bytes | None]:
        """Perform `Signals`."""
        self.take()
        return {worker: self._known.get(worker) for worker in self._others()}

    def move_on(self) -> None:
        """Begin another training: forget the marks that have come so far."""
        self._known.clear()

    def take(self) -> None:
        """Take the marks that have come. Never waits."""
        comm, members = self._path()
        try:
            while True:
                # The first probe makes MPI fetch what has come, the second one finds it.
                message = comm.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
                message = message or comm.Improbe(MPI.ANY_SOURCE, _TAG, self._status)
                if message is None:
                    return
                sender, data = self._status.Get_source(), bytearray(MARK)
                size = self._status.Get_count(MPI.BYTE)
                message.Recv([data, MPI.BYTE])
                self._known[members[sender]] = bytes(data[:size])
        except MPI.Exception as error:
            peers_lost(error, comm)  # a poll will report a loss, or the end of this path
