"""Who may still have to ask this process for the answer of a build.

`MPI_Comm_agree` returns as soon as its answer is certain (Open MPI 5.0), on the root before the
others have it. If a worker dies that should have passed it on, those who wait for it ask the root;
and where that process has ended without a failure they wait for ever. So all who were in a build
say when they are out of it, to those who want to end, and these wait for that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spotmpi.fabric.mpi_calls import MPI, Sent, done, peers_lost, take
from spotmpi.protocol.membership import WorkerId

__all__ = ["Departure"]

_OUT = 9
"""No other message on the data path has this tag."""


class Departure:
    """From one build. All of it is local, and none of it waits."""

    def __init__(self, me: WorkerId, comm: MPI.Intracomm, ids: Sequence[WorkerId]) -> None:
        """``comm``: what the build has made of all who came, ``ids`` by rank. To be kept."""
        self._comm = comm
        self._ranks = {worker: rank for rank, worker in enumerate(ids)}
        self._untold = set(ids) - {me}
        self._within = set(self._untold)
        """Who has not said that it is out."""
        self._telling: dict[WorkerId, Sent] = {}
        """Who may not have been reached yet."""

    def tell(self, workers: Collection[WorkerId]) -> None:
        """This worker is out of the build: let these know, if they do not yet."""
        for worker in self._untold.intersection(workers):
            self._untold.remove(worker)
            try:
                request = self._comm.Isend([b"", MPI.BYTE], self._ranks[worker], _OUT)
                self._telling[worker] = request, b"", self._comm
            except MPI.Exception as error:
                peers_lost(error, self._comm)  # it is dead

    def within(self, dead: Collection[WorkerId]) -> Collection[WorkerId]:
        """Those who may still have to ask this worker, or wait for its word. ``dead``: as far as is
        known; what is sent to these may never leave."""
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
