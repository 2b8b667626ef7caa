"""Tells the trace of the steps that a round has committed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from spotmpi.protocol import control_word
from spotmpi.protocol.membership import WorkerId
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.round import Taken
from spotmpi.training.journal import Journal
from spotmpi.training.steps.timings import Timings
from spotmpi.training.steps.worker_steps import WorkerSteps
from spotmpi.training.worker_context import WorkerContext

__all__ = ["StepRecords"]


class StepRecords:
    """What one worker tells the trace of its rounds. Local, all of it."""

    def __init__(
        self, context: WorkerContext, journal: Journal, memory: RoundMemory, turns: WorkerSteps
    ) -> None:
        self._context = context
        self.journal = journal
        self._memory = memory
        self._turns = turns
        self._committed_at = self._entered = context.fabric.clock()
        self._timings = Timings(context.trace, context.fabric.me, context.fabric.clock, context.cpu)

    def entered(self) -> None:
        """Note that this worker enters a round, or tries it again."""
        self._entered = self._context.fabric.clock()
        self._timings.entered(self._entered)

    def seconds(self, now: float) -> float:
        """Return the seconds since then."""
        return now - self._entered

    def over(self, kind: int | None, taken: Taken | None, now: float) -> bool:
        """Note that a round of this kind is complete. Return True if its steps go to the trace."""
        self._timings.committed(now, kind, None if taken is None else taken.first + taken.steps - 1)
        if kind == control_word.END:  # the line of the training's end must come last
            self._timings.write()
        return taken is not None and self._context.trace.active

    def close(self) -> None:
        """Write what is left and close the trace."""
        self._timings.write()
        self._context.trace.close()

    def committed(
        self,
        number: int,
        generation: int,
        brought: Sequence[WorkerId],
        full: Sequence[WorkerId],
        taken: Taken,
        now: float,
    ) -> None:
        """Tell the journal of the steps ``taken`` with this round. ``brought``: the workers that
        contributed to it. ``full``: those of them that took steps."""
        journal, turns, memory = self.journal, self._turns, self._memory
        turns.counted(taken.samples)
        if journal.wants_steps:
            seconds = (now - self._committed_at) / taken.steps
            known: dict[str, Any] = {"round": number, "generation": generation, "workers": full}
            known |= {"seconds": seconds, "committed": now, **turns.described(full)}
            if between := self._context.fabric.between(brought, memory.data):
                known |= memory.way(between)
                last = taken.first + taken.steps - 1
                journal.chose(last, generation, between.choices, known.get("buckets"))
            if turns.now.sampler is not None:
                journal.batches(taken.first, turns.now.sampler, turns.planned)
            for step in range(taken.steps):
                describe = partial(taken.describe, step, known)
                journal.step(number, taken.first + step, describe, turns.wasted)
        self._committed_at = now
