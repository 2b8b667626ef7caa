"""What one worker brings to its training's rounds, and what it does when one is complete. All of it
is local: the driver calls it, and the session when a script asks for something."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from spotmpi.errors import Left
from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT
from spotmpi.protocol import control_word
from spotmpi.protocol.boundary import START, follow
from spotmpi.protocol.control_word import ControlSum, ControlWord
from spotmpi.protocol.ending import Ending
from spotmpi.protocol.ledger import Ledger
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import PlannedChange
from spotmpi.rounds.driver import Driver
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.recovered import Recovered
from spotmpi.rounds.round import EndRound, Round, Taken
from spotmpi.rounds.state_transfer import StateTransfer
from spotmpi.training.briefing import Admission
from spotmpi.training.journal import Journal
from spotmpi.training.keeping.checkpoint_writer import CheckpointWriter
from spotmpi.training.keeping.checkpoints import Checkpoints
from spotmpi.training.launcher_orders import LauncherOrders
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps.digest_check import DigestCheck
from spotmpi.training.steps.records import StepRecords
from spotmpi.training.steps.strategy_survey import StrategySurvey
from spotmpi.training.steps.switching import Switching
from spotmpi.training.steps.worker_steps import WorkerSteps
from spotmpi.training.steps.worker_tables import WorkerTables
from spotmpi.training.worker_context import WorkerContext

__all__ = ["TrainingExchange"]

_LOG = logging.getLogger(__name__)


class TrainingExchange:
    """One worker's side of all rounds of a training, as its driver's `Exchange`."""

    def __init__(
        self,
        context: WorkerContext,
        training: TrainingState[Any],
        membership: Membership,
        ledger: Ledger | None = None,
    ) -> None:
        """Begin among ``membership``; a newcomer brings the ``ledger`` that it goes on with."""
        self.context = context
        self.training = training
        fabric, given, channel = context.fabric, context.settings, context.channel
        registry = training.registry
        transfer = StateTransfer(self.me, registry.words(), fabric, training.model.ends)
        self.driver = Driver(self.me, membership, self, fabric.clock, ledger)
        self.tables = WorkerTables(
            fabric.arena, training, lambda: len(self.driver.ledger.contributors)
        )
        self.memory = RoundMemory(
            fabric, lambda: [training.sync.arena, *self.tables.open()], transfer
        )
        self.turns = WorkerSteps(training, self.me, lambda: self.driver.membership, fabric.clock)
        journal = Journal(context.trace, channel, self.me, lambda: training.sync.strategy.called)
        self.records = StepRecords(context, journal, self.memory, self.turns)
        self.compare = DigestCheck(training.model, journal, fabric.background)
        survey = StrategySurvey(training, lambda: self.driver.membership, fabric.clock)
        self.switching = Switching(training, transfer, journal, survey, self.tables)
        self.orders = LauncherOrders(context, training, self.me)
        known = training.finite.holds, context.save, context.trace, channel, fabric
        self.keeper = Checkpoints(
            CheckpointWriter(given.checkpoint, *known),
            given.checkpoint_every,
            lambda: (registry.checkpoint(), {"structure": registry.structure()}),
            fabric.clock,
        )
        self._unkept: Callable[[], None] | None = None
        """Tells the keeper of the last round, if the script has yet to apply its result."""
        self.ending = Ending()
        self.round: Round = EndRound(self.memory, self.reached, self.ending)
        """The open round, or the last one."""
        self.boundary = START
        """What the last round has led to."""

    @property
    def me(self) -> WorkerId:
        """This worker."""
        return self.context.fabric.me

    @property
    def transfer(self) -> StateTransfer:
        """The pages from which newcomers learn."""
        return self.memory.transfer

    # The driver's exchange.

    def due(self) -> PlannedChange | None:
        """Return what this worker adds to the plan that is due; None: none is due."""
        if not self.boundary.changes:
            return None
        guest = None if self.transfer.learns else self.context.fabric.guest()
        leaving = frozenset({self.me}) if self.orders.leave else frozenset()
        if leaving:
            self.training.sync.leave()  # now: once it is sealed the others go on
        return PlannedChange(leaving, guest, None if guest is None else self.me)

    def open(self) -> None:
        """Begin the next round: the changes of the last one are complete."""
        if self._unkept is not None:
            self._unkept()
            self._unkept = None
        self.memory.open()

    def bring(self) -> None:
        """Make this worker's contribution to the open round."""
        if self.driver.ledger.open:
            self.round.bring()

    def prepare(self, membership: Membership) -> None:
        """Bring what depends on who takes part: a page, and in the first round the parameters."""
        self.round.prepare(membership, self.me)
        if self.transfer.teaching:
            if self.transfer.learns:
                self.transfer.bring_nothing()
            else:
                self._teach(membership)
        if self.round.kind == control_word.STEP or self.round.adds:
            turn, steps = self.turns.now, self.training.progress.steps + self.round.adds
            if not self.turns.level:
                steps = turn.first + turn.taken  # the script takes the others later
            self.context.faults.arm(range(turn.first, steps))
        if self.turns.level or self.round.kind != control_word.STEP:  # else the script goes on
            self.records.entered()

    def speak(self, membership: Membership) -> None:
        """Write the control word."""
        self.context.faults.hold()
        what = self.round
        if what.kind is None:
            self.memory.speak(ControlWord(None, self.me))
            return
        if what.obeys:
            self.orders.obey(self.driver.membership, what.kind == control_word.STEP)
        few = len(self.transfer.full(membership.ids)) < self.context.settings.min_workers
        published = self.keeper.published
        if self.ending.sealed:
            # All others wait in this round. If this worker dies in it, another one leads.
            published = self.leads and self._keep_now()
        # A round of steps ends level, also if it is spoken of before the last of them.
        level = self.turns.level or what.kind == control_word.STEP
        word = ControlWord(
            kind=what.kind,
            worker=self.me,
            save=level and self.turns.at_rest and self.keeper.asked,
            published=published,
            stop=level and (self.orders.stop or (what.obeys and few)),
            leaves=level and self.orders.leave,
            newcomer=level and self.context.fabric.guest() is not None,
            strategy=self.switching.wish if self.leads else None,
            recent=self.training.position.recent,
            call=what.call,
            brought=what.carries and self.memory.payload is None,
            digest=self.compare.result(),
            **what.says(),
        )
        self.memory.speak(word)

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """Commit the round, as every other worker does with the same numbers: all is there."""
        now = self.context.fabric.clock()
        self.context.faults.reduced(self.records.seconds(now))
        number = self.driver.ledger.committed - 1
        self.memory.turn()
        transfer = self.transfer
        page = transfer.turn()
        learner, full = transfer.learns, transfer.full(contributors)
        word = self.memory.hear(len(full))
        taken = None
        if word.astray is not None:
            page.pop("rest", None)  # nobody learns in a round that is done again
        else:
            if not learner:
                self._check(number, word)
            taken = self.round.commit(number, full, word, page)
        self.records.journal.complete(now)
        if taken:
            self._taken(number, contributors, full, taken, word, now)
        if graduates := transfer.given(page):
            if self.me in graduates:
                self.round.graduate(page["rest"], full)
                self.training.model.settle()
                self.keeper.joins(number)
            if not transfer.learns:
                self.compare.follow(number)
        after = follow(self.ending, word, self.memory.payload, len(full), len(graduates))
        self.boundary = after
        self.memory.follow(after)
        traced = self.records.over(self.round.kind, taken, now)
        self.compare.committed(number, traced, self.round.levels, self.turns.level)
        # After the last round all wait for each other again.
        doing = IN_ROUND if after.over or transfer.learns else IN_SCRIPT
        steps = self.training.progress.steps
        self.tell_progress(number + 1, doing)
        if not learner and not after.over:
            wanted = after.saves or (taken is not None and self.keeper.due(taken.first, steps))
            if taken and not self.training.model.moves_itself:
                self._unkept = partial(self._keep, number, steps, wanted, word.published)
            else:
                self._keep(number, steps, wanted, word.published)

    def _taken(
        self,
        number: int,
        brought: Sequence[WorkerId],
        full: Sequence[WorkerId],
        taken: Taken,
        word: ControlSum,
        now: float,
    ) -> None:
        """Tell of the steps that a round has committed."""
        generation = self.driver.ledger.generation
        self.records.committed(number, generation, brought, full, taken, now)
        leads = self.leads
        self.training.finite.tell(self.context.channel, self.me, leads)
        if self.turns.level:
            self.switching.heard(word, taken, full, leads)

    @property
    def unapplied(self) -> bool:
        """True if the script has yet to apply the last round's result."""
        return self._unkept is not None

    def dealt(self) -> tuple[int, int]:
        """Return how many leases this worker was dealt, and the generation of the last one."""
        return self.training.position.dealer.dealt

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """Go on with a new membership: deal for it, report it, and compare models soon."""
        survey = recovered.verdict.survey
        _LOG.info("step %d: %s", self.training.progress.steps, recovered)
        self.boundary = self.boundary._replace(changes=False)
        stalled = recovered.settled - recovered.detected
        self.training.meter.stalls(stalled)
        self.switching.stalls(stalled)
        self.transfer.forget(recovered.gone)
        if not self.transfer.full(recovered.after.ids):
            raise Left(f"worker {self.me}: all workers that it could learn from are lost")
        if (newcomer := recovered.verdict.change.newcomer) is not None:
            self.transfer.admit(newcomer)
        if self.transfer.learns:
            return
        self.training.position.dealer.resume(survey.dealt, dealt_for)
        self.records.journal.recovered(recovered)
        self.compare.follow(survey.high)

    def admission(self) -> bytes:
        """Return what a newcomer must know to take part in the next round."""
        ledger = self.driver.ledger
        known = self.transfer.state(), self.memory.numbers
        how = Admission(ledger.last, ledger.committed, *known)
        return self.orders.briefing(self.driver.membership, how).encode()

    def confirm(self, lost: Collection[WorkerId]) -> None:
        """Wait until the launcher, if there is one, says that these are dead. Blocking."""
        self.context.channel.confirm(lost)

    def last_words(self, remaining: Collection[WorkerId]) -> None:
        """Write the steps that are not in the trace yet, as the leader of those who remain.

        Once the end is sealed the leader may die, and nobody would know that steps are missing.
        """
        members = self.driver.membership.ids
        if next((worker for worker in members if worker in remaining), None) == self.me:
            self.records.journal.stable(self.driver.ledger.committed, self.me)
            self.records.journal.reach(self.training.progress.steps)

    # What it knows and does by itself.

    @property
    def leads(self) -> bool:
        """True if this worker leads."""
        return self.driver.membership.ids[0] == self.me

    @property
    def first(self) -> WorkerId:
        """The first worker that knows everything."""
        return self.transfer.full(self.driver.membership.ids)[0]

    def _keep(self, number: int, steps: int, wanted: bool, confirmed: bool) -> None:
        self.keeper.committed(number, steps, wanted, confirmed, self.leads, self.turns.whole)

    def _keep_now(self) -> bool:
        """Write the last state. Returns False if that cannot be done."""
        steps = self.training.progress.steps
        complete = self.ending.finishes or not self.ending.stops
        if not self.ending.stops:
            self.keeper.pause(self.context.rest)
        # All others wait for this worker alone, and a disk may hang.
        committed = self.driver.ledger.committed
        self.tell_progress(committed, IN_SCRIPT)
        kept = self.keeper.keep(steps, complete)
        self.tell_progress(committed, IN_ROUND)
        return kept

    def bring_ahead(self) -> int | None:
        """Bring what else goes with the open round, before the round's last step. Return how many
        parts may start now. None: all, and the control word."""
        membership, transfer, sync = self.driver.membership, self.transfer, self.training.sync
        if transfer.teaching:
            sync.leave()  # now, and not in `prepare`: it changes the place of what is under way
            if transfer.rest_due or sync.strategy.after:
                # The rest, and stages behind the round, are about the round's last step.
                transfer.bring_page(membership.generation, transfer.full(membership.ids))
                return len(sync.arena.parts) + 1
        self.prepare(membership)
        return None

    def _teach(self, membership: Membership) -> None:
        """Bring this worker's part of the page, and what a step's result is to be applied with."""
        full = self.transfer.full(membership.ids)
        values = self.round.page(full) if full[0] == self.me else None
        rest: dict[str, Any] = {}
        if values is not None and self.transfer.rest_due and self.round.graduates:
            rest = self.training.registry.snapshot(full)
        self.transfer.bring_page(membership.generation, full)
        self.transfer.bring_head(membership.generation, values or {}, rest)

    def _check(self, number: int, word: ControlSum) -> None:
        """Check that all do this round with equal state. It becomes the end if all others end."""
        assert self.round.kind is not None
        word.check_kind(self.round.kind, number)
        if self.round.call and not word.over:
            known = control_word.code_of(self.round.kind, self.round.call)
            word.check_call(known, self.round.about, number)
        word.check_digest(self.compare.result(), number)
        self.records.journal.stable(number, self.driver.membership.ids[0])
        if word.save:
            self.keeper.asked = False
        if word.over and self.round.kind != control_word.END:
            self.round = EndRound(self.memory, self.reached, self.ending)

    def reached(self, word: ControlSum) -> None:
        """Note that all have come to the end, or to a stop."""
        ending, keeper = self.ending, self.keeper
        ending.finished = ending.finished or word.finished
        if ending.sealed and not word.published:
            self.context.channel.tell("goes_on")
            if not ending.stops:
                keeper.refused_end()
        ending.come(
            self.context.settings.checkpoint is not None, word.published, not keeper.given_up
        )
        if ending.over:
            self.driver.ledger.end()

    def tell_progress(self, rounds: int, doing: int) -> None:
        """Tell the launcher how far this worker is, and what it is ``doing``."""
        if self.context.channel.mute:
            return
        training, done = self.training, self.training.progress
        measured = training.meter.measured(training.outlook.whole(len(self.driver.membership.ids)))
        self.context.channel.progressed(self.me, rounds, done.steps, doing, done.loss, measured)
