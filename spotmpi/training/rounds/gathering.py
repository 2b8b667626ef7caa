"""How workers come together to a round that waits for nobody who is late.

Who has come to its round marks that (`fabric.Signal`), and the others look for such marks between
their steps. These are hints: whoever misses one takes some steps more. What all have done, all are
told by the round itself, as with every strategy whose workers go at their own pace.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from spotmpi.fabric import Signal, Signals
from spotmpi.fabric import Steps as Asks
from spotmpi.protocol.membership import Membership
from spotmpi.training.state_transfer import StateTransfer
from spotmpi.training.training_state import TrainingState
from spotmpi.training.worker_context import WorkerContext
from spotmpi.training.worker_steps import RoundSteps

__all__ = ["Gathering"]

_MARK = struct.Struct("<qq?")
"""A generation, a round of steps, and whether the one who has come to it wants it soon."""


class Gathering:
    """One worker's part."""

    def __init__(
        self,
        place: WorkerContext,
        training: TrainingState[Any],
        school: StateTransfer,
        membership: Callable[[], Membership],
    ) -> None:
        """``membership``: of now."""
        self._place = place
        self._training = training
        self._school = school
        self._membership = membership
        self._me = place.fabric.me
        self._since: float | None = None
        """When this worker has seen that there are enough without it."""

    def come(self) -> Asks[None]:
        """This worker has come to its round, with all that it will bring."""
        self._since = None
        if self._training.replica.strategy.quorum is not None:
            yield Signal(_MARK.pack(*self._here, self._urgent))

    def is_due(self, turn: RoundSteps, planned: bool) -> Asks[bool]:
        """Whether this worker is to take no more steps of this turn, of which it has taken some.
        ``planned``: all know that the next round begins with a change of the membership."""
        quorum = self._training.replica.strategy.quorum
        if quorum is None:
            return False
        if planned or self._urgent:
            return True
        marks = yield Signals()
        full = self._school.full(self._membership().ids)
        others = [worker for worker in full if worker != self._me]
        come = 0
        for mark in filter(None, map(marks.get, others)):
            *there, soon = _MARK.unpack(mark)
            if there == [*self._here]:
                if soon:
                    return True
                come += 1
        lost = sum(worker not in marks for worker in others)  # nobody waits for these either
        if not come or come + lost < quorum.of(len(others) + 1):
            self._since = None
            return False
        now = self._place.fabric.clock()
        if self._since is None:
            self._since = now
        a_step = (now - turn.began) / turn.taken
        return now + a_step > self._since + quorum.grace

    @property
    def _here(self) -> tuple[int, int]:
        """The round that this worker is on its way to."""
        return self._membership().generation, self._training.progress.rounds

    @property
    def _urgent(self) -> bool:
        """It is to stop, or to leave, which it can when a round is over."""
        order = self._place.channel.order_for(self._me)
        return order is not None and (order.stop or order.leave)
