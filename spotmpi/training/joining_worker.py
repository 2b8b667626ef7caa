"""How a worker enters a training: with all the others at the start, or alone and later.

A worker that comes later is a `JoiningWorker` first. It runs its script up to where the others'
scripts are, and rehearses a batch. At its first step it joins and learns the state; then a
`Session` takes its place. In trainings that the others have finished by then it is a
`PastTraining`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from spotmpi.errors import CheckpointError, Left, PeersLost, UsageError
from spotmpi.fabric import Knock, Meet
from spotmpi.fabric import Steps as Asks
from spotmpi.launcher_channel import IN_ROUND
from spotmpi.optimizers import Schedule
from spotmpi.protocol import control_word
from spotmpi.protocol.boundary import Payload
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.plain_values import unpack
from spotmpi.protocol.sampler import FIRST_SAMPLE, Indices
from spotmpi.rounds.handshake import Compare, Facts, Tell, check_facts
from spotmpi.rounds.round import BeginRound, Summed
from spotmpi.rounds.summand import Summand, Words
from spotmpi.settings import Settings
from spotmpi.training.briefing import Admission, Briefing
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.keeping import checkpoint_folder
from spotmpi.training.participant import Outsider, Participant, turned_away
from spotmpi.training.round_runner import RoundRunner
from spotmpi.training.script.answers import GATHERED
from spotmpi.training.session import Session
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.step_round import LearnRound
from spotmpi.training.worker_context import WorkerContext

if TYPE_CHECKING:
    from spotmpi.training.keeping.checkpoint_file import Checkpoint

_LOG = logging.getLogger(__name__)

P = TypeVar("P")


def enter(context: WorkerContext, training: TrainingState[P]) -> Asks[Participant]:
    """Connect, and return what this worker is. Collective, except for a newcomer."""
    training.furnish(context.fabric.arena)
    history = context.history
    if context.settings.newcomer is None or history.membership is not None:
        return (
            yield from _begin(context, training, history.membership or context.fabric.membership)
        )
    if history.briefing is None:
        yield from _look_around(context)
    if history.number < len(history.past):
        return PastTraining(context, training)
    return JoiningWorker(context, training)


def _look_around(context: WorkerContext) -> Asks[None]:
    """Hear from a member how far its script has come. Raises Left if that member is gone."""
    try:
        context.history.follow(Briefing.decode((yield Meet())))
    except PeersLost:
        raise turned_away(context.channel, context.fabric.me, _GONE) from None


def _begin(
    context: WorkerContext, training: TrainingState[P], members: Membership
) -> Asks[Session]:
    given, channel, history = context.settings, context.channel, context.history
    context.fabric.move_on()
    try:
        found = _resume(given, training, later=history.number > 0)
    except (CheckpointError, UsageError) as error:
        channel.tell("unable", why=str(error))
        raise
    if given.checkpoint is not None:
        from spotmpi.training.keeping import checkpoint_file  # HDF5: only for those who need it

        checkpoint_file.check_arrays(training.registry.described())
    saw = ("the checkpoint that they see", f"step {found.step}" if found else "none")
    exchange = TrainingExchange(context, training, members)
    runner = RoundRunner(exchange)
    yield from _shake_hands(exchange, runner, [*training.facts(given), saw])
    channel.tell("ready")  # from here on the launcher expects workers to recover from a loss
    if history.workers is None:
        history.workers = len(members)
    if training.rate.reference is None:
        training.rate.reference = history.workers
    if exchange.leads:
        journal, members = exchange.records.journal, exchange.driver.membership
        journal.begin(None if found is None else found.step)
        context.trace.write("start", **_start_record(context, training, members))
        if found is not None:
            context.trace.write("resume", step=found.step, path=str(found.path))
        if training.model.moves_itself:
            journal.follows(training.progress.steps, training.sync.strategy)
    yield from runner.perform(BeginRound(exchange.memory, training.model.first()))
    training.model.settle()
    training.sync.occupy()
    if found is None:
        training.sync.start()
        training.finite.begin()
    channel.tell("underway")
    members, steps = exchange.driver.membership, training.progress.steps
    number = history.number
    _LOG.info("generation %d, training %d, step %d: begins", members.generation, number, steps)
    return Session(exchange, runner)


def _shake_hands(exchange: TrainingExchange, runner: RoundRunner, facts: Facts) -> Asks[None]:
    """Compare what must be equal on all workers. Raises UsageError, on all of them alike, that
    names a worker that differs, and in what."""
    compared = Compare(exchange.memory, facts)
    yield from runner.perform(compared)
    if compared.differing:
        yield from runner.perform(Tell(exchange.memory, facts, exchange.me, compared.differing))


def _resume(given: Settings, training: TrainingState[Any], later: bool) -> Checkpoint | None:
    if given.checkpoint is None:
        return None
    # For the first training a launcher has looked already, and says so if there is a checkpoint.
    looks = given.job is None or later
    begins = looks and not checkpoint_folder.some(given.checkpoint)
    if begins or not given.resume:
        checkpoint_folder.check_unused(given.checkpoint)
        return None
    from spotmpi.training.keeping import checkpoint_file  # HDF5: only for those who need it

    warn = partial(warnings.warn, category=RuntimeWarning, stacklevel=5)
    found = checkpoint_file.load_latest(given.checkpoint, warn)
    training.registry.resume({**found.state, "steps": found.step}, str(found.path))
    training.sync.since = training.progress.rounds  # a policy looks early, as after a change
    return found


def _start_record(
    context: WorkerContext, training: TrainingState[Any], members: Membership
) -> dict[str, Any]:
    given, model, strategy = context.settings, training.model, training.sync.strategy
    optimizer = model.optimizer
    return {
        "workers": members.ids,
        "hosts": [worker.host for worker in members],
        "params": model.layout.size,
        "bucket_mb": model.bucket_mb,
        "seed": training.progress.seed,
        "strategy": str(strategy),
        "strategy_name": strategy.name,
        "optimizer": None if optimizer is None else optimizer.kind.rpartition(".")[2],
        "lr": None if optimizer is None else _said(optimizer.lr),
        "version": context.version,
        "time": None if context.wall is None else context.wall(),
        "detect_ms": None if given.job is None else given.detect_ms or "auto",
    }


def _said(lr: float | Schedule) -> float | str:
    return str(lr) if isinstance(lr, Schedule) else lr


class JoiningWorker(Outsider[P]):
    """A newcomer that is connected to its sponsor, and takes no part in rounds yet."""

    def __init__(self, context: WorkerContext, training: TrainingState[P]) -> None:
        super().__init__(context, training)
        briefing, facts = context.history.briefing, training.facts(context.settings)
        assert briefing is not None
        check_facts(self.me, self.membership.ids[0], facts, briefing.facts)
        training.registry.restore(briefing.rest)
        self._check_followed()
        context.channel.tell("ready")
        found, steps = self.membership.generation, training.progress.steps
        _LOG.info("generation %d, step %d: found by newcomer %d", found, steps, self.me)

    def next_batch(self, number: int) -> Indices | None:
        """Return a batch to rehearse with, which the others do not wait for; None: used up."""
        return None if self.training.position.used_up(number) else FIRST_SAMPLE.copy()

    def step(self, grads: P, loss: float | None) -> Asks[Participant]:
        """Join and learn. Returns a session that is level with the others after a step, or a
        `PastTraining` if they have finished this training. Raises Left if it cannot join."""
        self.training.sync.rehearse(grads)
        self.tell_progress(IN_ROUND)
        self.context.channel.tell("knocks")
        try:
            briefing = Briefing.decode((yield Knock()))
        except PeersLost:
            raise turned_away(self.context.channel, self.me, _GONE) from None
        if (admission := briefing.admission) is None:  # the others have begun another training
            self.context.history.follow(briefing)
            self.training.batch = None
            return PastTraining(self.context, self.training)
        membership = briefing.membership
        self.training.registry.restore(briefing.rest)
        self.training.joined = True
        ledger = admission.ledger(membership)
        exchange = TrainingExchange(self.context, self.training, membership, ledger)
        runner = RoundRunner(exchange)
        self.context.channel.tell("admitted", generation=membership.generation)
        _LOG.info("generation %d: newcomer %d is admitted", membership.generation, self.me)
        yield from self._learn(exchange, runner, admission)
        self._check_followed()
        self.training.batch = None
        self.training.meter.reset()  # what it has computed so far was a rehearsal
        _LOG.info("step %d: worker %d has learnt", self.training.progress.steps, self.me)
        if self.training.position.answers.guides:
            self.context.channel.tell("trains", step=self.training.progress.steps)
        yield from runner.after_round()
        return Session(exchange, runner)

    def _learn(
        self, exchange: TrainingExchange, runner: RoundRunner, admission: Admission
    ) -> Asks[None]:
        """Do the first rounds, until this worker is level with the others after a step. Raises Left
        if the training is over before."""
        exchange.transfer.enrol(admission.pages)
        alone = admission.alone
        exchange.memory.carry(Payload(control_word.MEAN, alone) if alone else None)
        while exchange.transfer.learns:
            known = self.training, exchange.tables, exchange.reached
            exchange.round = LearnRound(exchange.memory, *known)
            runner.needs_others()
            yield from exchange.driver.round()
            if exchange.ending.over:
                yield from runner.leave_with_all("the training was over before it had learnt")

    def once(self, work: Callable[[], bytes], of: str | None = None) -> Asks[bytes]:
        """Return what the others were told on the way to their step. Raises Left if it is
        unknown."""
        yield from ()
        return self._told("once()", of)

    def gather(self, mine: bytes, about: str = "") -> Asks[bytes]:
        """Return what the others were told on the way to their step. Raises Left if it is
        unknown."""
        yield from ()
        return self._told("gather()", GATHERED)

    def sum(self, mine: Summand | Words, step: bool = False) -> Asks[Summed]:
        """Return what the others were told on the way to their step. Raises Left if it is
        unknown."""
        yield from ()
        total, workers = unpack(self._told("sum()", mine.known_by))
        return Summed([total], tuple(workers))

    def _told(self, call: str, of: str | None) -> bytes:
        said = self.training.position.answers.recall_of_turn(of)
        if said is None:
            raise turned_away(
                self.context.channel,
                self.me,
                f"its script calls {call} at step {self.training.progress.steps}, and the others' "
                "did not; call it on what is equal on all workers, such as trainer.steps",
            )
        return said

    def finish(self) -> Asks[None]:
        """Leave: what follows the block must not see a model that learnt nothing. Raises Left."""
        why = f"worker {self.me} came after the last step"
        self.context.channel.tell("withdrawn", why=why)
        yield from ()
        raise Left(why)

    def _check_followed(self) -> None:
        if self.training.position.answers.lost:
            raise turned_away(
                self.context.channel,
                self.me,
                "its script has asked for more outside of batches(), by mean(), once(), gather() "
                "and sum(), than is kept for newcomers; ask for less, or inside of batches()",
            )


class PastTraining(Outsider[P]):
    """A newcomer in a training that the others have finished: it runs its script past it.

    There are no batches left, and questions are answered as they were answered then. Its parameters
    are those that the script gave, not the trained ones of the others.
    """

    def __init__(self, context: WorkerContext, training: TrainingState[P]) -> None:
        super().__init__(context, training)
        training.registry.restore(context.history.past[context.history.number])

    def next_batch(self, number: int) -> Indices | None:
        """Return None: no batch is left."""
        return None

    def step(self, grads: P, loss: float | None) -> Asks[Participant]:
        """Drop the step: the others took it long ago."""
        self.training.sync.close()
        self.training.batch = None
        yield from ()
        return self

    def once(self, work: Callable[[], bytes], of: str | None = None) -> Asks[bytes]:
        """Raise Left: the value cannot be known."""
        yield from ()
        raise turned_away(self.context.channel, self.me, _UNKNOWN.format("once()"))

    def gather(self, mine: bytes, about: str = "") -> Asks[bytes]:
        """Raise Left: the values cannot be known."""
        yield from ()
        raise turned_away(self.context.channel, self.me, _UNKNOWN.format("gather()"))

    def sum(self, mine: Summand | Words, step: bool = False) -> Asks[Summed]:
        """Raise Left: the sum cannot be known."""
        yield from ()
        raise turned_away(self.context.channel, self.me, _UNKNOWN.format("sum()"))

    def finish(self) -> Asks[None]:
        """Close this training; the script goes on to the next one."""
        self.context.trace.close()
        self.context.channel.close()
        self.context.history.passed_by()
        yield from ()


_GONE = "its sponsor is gone, or others were lost"
_UNKNOWN = "its script calls {} in a training that is over, and the others' did not there"
