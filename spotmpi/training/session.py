"""`Session`: one worker among the others, as its driver's `Exchange` for every kind of round.

All that involves other workers is a generator of requests (`spotmpi.fabric`), so that the simulator
runs it as well. Users see it through `Trainer` and `Group`. A session is built whole, once its
worker is connected and knows the others. Until then a `JoiningWorker` stands for a newcomer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from spotmpi.errors import CheckpointError, Left, Stopped
from spotmpi.fabric import Arena, Work
from spotmpi.fabric import Steps as Asks
from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT
from spotmpi.operators import StepPosition
from spotmpi.protocol import control_word
from spotmpi.protocol.boundary import START, Payload, boundary
from spotmpi.protocol.control_word import ControlWord
from spotmpi.protocol.ending import EndEvent, Ending, EndState
from spotmpi.protocol.exact_means import like
from spotmpi.protocol.ledger import Ledger
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import PlannedChange
from spotmpi.protocol.sampler import Indices
from spotmpi.rounds.driver import Driver, Recovered
from spotmpi.rounds.handshake import Compare, Facts, Tell
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.round import BeginRound, EndRound, MeanRound, OnceRound, Round
from spotmpi.rounds.state_transfer import StateTransfer
from spotmpi.training.digest_check import DigestCheck
from spotmpi.training.fault_injection import FaultInjection, Rehearsal
from spotmpi.training.journal import Journal
from spotmpi.training.keeping.checkpoints import Checkpoints
from spotmpi.training.launcher_orders import LauncherOrders
from spotmpi.training.steps.gathering import Gathering
from spotmpi.training.steps.records import StepRecords
from spotmpi.training.steps.step_round import LearnRound, StepRound
from spotmpi.training.steps.strategy_survey import StrategySurvey
from spotmpi.training.steps.switching import Switching
from spotmpi.training.steps.worker_steps import RoundSteps, WorkerSteps
from spotmpi.training.steps.worker_tables import WorkerTables
from spotmpi.training.training_state import TrainingState
from spotmpi.training.worker_context import WorkerContext

_LOG = logging.getLogger(__name__)

P = TypeVar("P")


class Session(Generic[P]):
    """One worker's part in a training, from its first round to its last."""

    def __init__(
        self,
        place: WorkerContext,
        training: TrainingState[P],
        membership: Membership,
        ledger: Ledger | None = None,
    ) -> None:
        """Begin among ``membership``; a newcomer brings the ``ledger`` that it goes on with."""
        self.place = place
        self.training = training
        fabric, given, channel = place.fabric, place.settings, place.channel
        self.me: WorkerId = fabric.me
        tape = training.registry.tape()
        self._school = StateTransfer(self.me, tape, fabric.arena, training.model.ends)
        self._tables = WorkerTables(fabric.arena, training)
        self.memory = RoundMemory(fabric.arena, self._usual, self._school)
        self.driver = Driver(self.me, membership, self, fabric.clock, ledger)
        self._joined = ledger is not None
        self.journal = Journal(place.trace, channel, self.me, lambda: training.sync.strategy.called)
        self.rehearsal: Rehearsal = FaultInjection(given.revoke, self.me)
        registry = training.registry
        self.keeper = Checkpoints(
            given.checkpoint,
            given.checkpoint_every,
            lambda: (registry.checkpoint(), {"structure": registry.structure()}),
            training.finite.holds,
            place.save,
            place.trace,
            channel,
            fabric,
        )
        self._round: Round = EndRound(self.memory, self._reached)
        """The open round, or the last one."""
        self.turns = WorkerSteps(training, self.me, lambda: self.driver.membership, fabric.clock)
        self._orders = LauncherOrders(place, training, self.me)
        self._boundary = START
        """What the last round has led to."""
        self._ending = Ending()
        self._finishing = False
        """True once the script is at its end."""
        self._compare = DigestCheck(training.registry, self.journal)
        self._unkept: Callable[[], None] | None = None
        """Tells the keeper of the last round, if the script has yet to apply its result."""
        self._reducing = 0.0
        self._records = StepRecords(place, self.journal, self.memory, self.turns)
        survey = StrategySurvey(training, lambda: self.driver.membership, fabric.clock)
        known = self._school, self.turns, self.journal, survey, self._tables
        self._switching = Switching(training, *known)
        self._gathering = Gathering(place, training, self._school, lambda: self.driver.membership)

    # What the script asks for.

    def shake_hands(self, facts: Facts) -> Asks[None]:
        """Compare what must be equal on all workers. Raises UsageError, on all of them alike, that
        names a worker that differs, and in what."""
        compared = Compare(self.memory, facts)
        yield from self._perform(compared)
        if compared.differing:
            yield from self._perform(Tell(self.memory, facts, self.me, compared.differing))

    def begin(self, resumed: bool) -> Asks[None]:
        """Bring what the first worker holds to all, in a round."""
        model = self.training.model
        yield from self._perform(BeginRound(self.memory, model.first()))
        model.settle()
        if not resumed:
            self.training.sync.start()
            self.training.finite.begin()

    def learn(self, charter: dict[str, Any]) -> Asks[None]:
        """Do a newcomer's first rounds, until it is level with the others after a step. Raises Left
        if the training is over before."""
        self._school.enrol(charter["lessons"])
        words = charter["numbers"]
        self.memory.follow(Payload(control_word.MEAN, words) if words else None)
        self.training.progress.rounds = charter["rounds"]
        while self._school.learns:
            self._round = LearnRound(self.memory, self.training, self._tables, self._reached)
            self._needs_others()
            yield from self.driver.round()
            if self._ending.over:
                yield from self._leave_with_all("the training was over before it had learnt")

    def graduate(self) -> Asks[Session[P]]:
        """End the lessons: this worker knows everything and takes the others' next step."""
        self.training.batch = None
        _LOG.info("step %d: worker %d has learnt", self.training.progress.steps, self.me)
        self.place.channel.tell("trains", step=self.training.progress.steps)
        yield from self._after_round()
        return self

    def next_batch(self, number: int) -> Indices | None:
        """Draw this worker's next batch from the script's batches of this number. Local."""
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
        now = self.turns.moment()
        yield from self.training.sync.begin(None, now)
        return now

    def _renew(self) -> None:
        """Begin the next turn, with another strategy if all have agreed on one."""
        self._switching.carry_out(self.driver.membership.generation, self._leads)
        self.turns.renew()

    def _perform_step(self, turn: RoundSteps, now: StepPosition) -> Asks[None]:
        """Do the round of these steps, which may be open already."""
        opened = self.driver.ledger.open
        yield from self._gathering.come()
        if opened and now.sends:
            self._round.bring()
        yield from self._perform(self._round if opened else self._step_round(turn))

    def _step_round(self, turn: RoundSteps) -> Round:
        return StepRound(self.memory, self.training, self._tables, turn, self.me)

    def _usual(self) -> list[Arena]:
        """Return the arenas of a usual round: of the model's size."""
        return [self.training.sync.arena, *self._tables.open()]

    def ready(self, key: Any, array: Any) -> Asks[Session[P]]:
        """Take one array of the gradient for the next step. Parts that are complete now start, if
        the strategy is piecewise. Raises UsageError; raises Left as a round does."""
        sync, pieces = self.training.sync, self.training.gradient.pieces
        pieces.check(key, array)
        if sync.strategy.piecewise and not self.driver.ledger.open:
            yield from self._open_early()
            yield from sync.begin_piecewise(self.turns.moment())
            self._round.prepare(self.driver.membership, self.me)
        sync.give(key, array)
        if sync.strategy.piecewise:
            yield from self._start(pieces.full)
        return self

    def _open_early(self) -> Asks[None]:
        """Open the round of the present steps before all contributions to it are there."""
        self._needs_others()
        yield from self._enter(self._step_round(self.turns.now))
        yield from self._unless_left(self.driver.open())
        self._goes_on()

    def _start(self, parts: int) -> Asks[None]:
        """Start the first ``parts`` parts of the open round: they are there."""
        if parts > self.driver.started:
            self._needs_others()
            self._round.check(self.driver.started, parts)
            yield from self.driver.start(parts)
            self._goes_on()

    def step(self, grads: Any, loss: float | None) -> Asks[Session[P]]:
        """Do one step, with a gradient for the batch drawn last, and its round if it has one."""
        if self.turns.now.left:
            yield from self.round_off()
        training, turn = self.training, self.turns.now
        sync = training.sync
        if turn.lease is None:
            training.position.loosen()
        ahead, opened = sync.strategy.delay > 0, self.driver.ledger.open
        if ahead and self._boundary.changes and not opened:
            # No worker may leave in the middle of its steps.
            yield from self._open_early()
        if begun := opened and not ahead:
            self._round.check(self.driver.started)
        now = self.turns.moment()
        if not begun:
            yield from sync.begin(grads, now)
        has_round = begun or now.last
        self.turns.take(loss)
        if not has_round:
            sync.close()
            if now.sends:
                if not self.driver.ledger.open:
                    yield from self._open_early()
                sync.send(now)
                yield from self._start(len(sync.arena.parts))
            self.turns.advance()
            if has_round := (yield from self._gathering.is_due(turn, self._boundary.changes)):
                now = yield from self._end_turn()
        if has_round:
            yield from self._perform_step(turn, now)
            if self._ending.sealed:
                yield from self._leave_with_all("the others have finished")
            self._renew()
        training.position.stepped()
        training.batch = None
        return self

    def mean(self, x: Any) -> Asks[Any]:
        """Return the mean of ``x``, in two rounds."""
        if self.turns.comes_together:
            yield from self.round_off()
        answer = MeanRound(self.memory, x)
        yield from self._perform(answer)
        if self.memory.numbers:
            yield from self._perform(answer)
        self.training.position.remember(answer.answer, len(answer.answer))
        return like(x, answer.answer)

    def once(self, work: Callable[[], bytes], of: str | None = None) -> Asks[bytes]:
        """Return the value of ``work``, which one worker does for all; ``of``: the work's name.

        It begins when all have come to this call. Until all know the value no worker leaves or
        joins, so the work is done again only after a death.
        """
        if self.turns.comes_together:
            yield from self.round_off()
        answer = OnceRound(self.memory)
        yield from self._perform(answer)
        while answer.answer is None:
            if answer.mine is None and self._first == self.me and not self._boundary.owed:
                answer.mine = yield Work(work)
            yield from self._perform(answer)
        self.training.position.remember(answer.answer, of)
        return answer.answer

    def finish(self, outcome: str) -> Asks[None]:
        """Leave together with all others. Returns when nobody waits for this worker."""
        self._finishing = outcome == "finished"
        yield from self.round_off()
        while not self._ending.over:
            yield from self._close()
        yield from self.driver.finish()
        # Nobody waits for this worker any more. If the leader is lost, the next one does what it
        # left undone.
        steps = self.training.progress.steps
        _LOG.info("step %d: training has %s", steps, outcome)
        self.journal.stable(self.driver.ledger.committed + 1, self.driver.membership.ids[0])
        if self._leads:
            left = self.training.position.left_early
            self.journal.end(steps, self.driver.membership.ids, outcome, left)
        self._records.close()
        if self._finishing:
            self.training.finite.tell_end(self.place.channel, self._leads)
        unkept, mute = self.keeper.given_up, self.place.channel.mute
        if unkept:
            self.place.channel.tell("unkept")
        self.place.channel.tell("done")
        self.place.channel.close()
        if unkept and mute:
            raise CheckpointError(
                f"the training is over, but its end could not be kept in {self.keeper.folder}: see "
                "the warnings above"
            )

    # Rounds.

    def _perform(self, what: Round) -> Asks[None]:
        if self.driver.ledger.open and what is not self._round:  # open parts must arrive first
            self.turns.check_free()
            yield from self.round_off()
        if not self.driver.ledger.open:
            yield from self._enter(what)
        self._needs_others()
        yield from self._unless_left(self.driver.round())
        yield from self._after_round()

    def _enter(self, what: Round) -> Asks[None]:
        """Make this the next round. If all are to stop, and can, they stop before it."""
        if self._may_stop and self._unkept is not None and what.kind != control_word.END:
            yield from self._stop()
        self._round = what

    def _unless_left(self, steps: Asks[None]) -> Asks[None]:
        try:
            yield from steps
        except Left:
            self._records.close()
            self.keeper.wait()
            self.place.channel.tell("parted")
            self.place.channel.close()
            raise

    def _needs_others(self) -> None:
        """Report that this worker waits for others, also for a change of the membership."""
        self._tell_progress(self.driver.ledger.committed, IN_ROUND)

    def _goes_on(self) -> None:
        """Report that the script computes what the rest of the round is made of."""
        self._tell_progress(self.driver.ledger.committed, IN_SCRIPT)

    def _tell_progress(self, rounds: int, doing: int) -> None:
        done, measured = self.training.progress, self.training.measured(self.driver.membership.ids)
        self.place.channel.progressed(self.me, rounds, done.steps, doing, done.loss, measured)

    def _after_round(self) -> Asks[None]:
        self._compare.make()
        # It stops a round later if scripts have yet to get a value of `once`, or to apply a result
        # that must be in the checkpoint.
        if self._may_stop and not (self._boundary.owed or self._unkept):
            yield from self._stop()

    @property
    def _may_stop(self) -> bool:
        """True if all are to stop, and can. Within a mean or a round's steps they cannot: they may
        have to go on from there. At the end they need not."""
        wanted = self._ending.state is EndState.STOPPING and not self._finishing
        return wanted and not self.memory.numbers and self.turns.level

    def _stop(self) -> Asks[None]:
        """Stop with all others, with a checkpoint. Raises Stopped; returns if none can be written:
        then all go on."""
        why = self._orders.why_to_stop(len(self.driver.membership.ids))
        yield from self._close()
        if not self._ending.over:
            return
        yield from self.finish("stopped")
        raise Stopped(why)

    def _close(self) -> Asks[None]:
        """Do the last rounds. After the first of them nothing can be taken back. If there is a
        place for the last state, the leader writes it in a further round. If all were to stop and
        it cannot, these are not the last rounds."""
        self._ending.handle(EndEvent.CLOSE)
        while self._ending.state in (EndState.CLOSING, EndState.KEEPING):
            yield from self._perform(EndRound(self.memory, self._reached))

    def _reached(self, word: control_word.ControlSum) -> None:
        """Note that all have come to the end, or to a stop."""
        ending, keeper = self._ending, self.keeper
        if ending.sealed and not word.published:
            self.place.channel.tell("goes_on")
            if not ending.stops:
                keeper.refused_end()
        ending.come(keeper.folder is not None, word.published, not keeper.given_up)

    def _leave_with_all(self, why: str) -> Asks[None]:
        """Leave, as the training is over, wherever this worker's script is. Raises Left."""
        while not self._ending.over:
            yield from self._close()
        try:
            yield from self.driver.finish(leaves=True)
        except Left:
            self.place.channel.tell("parted")
            self.place.channel.close()
            raise Left(f"worker {self.me}: {why}") from None

    # The driver's exchange.

    def due(self) -> PlannedChange | None:
        """Return what this worker adds to the plan that is due; None: none is due."""
        if not self._boundary.changes:
            return None
        guest = None if self._school.learns else self.place.fabric.guest()
        leaving = frozenset({self.me}) if self._orders.leave else frozenset()
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
            self._round.bring()

    def prepare(self, membership: Membership) -> None:
        """Bring what depends on who takes part: a page, and in the first round the parameters."""
        self._round.prepare(membership, self.me)
        if self._school.learns:
            self._school.bring_nothing()
        elif self._school.teaching:
            self._teach(self._school.full(membership.ids))
        steps = self.training.progress.steps
        if self._round.kind == control_word.STEP:
            steps += self.training.progress.adds
            self.rehearsal.arm(range(self.turns.now.first, steps))
        self._reducing = self._records.entered()

    def speak(self, membership: Membership) -> None:
        """Write the control word."""
        self.rehearsal.hold()
        what = self._round
        if what.kind is None:
            self.memory.speak(ControlWord(None, self.me))
            return
        if what.obeys:
            self._orders.obey(self.driver.membership, what.kind == control_word.STEP)
        few = len(self._school.full(membership.ids)) < self.place.settings.min_workers
        published = self.keeper.published
        if self._ending.sealed:
            # All others wait in this round. If this worker dies in it, another one leads.
            published = self._leads and self._keep_now()
        level = self.turns.level
        word = ControlWord(
            kind=what.kind,
            worker=self.me,
            save=level and self.keeper.asked,
            published=published,
            stop=level and (self._orders.stop or (what.obeys and few)),
            leaves=level and self._orders.leave,
            newcomer=level and self.place.fabric.guest() is not None,
            late=self._joined and what.kind == control_word.STEP,
            strategy=self._switching.wish if self._leads else None,
            digest=self._compare.said,
        )
        self.memory.speak(what.word(word))

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """Commit the round, as every other worker does with the same numbers: all is there."""
        now = self.place.fabric.clock()
        self.rehearsal.reduced(now - self._reducing)
        ledger = self.driver.ledger
        number = ledger.committed - 1
        self.memory.turn()
        page = self._school.turn()
        learner, full = self._school.learns, self._school.full(contributors)
        word = self.memory.heard(len(full))
        if not learner:
            self._check(number, word)
        taken = self._round.commit(number, full, word, page)
        if taken:
            known = number, ledger.generation, contributors, full, taken, now
            self._records.committed(*known)
            self.training.finite.tell(self.place.channel, self.me, self._leads)
            if self.turns.level:
                self._switching.heard(word, taken, full, self._leads)
        graduates = self._school.given(page)
        if self.me in graduates:
            self._round.graduate(page["rest"], full)
            self.training.model.settle()
            self.keeper.joins(number)
        if graduates and not self._school.learns:
            self._compare.follow(number)
        last, stops = self.memory.payload, self._ending.stops
        after = self._boundary = boundary(word, last, stops, len(full), len(graduates))
        self.memory.follow(after.payload)
        if after.stops and not after.over:
            self._ending.handle(EndEvent.TOLD)
        traced = self._records.over(self._round.kind, taken, now)
        self._compare.committed(number, traced, self._round.levels, self.turns.level)
        # After the last round all wait for each other again.
        doing = IN_ROUND if after.over or self._school.learns else IN_SCRIPT
        steps = self.training.progress.steps
        self._tell_progress(number + 1, doing)
        if not learner and not after.over:
            wanted = after.saves or (taken is not None and self.keeper.due(taken.first, steps))
            if taken and not self.training.model.moves_itself:
                self._unkept = partial(self._keep, number, steps, wanted, word.published)
            else:
                self._keep(number, steps, wanted, word.published)

    def dealt(self) -> tuple[int, int]:
        """Return how many leases this worker was dealt, and the generation of the last one."""
        return self.training.position.dealer.dealt

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """Go on with a new membership: deal for it, report it, and compare replicas soon."""
        survey = recovered.verdict.survey
        _LOG.info("step %d: %s", self.training.progress.steps, recovered)
        self._boundary = self._boundary._replace(changes=False)
        self.training.meter.stalls(recovered.settled - recovered.detected)
        self._school.forget(recovered.gone)
        if not self._school.full(recovered.after.ids):
            raise Left(f"worker {self.me}: all workers that it could learn from are lost")
        if (newcomer := recovered.verdict.change.newcomer) is not None:
            self._school.admit(newcomer)
        if self._school.learns:
            return
        self.training.position.dealer.resume(survey.dealt, dealt_for)
        self.journal.recovered(recovered)
        self._compare.follow(survey.high)

    def charter(self) -> bytes:
        """Return what a newcomer must know to take part in the next round."""
        known = self._school.charter(), self.memory.numbers
        return self._orders.charter(self.driver.membership, self.driver.ledger, *known)

    def confirm(self, lost: Collection[WorkerId]) -> None:
        """Wait until the launcher, if there is one, says that these are dead. Blocking."""
        self.place.channel.confirm(lost)

    def last_words(self, remaining: Collection[WorkerId]) -> None:
        """Write the steps that are not in the trace yet, as the leader of those who remain.

        Once the end is sealed the leader may die, and nobody would know that steps are missing.
        """
        members = self.driver.membership.ids
        if next((worker for worker in members if worker in remaining), None) == self.me:
            self.journal.stable(self.driver.ledger.committed, self.me)
            self.journal.reach(self.training.progress.steps)

    # The parts.

    @property
    def _leads(self) -> bool:
        return self.driver.membership.ids[0] == self.me

    @property
    def _first(self) -> WorkerId:
        """The first worker that knows everything."""
        return self._school.full(self.driver.membership.ids)[0]

    def _keep(self, number: int, steps: int, wanted: bool, confirmed: bool) -> None:
        self.keeper.committed(number, steps, wanted, confirmed, self._leads, self.turns.level)

    def _keep_now(self) -> bool:
        """Write the last state. Returns False if that cannot be done."""
        steps, complete = self.training.progress.steps, self._finishing or not self._ending.stops
        if not self._ending.stops:
            self.keeper.pause(self.place.rest)
        return self.keeper.keep(steps, complete)

    def _teach(self, full: Sequence[WorkerId]) -> None:
        """Bring this worker's part of the page, and what a step's result is to be applied with."""
        values = self._round.lesson(full) if full[0] == self.me else None
        rest: dict[str, Any] = {}
        if values is not None and self._school.rest_due and self._round.graduates:
            rest = self.training.registry.snapshot(full)
        self._school.bring(full, values or {}, rest)

    def _check(self, number: int, word: control_word.ControlSum) -> None:
        """Check that all do this round with equal state. It becomes the end if all others end."""
        assert self._round.kind is not None
        word.check_kind(self._round.kind, number)
        word.check_digest(self._compare.said, number)
        self._compare.said = None
        self.journal.stable(number, self.driver.membership.ids[0])
        if word.save:
            self.keeper.asked = False
        if word.over and self._round.kind != control_word.END:
            self._round = EndRound(self.memory, self._reached)
