"""The data path, which carries collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotmpi.arrays.backend import HOST, Buffer, backend_of
from spotmpi.fabric.mpi.calls import MPI, Path, collective, is_broken, sum_in_place, threads
from spotmpi.fabric.mpi.line import MpiLine
from spotmpi.fabric.planes.plane import Part, Plane, Ways
from spotmpi.fabric.planes.travels import MESSAGE
from spotmpi.fabric.planes.unshared_sums import bring
from spotmpi.protocol.membership import WorkerId


class DataPath:
    """This worker's side of the data path, and the plane that sums there."""

    def __init__(self, me: WorkerId, plane: Callable[[Ways], Plane]) -> None:
        self.path = Path(MPI.COMM_SELF, [me])
        """Communicator of the members. A newcomer is alone as long as it is no member."""
        line = MpiLine(lambda: self.path)
        self.plane = plane(Ways(self._sum, self.broken, line, threads()))
        self._together = False
        """True if members of one host share memory."""
        self._most: int | None = None
        """Most bytes that one call of MPI sums; None: as many as there are."""

    def enter(self, path: Path, together: bool, several_hosts: bool) -> None:
        """Use ``path`` from now on. ``together``: members of one host share memory.
        ``several_hosts``: not all members are on one host."""
        self._together, self._most = together, MESSAGE if several_hosts else None
        self.go_on(path)

    def go_on(self, path: Path) -> None:
        """Use ``path`` from now on, to those of the members that remain."""
        self.path = path
        self.plane.bind(path.workers, self._together)

    def revoke(self) -> None:
        """Interrupt this path for all members."""
        self.path.comm.Revoke()
        self.plane.interrupt()

    def share(self, source: WorkerId, buffers: Sequence[Buffer]) -> None:
        """Copy ``buffers`` of worker ``source`` to all others. Collective."""
        comm, workers = self.path
        root = workers.index(source)
        for buffer in buffers:
            if self.plane.is_everywhere(buffer):
                continue
            backend = backend_of(buffer)
            here = buffer if backend is HOST else backend.to_host(buffer)
            memory = here.view("uint8")
            for start in range(0, len(memory), MESSAGE):  # docs/adr/0033 tells why
                piece = memory[start : start + MESSAGE]
                collective(comm, comm.Bcast, [piece, MPI.BYTE], root)
            if backend is not HOST:
                backend.from_host(buffer, here)

    def _sum(self, parts: Sequence[Part]) -> None:
        results = [*map(_in_place, parts)]
        sum_in_place(self.path.comm, results, self._most)
        for part, result in zip(parts, results, strict=True):
            if result is not part.result:
                backend_of(part.result).from_host(part.result, result)

    def broken(self) -> bool:
        """Return True if MPI knows that a member is lost, or has revoked this path."""
        MPI.COMM_SELF.Iprobe()  # MPI learns of losses only while it is called
        return is_broken(self.path.comm)


def _in_place(part: Part) -> Buffer:
    """Return an array in the memory of the host with what this worker adds to the sum of a part. It
    is the part's result, unless that is elsewhere."""
    brought, result = part.contribution, part.result
    backend = backend_of(result)
    if backend is not HOST:  # this MPI may not know the device's memory
        brought = result = backend.to_host(brought)
    bring(brought, part.weight, result)  # MPI would copy too, and always works in place
    return result
