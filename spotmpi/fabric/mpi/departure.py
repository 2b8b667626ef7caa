"""Tells which workers may still have to ask this process for the answer of a build.

In Open MPI 5.0 `MPI_Comm_agree` returns as soon as its answer is certain: on the root before the
others have it. If a worker dies that should have passed it on, those that wait for it ask the root.
If that process has ended without a failure, they wait for ever. So every worker that was in a build
tells those that want to end when it is out of it, and these wait for that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spotmpi.fabric.mpi.calls import MPI, Sent, done, peers_lost, take
from spotmpi.protocol.membership import WorkerId

__all__ = ["Departure"]

_OUT = 9
"""The tag of these messages. No other message on the data path has it."""


class Departure:
    """Departure from one build. All methods are local, and none waits."""

    def __init__(self, me: WorkerId, comm: MPI.Intracomm, ids: Sequence[WorkerId]) -> None:
        """``comm``: made by the build of all who came; must be kept. ``ids``: workers by rank."""
        self._comm = comm
        self._ranks = {worker: rank for rank, worker in enumerate(ids)}
        self._untold = set(ids) - {me}
        self._within = set(self._untold)
        """Workers that have not said that they are out."""
        self._telling: dict[WorkerId, Sent] = {}
        """Messages to workers that may not have been reached yet."""

    def tell(self, workers: Collection[WorkerId]) -> None:
        """Tell ``workers`` that this worker is out of the build, each one once."""
        for worker in self._untold.intersection(workers):
            self._untold.remove(worker)
            try:
                request = self._comm.Isend([b"", MPI.BYTE], self._ranks[worker], _OUT)
                self._telling[worker] = request, b"", self._comm
            except MPI.Exception as error:
                peers_lost(error, self._comm)  # it is dead

    def within(self, dead: Collection[WorkerId]) -> Collection[WorkerId]:
        """Return the workers that may still have to ask this worker, or wait for its message.
        ``dead``: workers known to be dead. What is sent to these may never leave."""
        for worker in [*self._within]:
            try:
                if worker in dead or take(self._comm, self._ranks[worker], _OUT) is not None:
                    self._within.remove(worker)
            except MPI.Exception as error:
                peers_lost(error, self._comm)
                self._within.remove(worker)
        for worker, sent in [*self._telling.items()]:
            if worker in dead or done(sent):
                del self._telling[worker]
        return self._within | self._telling.keys()
