"""`Session`: one worker among the others, as its script uses it.

All that involves other workers is a generator of requests (`spotmpi.fabric`), so that the simulator
runs it as well. Users see it through `Trainer` and `Group`. A session is built whole, once its
worker and the others know the same. Until then a `JoiningWorker` stands for a newcomer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spotmpi.arrays.backend import in_host_memory
from spotmpi.fabric import Steps as Asks
from spotmpi.fabric import Work
from spotmpi.operators import StepPosition
from spotmpi.protocol.ending import EndState
from spotmpi.protocol.exact_means import like
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.plain_values import pack
from spotmpi.protocol.sampler import Indices
from spotmpi.rounds.early_sum import EarlySum
from spotmpi.rounds.round import GatherRound, MeanRound, OnceRound, Summed, SumRound
from spotmpi.rounds.summand import GrowingSummand, Summand, Words
from spotmpi.rounds.words_round import round_of
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.participant import Mail, Participant
from spotmpi.training.round_runner import RoundRunner
from spotmpi.training.script.answers import GATHERED
from spotmpi.training.steps.quorum_watch import QuorumWatch
from spotmpi.training.steps.step_round import StepRound, own_step
from spotmpi.training.steps.worker_steps import RoundSteps


class Session:
    """One worker's part in a training, from its first step to its last round."""

    def __init__(self, exchange: TrainingExchange, runner: RoundRunner) -> None:
        self._exchange = exchange
        self._runner = runner
        self.context = context = exchange.context
        self.training = training = exchange.training
        self._driver = exchange.driver
        self.turns = exchange.turns
        self._step_round = partial(
            StepRound, exchange.memory, training, exchange.tables, me=exchange.me
        )
        self._quorum_watch = QuorumWatch(
            context, training, exchange.transfer, lambda: self.membership
        )

    @property
    def me(self) -> WorkerId:
        """This worker."""
        return self._exchange.me

    @property
    def mail(self) -> Mail:
        """What goes from worker to worker."""
        return self._runner

    @property
    def membership(self) -> Membership:
        """The workers that take part now."""
        return self._driver.membership

    @property
    def taught(self) -> bool:
        """True if a newcomer learnt with the last round, or was to learn."""
        return self._exchange.transfer.taught

    @property
    def stopping(self) -> bool:
        """True if all are to stop at the next boundary where they can."""
        return self._exchange.ending.state is EndState.STOPPING

    def next_batch(self, number: int) -> Indices | None:
        """Draw this worker's next batch from the script's batches of this number. Local."""
        self.training.position.answers.drawn()
        return self.turns.next_batch(number)

    def leave_batches(self, number: int) -> None:
        """The script leaves its batches of this number; `round_off` may be due. Local."""
        self.turns.leave_batches(number)

    def round_off(self) -> Asks[None]:
        """Do a round for the steps that were taken since the last one, if there are any."""
        if self.turns.level:
            return
        now = yield from self._end_turn()
        yield from self._perform_step(self.turns.now, now)
        self._renew()

    def _end_turn(self) -> Asks[StepPosition]:
        """End the turn with the steps that are taken: they are all that its round will have."""
        self.turns.end()
        now = self.turns.position()
        yield from self.training.sync.begin(None, now)
        return now

    def _renew(self) -> None:
        """Begin the next turn, with another strategy if all have agreed on one."""
        exchange = self._exchange
        if exchange.switching.is_due:
            exchange.compare.result()  # the arrays that it reads will go
            exchange.switching.carry_out(self._driver.membership.generation, exchange.leads)
        self.turns.renew()

    def _perform_step(self, turn: RoundSteps, now: StepPosition) -> Asks[None]:
        """Do the round of these steps, which may be open already."""
        opened = self._driver.ledger.open
        yield from self._quorum_watch.come()
        if opened and now.sends:
            self._exchange.round.bring()
        yield from self._runner.perform(self._exchange.round if opened else self._step_round(turn))
        ending = self._exchange.ending
        if ending.sealed and not ending.finishes:
            yield from self._runner.leave_with_all("the others have finished")

    def ready(self, key: Any, array: Any) -> Asks[Participant]:
        """Take one array of the gradient for the next step. Parts that are complete now start, if
        the strategy is piecewise. Raises UsageError; raises Left as a round does."""
        sync, pieces = self.training.sync, self.training.gradient.pieces
        pieces.check(key, array)
        if sync.strategy.piecewise and not self._driver.ledger.open:
            yield from self._runner.open_early(self._step_round(self.turns.now))
            yield from sync.begin_piecewise(self.turns.position())
            self._exchange.round.prepare(self._driver.membership, self.me)
        sync.give(key, array)
        if sync.strategy.piecewise:
            yield from self._runner.start(pieces.full)
        return self

    def step(self, grads: Any, loss: float | None) -> Asks[Participant]:
        """Do one step, with a gradient for the batch drawn last, and its round if it has one."""
        if self.turns.now.left:
            yield from self.round_off()
        training, turn = self.training, self.turns.now
        sync = training.sync
        if turn.lease is None:
            training.position.loosen()
        delayed, opened = sync.strategy.delay > 0, self._driver.ledger.open
        if delayed and self._exchange.boundary.changes and not opened:
            yield from self._runner.change()  # no worker may leave in the middle of its steps
        if delayed and opened:  # this worker's part is under way
            self.context.faults.arm(range(turn.first + turn.taken, turn.first + turn.taken + 1))
            self.context.faults.hold()
        if begun := opened and not delayed:
            self._exchange.round.check(self._driver.started)
        now = self.turns.position()
        if not begun:
            yield from sync.begin(grads, now)
        has_round = begun or now.last
        self.turns.take(now, loss)
        if not has_round:
            sync.close()
            if now.sends:
                if not self._driver.ledger.open:
                    yield from self._runner.open_early(self._step_round(self.turns.now))
                sync.send()
                yield from self._runner.start(self._exchange.bring_ahead())
            self.turns.advance()
            changes = self._exchange.boundary.changes
            if has_round := (yield from self._quorum_watch.is_due(turn, changes)):
                now = yield from self._end_turn()
        if has_round:
            yield from self._perform_step(turn, now)
            self._renew()
        training.position.answers.stepped()
        training.batch = None
        return self

    def mean(self, x: Any) -> Asks[Any]:
        """Return the mean of ``x``."""
        yield from self._come_together()
        mean = MeanRound(self._exchange.memory, x)
        while mean.answer is None:
            yield from self._runner.perform(mean)
        self.training.position.remember(mean.answer, len(mean.answer))
        return like(x, mean.answer)

    def once(self, work: Callable[[], bytes], of: str | None = None) -> Asks[bytes]:
        """Return the value of ``work``, which one worker does for all; ``of``: the work's name.

        It begins when all have come to this call. Until all know the value no worker leaves or
        joins, so the work is done again only after a death.
        """
        yield from self._come_together()
        answer = OnceRound(self._exchange.memory)
        yield from self._runner.perform(answer)
        while answer.answer is None:
            owed = self._exchange.boundary.owed
            if answer.mine is None and self._exchange.first == self.me and not owed:
                answer.mine = yield Work(work)
            yield from self._runner.perform(answer)
        self.training.position.remember(answer.answer, of)
        return answer.answer

    def gather(self, mine: bytes, about: str = "") -> Asks[bytes]:
        """Return a packed dict of all workers' packed values, by worker. ``mine``: this worker's.
        ``about``: says what they are, alike on all."""
        yield from self._come_together()
        gathered = GatherRound(self._exchange.memory, mine, about)
        while gathered.answer is None:
            yield from self._runner.perform(gathered)
        answer = pack(gathered.answer)
        self.training.position.remember(answer, GATHERED)
        return answer

    def sum(self, mine: Summand | Words, step: bool = False) -> Asks[Summed]:
        """Return the sum of what all workers bring. ``mine``: what this one does.
        ``step``: the sum stands for a step, which the script takes by itself."""
        yield from self._come_together()
        counts = partial(own_step, self.training) if step else None
        summed = round_of(self._exchange.memory, mine, counts)
        while summed.answer is None:
            yield from self._runner.perform(summed)
        return self._keep_sum(mine, step, summed.answer)

    def begin_sum(self, mine: GrowingSummand, step: bool = False) -> Asks[EarlySum]:
        """Begin the sum of arrays that come one by one. Nothing else may be asked for until it is
        ended. ``step``: as `sum` has it."""
        yield from self._come_together()
        counts = partial(own_step, self.training) if step else None
        asked = SumRound(self._exchange.memory, mine, counts)
        keep = partial(self._keep_sum, mine, step)
        early = EarlySum(self._runner, asked, mine, keep)
        yield from early.begin()
        return early

    def _keep_sum(
        self, mine: Summand | GrowingSummand | Words, step: bool, found: Summed
    ) -> Summed:
        """Keep a sum for newcomers, if it is small; return it. ``step``: it was a step's, and the
        next step begins."""
        if step:
            self.turns.renew()
        position, kept = self.training.position, None
        if position.answers.has_room(mine.bytes) and not isinstance(mine, Words):
            (total,) = found.total
            kept = pack([in_host_memory(total), found.workers])
        position.remember(kept, mine.known_by)
        return found

    def _come_together(self) -> Asks[None]:
        """Do the round first that is under way, or due as all ask for something between the same
        steps. Raises UsageError."""
        if self._driver.ledger.open or self.turns.comes_together:
            yield from self._end_early()

    def _end_early(self) -> Asks[None]:
        """Do the round that is under way, if there is one: its parts must arrive first. Raises
        UsageError if a batch is left in the script's hands."""
        if self._driver.ledger.open:
            self.turns.check_free()
        yield from self.round_off()

    def finish(self) -> Asks[None]:
        """Leave together with all others: the script is at its end. Returns when nobody waits for
        this worker. Raises CheckpointError if the end could not be kept, and there is no launcher
        to say so."""
        self._exchange.ending.finishes = True
        yield from self._end_early()
        yield from self._runner.finish()
        self.training.position.loops.leave_behind()
        self.context.history.over(self.training.registry.snapshot(None), self.membership)

    def ask_for_checkpoint(self) -> None:
        """Have a checkpoint written at the end of the next step. Local."""
        self._exchange.keeper.asked = True

    def abandon(self) -> Asks[None]:
        """Give up what is under way: this worker takes no further part. Local."""
        return self._driver.abandon()
