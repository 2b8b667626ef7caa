"""How workers come together for a round that does not wait for late workers.

A worker that has come to its round sets a mark (`fabric.Signal`). The others look for such marks
between their steps. Marks are hints: a worker that misses one takes some steps more. The round
itself tells all workers what each has done, as with every asynchronous strategy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from spotmpi.fabric import Signal, Signals
from spotmpi.fabric import Steps as Asks
from spotmpi.protocol.membership import Membership
from spotmpi.rounds.state_transfer import StateTransfer
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.worker_steps import RoundSteps
from spotmpi.training.worker_context import WorkerContext

__all__ = ["QuorumWatch"]

_MARK = struct.Struct("<qq?")
"""Layout of a mark: generation, round of steps, and True if its worker wants the round soon."""


class QuorumWatch:
    """Tells the others that this worker has come to its round, and watches for their marks."""

    def __init__(
        self,
        context: WorkerContext,
        training: TrainingState[Any],
        transfer: StateTransfer,
        membership: Callable[[], Membership],
    ) -> None:
        """``membership``: returns the present one."""
        self._context = context
        self._training = training
        self._transfer = transfer
        self._membership = membership
        self._me = context.fabric.me
        self._since: float | None = None
        """When this worker saw that enough others had come; None if it has not."""

    def come(self) -> Asks[None]:
        """Tell the others that this worker has come to its round, with all that it will bring."""
        self._since = None
        if self._training.sync.strategy.quorum is not None:
            yield Signal(_MARK.pack(*self._here, self._urgent))

    def is_due(self, turn: RoundSteps, planned: bool) -> Asks[bool]:
        """Return True if this worker should take no more of the round's steps. It has taken some.
        ``planned``: all workers know that the next round begins with a change of the membership."""
        quorum = self._training.sync.strategy.quorum
        if quorum is None:
            return False
        if planned or self._urgent:
            return True
        marks = yield Signals()
        full = self._transfer.full(self._membership().ids)
        others = [worker for worker in full if worker != self._me]
        come = 0
        for mark in filter(None, map(marks.get, others)):
            *there, soon = _MARK.unpack(mark)
            if there == [*self._here]:
                if soon:
                    return True
                come += 1
        lost = sum(worker not in marks for worker in others)  # no worker waits for these either
        if not come or come + lost < quorum.of(len(others) + 1):
            self._since = None
            return False
        now = self._context.fabric.clock()
        if self._since is None:
            self._since = now
        a_step = (now - turn.so_far.began) / turn.taken
        return now + a_step > self._since + quorum.grace

    @property
    def _here(self) -> tuple[int, int]:
        """Generation and number of the round that this worker is on its way to."""
        return self._membership().generation, self._training.progress.rounds

    @property
    def _urgent(self) -> bool:
        """True if this worker must stop or leave, which it can do when a round is over."""
        order = self._context.channel.order_for(self._me)
        return order is not None and (order.stop or order.leave)
