"""The data planes that MPI jobs may have, by the names that tests call them by."""

from __future__ import annotations

import os
from collections.abc import Callable

from spotmpi.fabric.planes.devices import Devices
from spotmpi.fabric.planes.plane import Apart, InPlacePlane, Plane, Ways
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from tests.fabric.crew import in_rings

HOSTS = (0, 1, 1, 2, 1)
"""Where the workers of a job are, as far as `Hosts` is asked."""


class OnHosts(SharedMemoryPlane):
    """Workers on several hosts, with rings for whatever is not small."""

    ways_of = staticmethod(in_rings)

    @staticmethod
    def host() -> int:
        """By the number that mpirun gave this worker."""
        return HOSTS[int(os.environ["OMPI_COMM_WORLD_RANK"])]


def Hosts(ways: Ways) -> Devices:  # noqa: N802 -- it stands for a plane
    """As `Devices`, on several hosts."""
    return Devices(ways, OnHosts)


PLANES: dict[str, Callable[[Ways], Plane]] = {
    "Node": Devices,
    "Hosts": Hosts,
    "Plain": InPlacePlane,
    "Apart": Apart,
}
