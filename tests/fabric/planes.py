"""The data planes that MPI jobs may have, by the names that tests call them by."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from spotmpi.fabric import Arena, DoubleBuffer, Handle, Part, Shape
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.planes.devices import Devices
from spotmpi.fabric.planes.plane import Plane, Ways, private_arena
from spotmpi.fabric.planes.shared_memory_plane import SharedMemoryPlane
from spotmpi.protocol.membership import WorkerId
from tests.fabric.crew import in_rings

HOSTS = (0, 1, 1, 2, 1)
"""Where the workers of a job are, as far as `Hosts` is asked."""


class OnHosts(SharedMemoryPlane):
    """Workers on several hosts, with rings for whatever is not small."""

    ways_of = staticmethod(in_rings)

    def __init__(self, ways: Ways) -> None:
        """By the number that mpirun gave this worker."""
        super().__init__(ways)
        self.neighbours.host = HOSTS[int(os.environ["OMPI_COMM_WORLD_RANK"])]


def Hosts(ways: Ways) -> Devices:  # noqa: N802 -- it stands for a plane
    """As `Devices`, on several hosts."""
    return Devices(ways, OnHosts)


class InPlacePlane(Plane):
    """Stands for a plane that sums at `start` and in place, as arenas without a name do. It exists
    in tests only."""

    def __init__(self, ways: Ways) -> None:
        self.neighbours = Neighbours(None, lines=False)
        self._total = ways.total

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return an arena whose results arrive where the contributions were."""
        return private_arena(layout, in_place=True)

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Do nothing: nothing depends on who the members are."""

    def start(self, part: Part) -> Handle:
        """Sum ``part``; return when the result is there."""
        self._total([part])
        return 0

    def wait(self, handles: Sequence[Handle]) -> None:
        """Do nothing: the results are there already."""

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Do nothing: no part is under way."""


class Apart(Plane):
    """Keeps results apart from contributions, and sums nothing before `wait`.

    It is no faster than `InPlacePlane`. To the layers above it behaves as faster planes do, so
    tests can check these layers with it.
    """

    def __init__(self, ways: Ways) -> None:
        self.neighbours = Neighbours(None, lines=False)
        self._total = ways.total
        self._started: dict[Handle, Part] = {}
        self._last = 0

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return an arena whose contributions stay as they are."""
        return private_arena(layout, in_place=False, state=state)

    def bind(self, members: Sequence[WorkerId], together: bool) -> None:
        """Check that nothing is under way among other members: it must have been given up."""
        if self._started:
            raise RuntimeError(f"{len(self._started)} parts are under way among other members")

    def start(self, part: Part) -> Handle:
        """Note that ``part`` is started; returns at once."""
        self._last += 1
        self._started[self._last] = part
        return self._last

    def wait(self, handles: Sequence[Handle]) -> None:
        """Sum these in the order in which they were started: the same for all members."""
        for handle in sorted(handles):
            self._total([self._started[handle]])
            del self._started[handle]

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Forget these parts."""
        for handle in handles:
            self._started.pop(handle, None)


PLANES: dict[str, Callable[[Ways], Plane]] = {
    "Node": Devices,
    "Hosts": Hosts,
    "Plain": InPlacePlane,
    "Apart": Apart,
}
