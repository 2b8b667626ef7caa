"""Changes from one strategy to another: the wish, the agreement and the change itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from spotmpi.protocol.control_word import ControlSum
from spotmpi.protocol.membership import WorkerId
from spotmpi.rounds.round import Taken
from spotmpi.rounds.state_transfer import StateTransfer
from spotmpi.training.journal import Journal
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.strategy_survey import StrategySurvey
from spotmpi.training.steps.worker_tables import WorkerTables

__all__ = ["Switching"]

_LOG = logging.getLogger(__name__)


class Switching:
    """One worker's part in such changes. Local, all of it; all workers decide alike.

    The control word of a round carries the leader's wish. All workers that commit this round change
    to the other strategy before they do anything else together. The wish has no effect while a
    newcomer learns, or in the middle of a round's steps. The leader then repeats it.
    """

    def __init__(
        self,
        training: TrainingState[Any],
        transfer: StateTransfer,
        journal: Journal,
        survey: StrategySurvey,
        tables: WorkerTables,
    ) -> None:
        self._training = training
        self._survey = survey
        self._tables = tables
        self._transfer = transfer
        self._journal = journal
        self._agreed: int | None = None
        """Number of the strategy that all have agreed to change to; None if there is none."""

    @property
    def is_due(self) -> bool:
        """True if all have agreed on another strategy."""
        return self._agreed is not None

    @property
    def wish(self) -> int | None:
        """Number of the strategy that the control word asks for, if this worker leads."""
        return self._training.choice.wanted(self._training.number)

    def heard(self, word: ControlSum, taken: Taken, full: Sequence[WorkerId], leads: bool) -> None:
        """Read the control word of a committed round of steps. ``full``: its workers."""
        choice = self._training.choice
        if choice.policy is not None:
            self._survey.committed(taken.samples, len(full))
            if (told := self._tables.told_survey) is not None:
                self._training.meter.reset()
                metrics = self._survey.metrics(*told, full)
                if metrics is not None:
                    decides = choice.decide(choice.policy, metrics, leads)
                    self._journal.surveyed(metrics, decides)
        if self._transfer.idle and word.strategy != self._training.number:
            self._agreed = word.strategy

    def stalls(self, seconds: float) -> None:
        """Leave the ``seconds`` of a recovery out of the survey: no strategy caused it."""
        self._survey.stalls(seconds)

    def carry_out(self, generation: int, leads: bool) -> None:
        """Change to the strategy agreed on. Call it right after that round. The turn that is over
        has the old strategy: begin the next one right after."""
        training, number = self._training, self._agreed
        assert number is not None
        before = training.sync.strategy
        self._agreed = None
        training.follow(number)
        after = training.sync.strategy
        self._transfer.change(training.registry.words(), training.model.ends)
        self._survey.reset()
        known = training.choice.come_to(number)
        step = training.progress.steps
        self._journal.switched(step, generation, after, before, known)
        if leads:
            self._journal.follows(step, after, known.get("why"))
        _LOG.info("step %d: %s after %s", step, after, before)
