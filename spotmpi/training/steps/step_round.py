"""Rounds of steps: on a worker that takes steps, and on one that learns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.protocol import control_word
from spotmpi.protocol.control_word import ControlSum
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.round import Reached, Round, Taken
from spotmpi.training.journal import described
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.worker_steps import RoundSteps
from spotmpi.training.steps.worker_tables import WorkerTables
from spotmpi.training.synchroniser import Result

__all__ = ["LearnRound", "StepRound", "own_step"]


class StepRound(Round):
    """A round with contributions to the steps of a turn."""

    kind = control_word.STEP

    def __init__(
        self,
        memory: RoundMemory,
        training: TrainingState[Any],
        tables: WorkerTables,
        turn: RoundSteps,
        me: WorkerId,
    ) -> None:
        super().__init__(memory)
        self._training = training
        self._tables = tables
        self._turn = turn
        self._me = me
        self._asked: float | None = None
        """The learning rate that the script wanted when the first part started."""
        self._known: tuple[Sequence[WorkerId], int, Result] | None = None
        """The last workers asked about in `_result`, the steps of the turn then, and the answer."""
        self._prepared_for = -1
        """The generation among whose members its parts start."""

    @property
    def adds(self) -> int:
        """Steps of the turn that are not counted yet."""
        return self._turn.first + self._turn.whole - self._training.progress.steps

    def bring(self) -> None:
        """Make the contribution from the gradient, as the strategy says."""
        self._training.sync.bring()
        self._tables.tell_pace(self._turn.pace, self._turn.place)
        self.check(0)

    def check(self, first: int, last: int | None = None) -> None:
        """Refuse numbers that are not finite, if this check was asked for."""
        training = self._training
        training.sync.starts(first, last)
        if not training.finite.refuses:
            return
        if (name := training.sync.memory.first_not_finite(first, last)) is not None:
            batch = training.batch
            raise UsageError(
                f"worker {self._me}, step {training.progress.steps}: the gradient of {name} holds "
                "NaN or infinity; lower the learning rate, or look at this batch: "
                f"{None if batch is None else batch.tolist()}"
            )

    def prepare(self, membership: Membership, me: WorkerId) -> None:
        """Let the update follow from the sums as they are made, if the plane can. While a worker
        learns none does so: the learner has parameters of its own, so all keep their own."""
        if self._prepared_for == membership.generation:
            return  # parts are under way: they stay as they are until they are given up
        self._prepared_for = membership.generation
        sync = self._training.sync
        if sync.one_counts:
            sync.count(
                self._turn.first_dealt(self.memory.transfer.full(membership.ids)) == self._me
            )
        if self._tables.asks:
            pace, known = self._training.meter.pace(me), sync.lengths.known
            self._tables.tell_survey(pace, known, membership.ids.index(me))
        self.memory.unfuse()
        if self.memory.transfer.teaching:
            sync.leave()
            return
        result = self._result(membership.ids)
        if result.weight:
            sync.fuse_update(result.rate, result.weight)

    def says(self) -> dict[str, Any]:
        """Return the loss. A worker is late only without a lease: it may end before its script."""
        late = self._training.joined and self._turn.lease is None
        return {"late": late, **self._turn.so_far.tell()}

    def page(self, full: Sequence[WorkerId]) -> dict[str, Any] | None:
        """Return what all know of the round, how often the optimizer has moved, and the loss that
        stays if the round moves nothing."""
        numbers = self._training.registry.numbers()
        loss = self._training.progress.loss
        return {"result": self._result(full), "numbers": numbers, "loss": loss}

    @property
    def graduates(self) -> bool:
        """False if the round comes after the last step, and scripts have asked for something in
        between: a newcomer would still ask for it."""
        return not (self._turn.closes and self._training.position.answers.asked)

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Do the rest of the step. If only lost workers had samples, the round moves nothing."""
        training, turn = self._training, self._turn
        progress, sync = training.progress, training.sync
        result, lease, told = self._result(full), turn.lease, self._tables.told_paces
        if told is not None:
            result, sync.paces = result.told(told, sync.strategy), told
            if lease is not None:
                taken = {one.worker: one.taken for one in told}
                lease = training.position.dealer.end([taken.get(one, 0) for one in lease.slots])
        if result.weight:
            sync.complete(result)
            training.rate.taken()
            progress.loss = word.loss
            brought = sync.brought_not_finite
            training.finite.look(result.round, result.after - 1, word.loss, brought)
        sync.close()
        progress.rounds += 1
        if lease is not None:
            training.position.dealer.count(full)
        progress.steps, many = result.after, result.many
        rates = [result.rate] * many
        if sync.strategy.local_models:
            asked = turn.so_far.rates
            rates = [asked[step * len(asked) // many] for step in range(many)]
        describe = partial(described, rates, word.loss, lease)
        return Taken(result.after - many, many, int(result.weight), describe)

    def _result(self, full: Sequence[WorkerId]) -> Result:
        """Return what follows from which workers contribute."""
        turn = self._turn
        if self._known is not None and self._known[:2] == (full, turn.whole):
            return self._known[2]
        total, active = turn.weigh(full)
        if self._asked is None:
            self._asked = self._training.rate.asked
        rate = self._training.rate.now(active, self._asked, turn.whole)
        after, rounds = turn.first + turn.whole, self._training.progress.rounds
        result = Result(rate, total, active, turn.whole, after, rounds)
        self._known = full, turn.whole, result
        return result


def own_step(training: TrainingState[Any]) -> Taken:
    """Count a step that the script takes by itself, with a sum of all workers."""
    progress = training.progress
    first, progress.steps = progress.steps, progress.steps + 1
    progress.rounds += 1
    return Taken(first, 1, 0, partial(described, [1.0], None, None))


class LearnRound(Round):
    """Any round of the others, on a worker that learns: it applies the result as all do, and brings
    nothing."""

    kind = None

    def __init__(
        self,
        memory: RoundMemory,
        training: TrainingState[Any],
        tables: WorkerTables,
        reached: Reached,
    ) -> None:
        super().__init__(memory)
        self._training = training
        self._tables = tables
        self._reached = reached
        self._told: Sequence[Pace] = ()
        """What the others have told of their steps."""
        self._beyond = 0
        """Steps that the others took beyond the number on the page."""

    def graduate(self, rest: Any, full: Sequence[WorkerId]) -> None:
        """Take all the rest, and add the steps that the page did not know of."""
        training = self._training
        training.registry.restore(rest)
        training.progress.steps += self._beyond
        taken = {one.worker: one.taken for one in self._told}
        training.position.settle(taken, full, training.progress.seed)

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Do what all do with the result, as far as the page tells."""
        if word.kind == control_word.STEP:
            self._training.sync.moved = False
            self._training.registry.put_numbers(page["numbers"])
            paged = result = Result(*page["result"])
            if (told := self._tables.told_paces) is not None:
                result = paged.told(told, self._training.sync.strategy)
                self._training.sync.paces = self._told = told
            self._beyond = result.after - paged.after
            if result.weight:
                self._training.sync.follow(result)
            self._training.progress.rounds += 1
            self._training.progress.loss = word.loss if result.weight else page["loss"]
        elif word.kind == control_word.END:
            self._reached(word)
        return None
