"""Tables that go with rounds of steps: in each, every worker tells some numbers, and all read them.

With an asynchronous strategy workers tell their pace with each round. With a policy they tell every
few steps how they do. All is local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.fabric import Arena, Shape
from spotmpi.protocol import gradient_noise, paces, tables
from spotmpi.protocol.gradient_noise import Lengths
from spotmpi.protocol.paces import Pace
from spotmpi.training.state.training_state import TrainingState

__all__ = ["WorkerTables"]

_SURVEY = paces.WIDTH, gradient_noise.WIDTH
"""Numbers of a row in the two tables of a survey."""


class WorkerTables:
    """The tables of the open round of steps, or of the last one."""

    def __init__(
        self,
        arena_of: Callable[..., Arena],
        training: TrainingState[Any],
        workers: Callable[[], int],
    ) -> None:
        """``workers``: returns how many took part in the last round; the same on all."""
        self._arena_of = arena_of
        self._training = training
        self._workers = workers
        self._made: dict[str, Arena] = {}
        self._paces: list[Arena] = []
        """The table of paces of the open round, or of the last one, if there is one."""
        self._survey: list[Arena] = []
        """The tables of the survey that goes with the open round, or went with the last one."""
        # From the beginning, so that nobody waits for them when all change to such a strategy, and
        # no survey measures how long it takes to make them.
        if any(strategy.asynchronous for strategy in training.choice.strategies):
            self._table("paces", paces.WIDTH)
        if training.choice.policy is not None:
            self._table("survey", *_SURVEY)

    @property
    def asks(self) -> bool:
        """True if a survey goes with the open round, or went with the last one."""
        return bool(self._survey)

    def open(self) -> Sequence[Arena]:
        """Return the arenas of the tables that go with the next round."""
        sync = self._training.sync
        self._paces = [self._table("paces", paces.WIDTH)] if sync.strategy.asynchronous else []
        self._survey = [self._table("survey", *_SURVEY)] if sync.surveys else []
        return [*self._paces, *self._survey]

    def _table(self, name: str, *widths: int) -> Arena:
        """Return the arena of tables with rows of these widths, for the next round."""
        rows = tables.rows_after(self._workers())
        name = f"{name}/{rows}"
        if name not in self._made:
            shapes = [Shape("float64", rows * width) for width in widths]
            self._made[name] = self._arena_of(shapes, name)
        return self._made[name]

    def tell_pace(self, pace: Pace | None, place: int) -> None:
        """Bring the pace to the open round, if it tells paces. ``place`` < 0: there is none."""
        for table in self._paces:
            table.weight = 1.0
            paces.write(table.contributions[0], place, pace if place >= 0 else None)

    @property
    def told_paces(self) -> list[Pace] | None:
        """Paces of all from the last round of steps; None if none are told."""
        for table in self._paces:
            return paces.read(table.record[0])
        return None

    def tell_survey(self, pace: Pace, lengths: Lengths | None, place: int) -> None:
        """Bring how this worker does, if the open round asks. No two workers have one place."""
        for table in self._survey:
            table.weight = 1.0
            does, knows = table.contributions
            paces.write(does, place, pace)
            gradient_noise.write(knows, place, pace.worker, lengths)

    @property
    def told_survey(self) -> tuple[list[Pace], list[Lengths]] | None:
        """How all do, and what they know of gradients; None if the last round did not ask."""
        for table in self._survey:
            return paces.read(table.record[0]), gradient_noise.read(table.record[1])
        return None
