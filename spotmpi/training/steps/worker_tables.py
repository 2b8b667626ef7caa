"""Tables that go with rounds of steps: in each, every worker tells some numbers, and all read them.

With an asynchronous strategy workers tell their pace with each round. With a policy they tell every
few steps how they do. All is local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.fabric import Arena, Shape
from spotmpi.protocol import gradient_noise, paces
from spotmpi.protocol.gradient_noise import Lengths
from spotmpi.protocol.paces import Pace
from spotmpi.training.state.training_state import TrainingState

__all__ = ["WorkerTables"]


class WorkerTables:
    """The tables of the open round of steps, or of the last one."""

    def __init__(self, arena_of: Callable[..., Arena], training: TrainingState[Any]) -> None:
        self._training = training
        self._paces: Arena | None = None
        """None if no strategy here is asynchronous. It is there from the beginning, so that nobody
        waits for it when all change to such a strategy."""
        if any(strategy.asynchronous for strategy in training.choice.strategies):
            self._paces = arena_of([Shape("float64", paces.WORDS)], "paces")
        self._survey: Arena | None = None
        """None without a policy. Else it is there from the beginning, too: a survey is not to
        measure how long it takes to make it."""
        if training.choice.policy is not None:
            sizes = paces.WORDS, gradient_noise.WORDS
            self._survey = arena_of([Shape("float64", size) for size in sizes], "survey")
        self.asks = False
        """True if the survey goes with the open round, or went with the last one."""

    def open(self) -> Sequence[Arena]:
        """Return the arenas of the tables that go with the next round."""
        self.asks = self._training.sync.surveys
        return [*self._pace_tables, *self._survey_tables]

    @property
    def _pace_tables(self) -> list[Arena]:
        if self._paces is None or not self._training.sync.strategy.asynchronous:
            return []
        return [self._paces]

    def tell_pace(self, pace: Pace | None, place: int) -> None:
        """Bring the pace to the open round, if it tells paces. ``place`` < 0: there is none."""
        for table in self._pace_tables:
            table.weight = 1.0
            paces.write(table.contributions[0], place, pace if place >= 0 else None)

    @property
    def told_paces(self) -> list[Pace] | None:
        """Paces of all from the last round of steps; None if none are told."""
        for table in self._pace_tables:
            return paces.read(table.record[0])
        return None

    @property
    def _survey_tables(self) -> list[Arena]:
        return [] if self._survey is None or not self.asks else [self._survey]

    def tell_survey(self, pace: Pace, lengths: Lengths | None, place: int) -> None:
        """Bring how this worker does, if the open round asks. No two workers have one place."""
        for table in self._survey_tables:
            table.weight = 1.0
            does, knows = table.contributions
            paces.write(does, place, pace)
            gradient_noise.write(knows, place, pace.worker, lengths)

    @property
    def told_survey(self) -> tuple[list[Pace], list[Lengths]] | None:
        """How all do, and what they know of gradients; None if the last round did not ask."""
        for table in self._survey_tables:
            return paces.read(table.record[0]), gradient_noise.read(table.record[1])
        return None
