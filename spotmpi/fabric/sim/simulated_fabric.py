"""The fabric of one worker in a simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from spotmpi.fabric import Arena, Background, Between, Fabric, Part, Request, Shape
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from spotmpi.fabric.sim.simulation import Simulation
from spotmpi.protocol.membership import WorkerId

T = TypeVar("T")


class SimulatedFabric(Fabric):
    """One worker's place in a simulation, which performs the worker's steps as a whole."""

    def __init__(self, me: WorkerId, simulation: Simulation) -> None:
        self.me = me
        self.membership = simulation.membership
        self.simulation = simulation

    def arena(
        self,
        layout: Sequence[Shape],
        name: str = "",
        state: DoubleBuffer | None = None,
    ) -> Arena:
        """Return memory that the simulation makes."""
        return self.simulation.data_path.arena(layout, name, state)

    def between(self, workers: Sequence[WorkerId], parts: Sequence[Part]) -> Between | None:
        """Return how the simulation summed ``parts``."""
        return self.simulation.ways.between(self.me, workers, parts)

    def sponsor(self, newcomer: WorkerId | None) -> str | None:
        """Sponsor a newcomer of the simulation."""
        return self.simulation.newcomers.sponsor(self.me, newcomer)

    def guest(self) -> WorkerId | None:
        """Return the newcomer that waits to be admitted, or None."""
        return self.simulation.newcomers.guest(self.me)

    def brief(self, briefing: Callable[[], bytes]) -> None:
        """Send the briefing to newcomers that wait for it."""
        self.simulation.newcomers.brief(self.me, briefing)

    def move_on(self) -> None:
        """Begin another training."""
        self.simulation.newcomers.move_on(self.me)
        self.simulation.models.move_on(self.me)
        self.simulation.data_path.mailboxes.move_on(self.me)
        self.simulation.sums.move_on()

    def background(self, work: Callable[[], T], name: str) -> Background[T]:
        """Have the simulation do ``work`` some time later."""
        return self.simulation.errands.begin(self.me, work)

    def clock(self) -> float:
        """Return simulated seconds."""
        return self.simulation.time.now

    def perform(self, request: Request) -> Any:
        """Raise NotImplementedError: a single request would have to wait."""
        raise NotImplementedError("a simulation performs whole generators: see Simulation.start")
