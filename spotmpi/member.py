"""One worker among the others: what it brings to rounds, and what it does when one is committed.

Everything that takes part with others is a generator of requests (`spotmpi.fabric`), so that the
simulator runs it as well; the `Trainer` is the face that users see of it.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from spotmpi import checkpoint, control, exact
from spotmpi.buffers import first_sample, flat_array, like
from spotmpi.channel import IN_ROUND, IN_SCRIPT, Channel, Order
from spotmpi.driver import Driver, Recovered
from spotmpi.errors import Left, PeersLost, Stopped, UsageError
from spotmpi.fabric import Fabric, Knock, Meet, Steps
from spotmpi.handshake import check_facts, shake_hands
from spotmpi.journal import Journal, described
from spotmpi.keeper import Keeper
from spotmpi.ledger import Ledger
from spotmpi.lessons import pack, unpack
from spotmpi.membership import Membership, WorkerId
from spotmpi.memory import Memory
from spotmpi.optimizers import Optimizer
from spotmpi.position import Position
from spotmpi.recovery import Plan
from spotmpi.rehearsal import Rehearsal
from spotmpi.replica import Replica
from spotmpi.sampler import Deal, Indices
from spotmpi.school import School
from spotmpi.settings import Settings
from spotmpi.strategies import Strategy
from spotmpi.trace import Trace

P = TypeVar("P", bound="Sequence[Any] | dict[str, Any]")


class Member(Generic[P]):
    """One worker's part: the driver's exchange. The arguments are the `Trainer`'s."""

    def __init__(
        self,
        params: P,
        optimizer: Optimizer,
        strategy: Strategy,
        seed: int,
        scale_lr: bool,
        lr_reference: int | None,
        check_finite: bool,
    ) -> None:
        self.optimizer = optimizer
        self.strategy = strategy
        self.seed = seed
        self.steps = 0
        """Steps committed; the number of the step to come."""
        self.loss: float | None = None
        """The workers' mean loss in the last step, weighted as their gradients are."""
        self.replica: Replica[P] = Replica(params, optimizer, strategy)
        self._scale_lr = scale_lr
        self._reference = lr_reference
        self._check_finite = check_finite
        self.position = Position()
        self._school: School
        self.memory: Memory
        self.guest = False
        """It is connected to the others, but takes no part in rounds yet."""
        self._late = False  # it has been a guest
        self._kind = control.STEP
        self._bring: Callable[[], None] = self._bring_nothing
        """Makes the open round's contributions, as often as it must."""
        self._numbers: Any = ()
        """Of which a mean is asked, as they are summed."""
        self._asked = 0
        self._beginning = False
        self._deal: Deal | None = None
        self.batch: Indices | None = None
        self._weight = 0
        self._loss: float | None = None
        self._gradients = 0
        """Gradients that this worker was given for steps ..."""
        self._brought, self._contributed = False, 0
        """... and committed steps that it brought one to: their difference was computed in vain."""
        self._answer: list[float] = []
        self._told_to_stop = self._leaving = False
        """What this worker says in its control words: all should stop, it is to leave."""
        self._stopping = self._due = False
        """What all have read from theirs: training stops, a plan is due."""
        self._digest: int | None = None
        """Of the parameters, if they have been digested since they changed."""
        self._digest_due = False
        self._compare_after: int | None = None
        self.me: WorkerId = 0
        self.entered = False
        # Of one worker, until entering connects it to the others.
        self.driver = Driver(self.me, Membership.first(["localhost"]), self, time.monotonic)
        self.version = ""  # of spotmpi; for the trace
        self.settings: Settings  # these three are the trainer's to find
        self.fabric: Fabric
        self.channel: Channel
        self.keeper: Keeper
        self._journal: Journal
        self._rehearsal: Rehearsal
        self._reducing = self._committed_at = 0.0

    def begin(self, trace: Trace) -> Steps[None]:
        """Meet the others: the first round brings the first worker's parameters to all."""
        fabric, given = self.fabric, self.settings
        self.me = fabric.me
        self._prepare_rounds()
        found = self._restore()
        if given.checkpoint is not None:
            checkpoint.check_state(self.replica.state())
        saw = ("the checkpoint that they see", f"step {found.step}" if found else "none")
        facts = [*self._facts(), saw]
        yield from shake_hands(self.me, fabric.membership, facts, fabric.arena)
        self.channel.tell("ready")  # from here on a loss is recovered from
        self.driver = Driver(self.me, fabric.membership, self, fabric.clock)
        self._furnish(trace)
        if self._reference is None:
            self._reference = len(fabric.membership)
        if self._leads():
            trace.begin(resume=found is not None)
            trace.write("start", **self._start_record())
            if found is not None:
                trace.write("resume", step=found.step, path=str(found.path))
        # The first worker's parameters: the sum over all, where all others bring zeros.
        self._beginning = True
        yield from self._round(control.MEAN, self._bring_nothing)
        self._beginning = False
        self.channel.tell("underway")

    def _prepare_rounds(self) -> None:
        arena = self.fabric.arena
        self.replica.furnish(arena)
        self._school = School(self.me, *self.replica.tape(), arena)
        self.memory = Memory(arena, self.replica.arena, self._school)

    def _facts(self) -> list[tuple[str, str]]:
        given = self.settings
        return [
            ("the names, shapes or dtypes of the parameters", str(self.replica.signature)),
            ("the strategy or the optimizer", f"{self.strategy} {type(self.optimizer)}"),
            ("the seed", str(self.seed)),
            ("the settings", str((given.trace, given.checkpoint_every, given.min_workers))),
        ]

    def _start_record(self) -> dict[str, Any]:
        return {
            "workers": self.fabric.membership.ids,
            "hosts": [worker.host for worker in self.fabric.membership],
            "params": self.replica.size,
            "seed": self.seed,
            "strategy": str(self.strategy),
            "optimizer": type(self.optimizer).__name__,
            "lr": self.optimizer.lr,
            "version": self.version,
            "detect_ms": None if self.settings.job is None else self.settings.detect_ms or "auto",
        }

    def _furnish(self, trace: Trace) -> None:
        """What a worker needs besides its place among the others."""
        given = self.settings
        self._journal = Journal(trace, self.channel, self.me)
        self._rehearsal = Rehearsal(given.revoke, self.me)
        self.keeper = Keeper(
            given.checkpoint, given.checkpoint_every, self._state, trace, self.channel, self.me
        )
        self._committed_at = self.fabric.clock()

    def visit(self, trace: Trace) -> Steps[None]:
        """Hear from one of the others how far its script has come. Raises Left if it is gone."""
        self.me = self.fabric.me
        self._prepare_rounds()
        try:
            prospectus = json.loads((yield Meet()))
        except PeersLost:
            raise self._turned_away() from None
        membership = unpack(prospectus["membership"])
        check_facts(self.me, membership.ids[0], self._facts(), prospectus["facts"])
        self.driver = Driver(self.me, membership, self, self.fabric.clock)
        self._take(prospectus["rest"])
        self._check_followed()
        self._furnish(trace)
        self.channel.tell("ready")

    def learn(self, grads: P) -> Steps[None]:
        """Be admitted, and taught; returns where all are after a step. Raises Left if it cannot."""
        self.replica.rehearse(grads)
        self.channel.tell("knocks")
        try:
            charter = json.loads((yield Knock()))
        except PeersLost:
            raise self._turned_away() from None
        membership = unpack(charter["membership"])
        ledger = Ledger(membership, charter["committed"], unpack(charter["before"]))
        self.driver = Driver(self.me, membership, self, self.fabric.clock, ledger)
        self._school.enrol(charter["lessons"])
        self.memory.expect(charter["rest"])
        self.channel.tell("admitted", generation=membership.generation)
        self._kind, self._bring = control.STEP, self._bring_nothing
        while self._school.learns:
            yield from self.driver.round()
            if self._kind == control.END:
                yield from self._leave_with_all("the training was over before it had learnt")
        self._check_followed()
        self.guest, self._late = False, True
        self.batch = None
        self.channel.tell("trains", step=self.steps)
        yield from self._after_round()

    def _leave_with_all(self, why: str) -> Steps[None]:
        """The training is over, wherever this worker's script is."""
        yield from self.driver.finish()
        self.entered = False
        self.channel.tell("parted")
        raise Left(f"worker {self.me}: {why}")

    def _turned_away(self, what: str = "its sponsor is gone, or others were lost") -> Left:
        why = f"worker {self.me} was not admitted: {what}"
        self.channel.tell("withdrawn", why=why)
        return Left(why)

    def _check_followed(self) -> None:
        if self.position.lost:
            raise self._turned_away(
                "its script has asked for more numbers, by trainer.mean() outside of batches(), "
                "than are kept for newcomers; ask for fewer, or inside of batches()"
            )

    def _prospectus(self) -> bytes:
        """What a newcomer's script needs to get to where the others are."""
        fields = {
            "membership": pack(self.driver.membership),
            "facts": [value for _, value in self._facts()],
            "rest": self._rest(None),
        }
        return json.dumps(fields).encode()

    def _rest(self, contributors: Sequence[WorkerId] | None) -> dict[str, Any]:
        """What no page holds a slice of; after the step drawn, if its contributors are given."""
        return {
            "steps": self.steps + (contributors is not None),
            "reference": self._reference,
            "lr": self.optimizer.lr,
            "position": self.position.state(contributors),
        }

    def _take(self, rest: dict[str, Any]) -> None:
        self.steps, self._reference = int(rest["steps"]), int(rest["reference"])
        self.optimizer.lr = float(rest["lr"])
        self.position.restore(rest["position"])

    def step(self, grads: P, loss: float | None) -> Steps[None]:
        """One step, with a gradient for the batch drawn last."""
        weight = 1 if self._deal is None else len(self._deal.of(self.me))
        self._brought = weight > 0
        self._gradients += self._brought
        self._weight, self._loss = weight, loss
        if self._deal is None:
            self.position.loosen()
        bring = partial(self._bring_gradient, grads, weight)
        yield from self._round(control.STEP, bring if weight else self._bring_nothing)
        if self._kind == control.END:
            yield from self._leave_with_all("the others have finished")
        self.batch = None

    def next_batch(self, number: int) -> Indices | None:
        """Draw this worker's next batch from the script's batches of this number. Local."""
        if self.guest:  # one to rehearse with: the others' steps do not wait for it
            return None if self.position.used_up(number) else first_sample()
        deal = self._deal = self.position.draw(number, self.driver.membership)
        if deal is None:
            return None
        mine = deal.of(self.me)
        # With nothing of its own it borrows a sample, for nothing: all scripts stay the same.
        return (mine if len(mine) else deal.samples[:1]).copy()

    def _bring_gradient(self, grads: P, weight: int) -> None:
        self.replica.bring(grads, weight)
        if self._check_finite and (name := self.replica.first_not_finite()) is not None:
            raise UsageError(
                f"worker {self.me}, step {self.steps}: the gradient of {name} holds NaN or "
                "infinity; lower the learning rate, or look at this batch: "
                f"{None if self.batch is None else self.batch.tolist()}"
            )

    def mean(self, x: Any) -> Steps[Any]:
        """The mean of ``x``: what does not fit beside the control word takes one round more."""
        flat = flat_array(x)
        self._numbers, self._asked = exact.encode(flat), len(flat)
        yield from self._round(control.MEAN, self._bring_nothing)
        answer = self._answer
        if self.memory.rest:
            yield from self._round(control.MEAN, partial(self.memory.bring_rest, self._numbers))
            answer = [*answer, *self._answer]
        self._numbers, self._asked = (), 0
        self.position.remember(answer)
        return like(x, flat_array(answer))

    def _round(self, kind: int, bring: Callable[[], None]) -> Steps[None]:
        self._kind, self._bring = kind, bring
        try:
            yield from self.driver.round()
        except Left:
            self.keeper.wait()
            self._journal.trace.close()
            self.entered = False
            self.channel.tell("parted")
            raise
        yield from self._after_round()

    def _bring_nothing(self) -> None:
        self.memory.bring_nothing()

    def _after_round(self) -> Steps[None]:
        self._bring = self._bring_nothing  # let go of the script's arrays
        if self._digest_due:  # and not in `commit`: survivors with a recovery to finish go first
            self._digest = self.replica.digest()
            self._journal.digested(self._digest)
        if self._stopping and self._kind != control.END:
            many, least = len(self.driver.membership.ids), self.settings.min_workers
            why = f"workers that remain: {many}, fewer than the {least} asked for"
            if many >= least:
                why = f"the {'workers were' if self._leaving else 'job was'} told to stop"
            kept = "it keeps no checkpoints"
            if self.settings.checkpoint is not None:
                kept = f"a checkpoint of step {self.steps} is in {self.settings.checkpoint}"
            self.keeper.asked = True
            yield from self.finish("stopped")
            raise Stopped(f"{why}; {kept}")

    def finish(self, outcome: str) -> Steps[None]:
        """Leave together with all others; returns when nobody waits for this worker."""
        yield from self._round(control.END, self._bring_nothing)
        yield from self.driver.finish()
        # Nobody waits for it any more. What a lost leader left undone, the next one does.
        leader = self._leads()
        self._journal.stable(self.driver.ledger.committed + 1, self.driver.membership.ids[0])
        self.keeper.finish(self.steps, leader, must=self._stopping)
        if leader:
            self._journal.trace.write(
                "end", step=self.steps, workers=self.driver.membership.ids, outcome=outcome
            )
        self._journal.trace.close()
        self.entered = False
        self.channel.tell("done")

    # The driver's exchange.

    def due(self) -> Plan | None:
        """The last control word says whether anything is planned, this worker what it adds."""
        if not self._due:
            return None
        guest = None if self._school.learns else self.fabric.guest()
        leaving = frozenset({self.me}) if self._leaving else frozenset()
        return Plan(leaving, guest, None if guest is None else self.me)

    def open(self) -> None:
        """The next round begins."""
        self.memory.open()

    def bring(self) -> None:
        """Pack what this worker adds to the open round."""
        self._bring()

    def prepare(self, membership: Membership) -> None:
        """Bring what depends on who takes part: a page, and in the first round the parameters."""
        if self._beginning:
            self.replica.bring_params(membership.ids[0] == self.me)
        if self._school.learns:
            self._school.bring_nothing()
        else:
            if self._school.teaching:
                self._teach(self._school.full(membership.ids))
            if self._kind == control.STEP:
                self._rehearsal.arm(self.steps)
        self._reducing = self.fabric.clock()
        self.channel.progressed(self.me, self.driver.ledger.committed, self.steps, IN_ROUND)

    def speak(self, membership: Membership) -> None:
        """Write the control word."""
        if self._school.learns:
            self.memory.speak(control.Word(None, self.me))
            return
        self._obey(self.channel.order_for(self.me))
        full = self._school.full(membership.ids)
        step = self._kind == control.STEP
        word = control.Word(
            kind=self._kind,
            worker=self.me,
            save=self.keeper.asked,
            published=self.keeper.published,
            stop=self._told_to_stop or len(full) < self.settings.min_workers,
            leaves=self._leaving,
            newcomer=self.fabric.guest() is not None,
            late=step and self._late and self._deal is None,
            loss=float(self._loss or 0.0) if step else 0.0,
            loss_weight=self._weight if step and self._loss is not None else 0,
            numbers=self._asked,
            digest=self._digest,
        )
        self.memory.speak(word, self._numbers)

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """All is there: move on by one round, as every other worker does with the same numbers."""
        now = self.fabric.clock()
        self._rehearsal.reduced(now - self._reducing)
        number = self.driver.ledger.committed - 1
        self.memory.turn()
        page = self._school.turn()
        learner, full = self._school.learns, self._school.full(contributors)
        word = self.memory.heard(len(full))
        if learner:
            self._kind = word.kind
            self._follow(word, page)
        else:
            self._commit(number, full, word)
        graduates = self._school.given(page)
        if self.me in graduates:
            self._take(page["rest"])
        if graduates and not self._school.learns:
            self._compare_after = number
        self.memory.follow(word)
        everybody = word.leaving >= len(full) + len(graduates)
        self._stopping = self._stopping or word.stop or everybody
        self._due = (word.leaving > 0 or word.newcomer) and not self._stopping
        traced = self._kind == control.STEP and self._journal.trace.active and not learner
        self._digest_due = traced or number == self._compare_after
        # After the last round all wait for each other once more.
        doing = IN_ROUND if self._kind == control.END or self._school.learns else IN_SCRIPT
        self.channel.progressed(self.me, number + 1, self.steps, doing)
        if not learner:
            leader = self._leads()
            wanted = word.save or (self._kind == control.STEP and self.keeper.due(self.steps))
            self.keeper.committed(number, self.steps, wanted, word.published, leader)
            if self._kind == control.END:
                self.keeper.finish(self.steps, leader, must=self._stopping)

    def dealt(self) -> tuple[int, int]:
        """Steps dealt to this worker so far, and the generation that the last was dealt for."""
        return self.position.dealer.dealt

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """A new membership is sealed: deal for it, report it, and compare replicas soon."""
        survey = recovered.verdict.survey
        self._due = False
        self._school.forget(recovered.gone)
        if not self._school.full(recovered.after.ids):
            raise Left(f"worker {self.me}: all workers that it could learn from are lost")
        newcomer = recovered.verdict.change.newcomer
        if newcomer is not None:
            self._school.admit(newcomer)
        if self._school.learns:
            return
        self.position.dealer.resume(survey.dealt, dealt_for)
        self._journal.recovered(recovered)
        self._compare_after = survey.high

    def charter(self) -> bytes:
        """What a newcomer must know to take part in the next round."""
        ledger = self.driver.ledger
        fields = {
            "membership": pack(self.driver.membership),
            "before": pack(ledger.last),
            "committed": ledger.committed,
            "lessons": self._school.charter(),
            "rest": self.memory.rest,
        }
        return json.dumps(fields).encode()

    def confirm(self, lost: Collection[WorkerId]) -> None:
        """Whether a worker is dead is for the launcher to say, if there is one. Blocking."""
        self.channel.confirm(lost)

    # The parts.

    def _leads(self) -> bool:
        return self.driver.membership.ids[0] == self.me

    def _obey(self, order: Order | None) -> None:
        # Not in the first round: without parameters there is nothing to stop with.
        if order is None or self._beginning:
            return
        self._told_to_stop = order.stop
        self._leaving = self._leaving or order.leave
        failure = self.fabric.sponsor(order.newcomer or None)
        if order.newcomer:
            self.channel.tell_once("spawning", order.newcomer)
        if failure is not None:
            self.channel.tell_once("gave_up", order.newcomer, why=failure)
        if self._kind == control.STEP:  # else an answer that its script needs has yet to come
            self.fabric.brief(self._prospectus)

    def _teach(self, full: Sequence[WorkerId]) -> None:
        """Bring this worker's part of the page, and what a step's result is to be applied with."""
        values: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        if self._kind == control.STEP and full[0] == self.me:
            total, rate = self._weigh(full)
            values = {"total": total, "rate": rate}
            if self._school.rest_due:
                rest = self._rest(full)
        self._school.bring(full, values, rest)

    def _follow(self, word: control.Sum, page: dict[str, Any]) -> None:
        """Do with a round what all do, without knowing what it was for."""
        if word.kind == control.STEP and page["total"]:
            self.replica.apply(page["rate"], 1.0 / page["total"])
            self.loss = word.loss
        elif word.kind == control.END:
            self.driver.ledger.end()

    def _commit(self, number: int, full: Sequence[WorkerId], word: control.Sum) -> None:
        word.check_kind(self._kind, number)
        word.check_digest(self._digest, number)
        self._digest = None
        self._journal.stable(number, self.driver.membership.ids[0])
        if word.save:
            self.keeper.asked = False
        if word.over:
            self._kind = control.END
        if self._kind == control.STEP:
            self._commit_step(number, full, word)
        elif self._beginning:
            self.replica.take_params()
        elif self._kind == control.MEAN:
            word.check_numbers(self._asked, number)
            self._answer = self.memory.means(self._asked, len(full))
        else:
            self.driver.ledger.end()

    def _weigh(self, full: Sequence[WorkerId]) -> tuple[int, float]:
        """The sum of the workers' weights in the open step, and the learning rate that holds."""
        assert self._reference is not None
        total, active = (len(full),) * 2 if self._deal is None else self._deal.weigh(full)
        rate = self.optimizer.lr * (active / self._reference if self._scale_lr else 1.0)
        return total, rate

    def _commit_step(self, number: int, full: Sequence[WorkerId], word: control.Sum) -> None:
        deal = self._deal
        total, rate = self._weigh(full)
        if total:  # a step whose only samples were the lost workers' moves nothing
            self.replica.apply(rate, 1.0 / total)
            self.loss = word.loss
        if deal is not None:
            self.position.dealer.count(full)
            self._deal = None
        step, self.steps = self.steps, self.steps + 1
        self._contributed += self._brought
        now = self.fabric.clock()
        if self._journal.wants_steps:
            known = {
                "generation": self.driver.ledger.generation,
                "workers": full,
                "loss": word.loss,
                "rate": rate,
                "seconds": now - self._committed_at,
            }
            describe = partial(described, known, deal)
            self._journal.step(number, step, describe, now, self._gradients - self._contributed)
        self._committed_at = now

    def _state(self) -> dict[str, Any]:
        """Everything registered: what a checkpoint holds and a joiner needs."""
        assert self._reference is not None
        state: dict[str, Any] = {
            "steps": self.steps,
            "seed": self.seed,
            "lr/reference": self._reference,
        }
        state.update(self.replica.state())
        state.update(self.position.checkpoint())
        return state

    def _restore(self) -> checkpoint.Checkpoint | None:
        given = self.settings
        if given.checkpoint is None:
            return None
        if not given.resume:
            checkpoint.check_unused(given.checkpoint)
            return None
        found = checkpoint.load_latest(
            given.checkpoint, partial(warnings.warn, category=RuntimeWarning, stacklevel=5)
        )
        self.position.resume(found.state)
        if found.state.get("seed") != self.seed:
            raise UsageError(
                f"{found.path} was written with seed={found.state.get('seed')!r} and this run has "
                f"seed={self.seed}: samples would be used twice or never; resume with the same seed"
            )
        self.replica.restore(found.state, str(found.path))
        self.steps = found.step
        if self._reference is None:
            self._reference = int(str(found.state["lr/reference"]))
        return found
