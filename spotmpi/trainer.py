"""The training loop that users call: steps that survive the loss of workers."""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

import spotmpi
from spotmpi import checkpoint, control, settings
from spotmpi.channel import IN_ROUND, IN_SCRIPT, STOP, Channel
from spotmpi.driver import Driver, Recovered
from spotmpi.errors import Stopped, UsageError
from spotmpi.fabric import Buffer, Fabric, Steps
from spotmpi.handshake import shake_hands
from spotmpi.journal import Journal
from spotmpi.keeper import Keeper
from spotmpi.membership import Membership, WorkerId
from spotmpi.optimizers import Optimizer
from spotmpi.rehearsal import Rehearsal
from spotmpi.replica import Replica
from spotmpi.sampler import Deal, Dealer, Indices, Sampler, generator
from spotmpi.settings import Settings
from spotmpi.strategies import Strategy
from spotmpi.trace import Trace

_BETWEEN_ABORTS = 0.5
_ABORTS_APART = 3
"""Seconds between the first workers' calls of MPI_Abort, and for how many of them."""

P = TypeVar("P", bound="Sequence[Any] | dict[str, Any]")


class Trainer(Generic[P]):
    """Trains one model on all workers of the job, whoever of them is revoked.

    ``params``: list or dict of arrays; those of the first worker count. ``optimizer.lr`` is meant
    for the number of workers at the start and follows the number in each step's average from there
    (``lr_reference`` names another number, ``scale_lr=False`` switches it off). ``seed`` decides
    the order of samples. ``check_finite``: refuse gradients with NaN or infinity.

    A context manager: entering starts MPI if there is one and is collective, leaving is collective
    too and ends what spotmpi protects; what stands after the block is ordinary code.
    """

    def __init__(
        self,
        params: P,
        *,
        optimizer: Optimizer,
        strategy: Strategy,
        seed: int = 0,
        scale_lr: bool = True,
        lr_reference: int | None = None,
        check_finite: bool = False,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"optimizer must be one of spotmpi.optimizers, not {optimizer!r}")
        if not isinstance(strategy, Strategy):
            raise UsageError(f"strategy must be one of spotmpi.strategies, not {strategy!r}")
        if lr_reference is not None and lr_reference < 1:
            raise UsageError(f"lr_reference is a number of workers, at least 1, not {lr_reference}")
        self.optimizer = optimizer
        self.strategy = strategy
        self.seed = seed
        self.steps = 0
        """Steps committed; the number of the step to come."""
        self.loss: float | None = None
        """The workers' mean loss in the last step, weighted as their gradients are."""
        self._replica: Replica[P] = Replica(params, optimizer, strategy)
        self._scale_lr = scale_lr
        self._reference = lr_reference
        self._check_finite = check_finite
        self._dealer = Dealer()
        self._samplers: list[Sampler] = []
        self._restored: dict[str, Any] = {}
        self._kind = control.STEP
        self._bring: Callable[[], None] = self._replica.bring_nothing
        """Fills the open round's buffers, as often as it is tried."""
        self._beginning = False
        self._deal: Deal | None = None
        self._batch: Indices | None = None
        self._weight = 0
        self._loss: float | None = None
        self._gradients = 0
        """Gradients that this worker was given for steps ..."""
        self._brought = False
        self._contributed = 0
        """... and committed steps that it brought one to: their difference was computed in vain."""
        self._answer: Any = None
        self._stopping = False
        self._digest: int | None = None
        """Of the parameters, if they have been digested since they changed."""
        self._digest_due = False
        self._compare_after: int | None = None
        self._me: WorkerId = 0
        self._entered = False
        # Of one worker, until entering connects it to the others.
        self._driver = Driver(self._me, Membership.first(["localhost"]), self, time.monotonic)
        self._settings: Settings
        self._fabric: Fabric
        self._journal: Journal
        self._keeper: Keeper
        self._channel: Channel
        self._rehearsal: Rehearsal
        self._reducing = self._committed_at = 0.0

    # What users call.

    @property
    def params(self) -> P:
        """The live parameters, in the structure they were given in. Read them; do not write."""
        return self._replica.params

    @property
    def worker(self) -> WorkerId:
        """This worker's id: given at its admission, never reused."""
        return self._me

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that train now, in ring order."""
        return self._driver.membership.ids

    @property
    def generation(self) -> int:
        """How many times the membership was proposed anew; grows with every change."""
        return self._driver.membership.generation

    @property
    def leader(self) -> bool:
        """Whether once-only work (printing, evaluating) is this worker's. Local.

        Just one worker of each membership is the leader; if it is lost, another one is.
        """
        return self.workers[0] == self._me

    @property
    def rng(self) -> Any:
        """A random generator for this worker and step: derived, so that reruns draw the same."""
        return generator(self.seed, self.worker, self.steps)

    def batches(self, n: int, batch_size: int, passes: int = 1) -> Iterator[Indices]:
        """The indices of this worker's batches: every one of ``n`` samples once in each pass.

        ``batch_size`` is per worker. Call `step` once for each batch. Collective in effect: every
        worker takes as many steps. At the end of a pass there may be fewer samples than workers:
        some then see a sample of another worker's, and their gradient counts for nothing.
        """
        self._need_entered("batches()")
        sampler = Sampler(n, batch_size, passes, [self.seed, len(self._samplers)])
        prefix = f"sampler/{len(self._samplers)}/"
        kept = {
            k.removeprefix(prefix): v for k, v in self._restored.items() if k.startswith(prefix)
        }
        if kept:
            sampler.restore(kept)
        self._samplers.append(sampler)
        while (deal := self._dealer.draw(sampler, self._driver.membership)) is not None:
            self._deal = deal
            mine = deal.of(self.worker)
            # With nothing of its own it borrows a sample and counts for nothing: the script stays
            # the same on all workers, whatever else it calls in the loop.
            self._batch = (mine if len(mine) else deal.samples[:1]).copy()
            yield self._batch
            if self._batch is not None:
                raise UsageError(
                    f"worker {self.worker}: the batch of step {self.steps} was not used: "
                    "call trainer.step() once for each batch"
                )

    def step(self, grads: P, loss: float | None = None) -> None:
        """Average ``grads`` over all workers and apply it: one training step. Collective, blocking.

        ``grads`` has the structure, shapes and dtypes of the parameters and is the mean over this
        worker's batch; outside of `batches` every worker counts as one sample. Returns with the
        step committed, whoever dies meanwhile; `loss` is then the mean over the workers.
        """
        self._need_entered("step()")
        self._fabric.run(self._step(grads, loss))

    def mean(self, x: Any) -> Any:
        """The mean of ``x`` (a number or an array of one shape) over the workers. Collective.

        A float for a number, else an array. In the parameters' precision; costs about as much as
        the all-reduce of one step. A worker lost in it does not count.
        """
        self._need_entered("mean()")
        return self._fabric.run(self._mean(x))

    def save(self) -> None:
        """Ask for a checkpoint at the end of the step to come (or of the training). Local.

        Enough if one worker asks. It is written by whoever leads then, into ``--checkpoint DIR``.
        """
        self._need_entered("save()")
        if self._settings.checkpoint is None:
            raise UsageError(
                "trainer.save() has no place to write to: start with --checkpoint DIR "
                "(SPOTMPI_CHECKPOINT)"
            )
        self._keeper.asked = True

    def __enter__(self) -> Trainer[P]:
        self._settings = Settings.from_environ()
        alone = self._settings.world_size is None
        self._channel = Channel.open(self._settings)
        self._channel.tell("begin")
        try:
            settings.check(self._settings, 1 if alone else self._settings.world_size or 1)
            if self._settings.checkpoint is not None:
                checkpoint.check_writable(self._settings.checkpoint)
            trace = Trace(self._settings.trace)
            self._fabric = _connect(alone)
        except UsageError as error:
            self._end_job(error)
            raise
        try:
            self._fabric.run(self._begin(trace))
        except Exception as error:
            self._end_job(error)
            raise
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Stopped):
            if self.leader and self._settings.job is None:  # a launcher would say it
                print(f"spotmpi: {error}", file=sys.stderr, flush=True)
            return
        if error is not None:
            self._end_job(error)
            return
        try:
            self._fabric.run(self._finish("finished"))
        except Exception as failure:
            self._end_job(failure)
            raise

    # Rounds, as generators of requests: the simulator runs these, too.

    def _begin(self, trace: Trace) -> Steps[None]:
        fabric, given = self._fabric, self._settings
        self._me = fabric.me
        found = self._restore()
        if given.checkpoint is not None:
            checkpoint.check_state(self._replica.state())
        yield from shake_hands(
            self._me,
            fabric.membership,
            [
                ("the names, shapes or dtypes of the parameters", str(self._replica.signature)),
                ("the strategy or the optimizer", f"{self.strategy} {type(self.optimizer)}"),
                ("the seed", str(self.seed)),
                ("the checkpoint that they see", f"step {found.step}" if found else "none"),
                ("the settings", str((given.trace, given.checkpoint_every, given.min_workers))),
            ],
        )
        self._channel.tell("ready")  # from here on a loss is recovered from
        self._driver = Driver(self._me, fabric.membership, self, fabric.clock)
        self._journal = Journal(trace, self._channel, self._me)
        self._rehearsal = Rehearsal(given.revoke, self._me)
        self._keeper = Keeper(
            given.checkpoint, given.checkpoint_every, self._state, trace, self._channel, self._me
        )
        if self._reference is None:
            self._reference = len(fabric.membership)
        self._committed_at = fabric.clock()
        if self._leads():
            self._open_trace(trace, found)
        # The first worker's parameters: the sum over all, where all others bring zeros.
        self._beginning = True
        yield from self._round(control.MEAN, self._replica.bring_nothing)
        self._beginning = False

    def _step(self, grads: P, loss: float | None) -> Steps[None]:
        weight = 1 if self._deal is None else len(self._deal.of(self.worker))
        self._brought = weight > 0
        self._gradients += self._brought
        self._weight, self._loss = weight, loss
        bring = partial(self._bring_gradient, grads, weight)
        yield from self._round(control.STEP, bring if weight else self._replica.bring_nothing)
        self._batch = None

    def _bring_gradient(self, grads: P, weight: int) -> None:
        self._replica.bring(grads, weight)
        if self._check_finite and (name := self._replica.first_not_finite()) is not None:
            raise UsageError(
                f"worker {self.worker}, step {self.steps}: the gradient of {name} holds NaN or "
                "infinity; lower the learning rate, or look at this batch: "
                f"{None if self._batch is None else self._batch.tolist()}"
            )

    def _mean(self, x: Any) -> Steps[Any]:
        answers = []
        for part in self._replica.parts(x):
            yield from self._round(control.MEAN, partial(self._replica.bring_values, part))
            answers.append(self._answer)
        return self._replica.join(x, answers)

    def _round(self, kind: int, bring: Callable[[], None]) -> Steps[None]:
        self._kind, self._bring = kind, bring
        yield from self._driver.round()
        self._bring = self._replica.bring_nothing  # let go of the script's arrays
        if self._digest_due:  # and not in `commit`: survivors with a recovery to finish go first
            self._digest = self._replica.digest()
            self._journal.digested(self._digest)
        if self._stopping and self._kind != control.END:
            left, least = len(self.workers), self._settings.min_workers
            why = f"workers left: {left}, fewer than the {least} asked for"
            if left >= least:
                why = "the job was asked to stop"
            self._keeper.asked = True
            yield from self._finish("stopped")
            raise Stopped(
                f"{why}; a checkpoint of step {self.steps} is in {self._settings.checkpoint}"
            )

    def _finish(self, outcome: str) -> Steps[None]:
        yield from self._round(control.END, self._replica.bring_nothing)
        yield from self._driver.finish()
        # Nobody waits for this worker any more. Should the leader be among the lost, the next
        # one does what it left undone.
        leader, number = self._leads(), self._driver.ledger.committed
        self._journal.stable(number + 1, self.workers[0])
        self._keeper.finish(self.steps, leader, must=self._stopping)
        if leader:
            self._journal.trace.write(
                "end", step=self.steps, workers=self._driver.membership.ids, outcome=outcome
            )
        self._journal.trace.close()
        self._entered = False
        self._channel.tell("done")

    # The driver's exchange.

    @property
    def buffers(self) -> Sequence[Buffer]:
        """The open round's: reduced in place."""
        return self._replica.buffers

    @property
    def record(self) -> Sequence[Buffer]:
        """The result of the round committed last."""
        return self._replica.record

    def bring(self) -> None:
        """Pack what this worker adds to the open round."""
        self._bring()

    def prepare(self, membership: Membership) -> None:
        """Write the control word; in the first round, decide whose parameters count."""
        me = self._me
        if self._beginning:
            self._replica.bring_params(membership.ids[0] == me)
        step = self._kind == control.STEP
        self._replica.bring_word(
            control.Word(
                kind=self._kind,
                worker=me,
                save=self._keeper.asked,
                published=self._keeper.published,
                stop=len(membership) < self._settings.min_workers or self._told_to_stop(),
                loss=float(self._loss or 0.0) if step else 0.0,
                loss_weight=self._weight if step and self._loss is not None else 0,
                digest=self._digest,
            )
        )
        if step:
            self._rehearsal.arm(self.steps)
        self._reducing = self._fabric.clock()
        self._channel.progressed(me, self._driver.ledger.committed, self.steps, IN_ROUND)

    def _told_to_stop(self) -> bool:
        # Not in the first round: without parameters there is nothing to stop with.
        order = None if self._beginning else self._channel.order_for(self._me)
        return order is not None and order.code == STOP

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """All is there: move on by one round, as every other worker does with the same numbers."""
        now = self._fabric.clock()
        self._rehearsal.reduced(now - self._reducing)
        number = self._driver.ledger.committed - 1
        # After the last round all wait for each other once more.
        doing = IN_ROUND if self._kind == control.END else IN_SCRIPT
        self._channel.progressed(
            self._me, number + 1, self.steps + (self._kind == control.STEP), doing
        )
        self._replica.keep_result()
        word = self._replica.word(len(contributors))
        word.check_kind(self._kind, number)
        word.check_digest(self._digest, number)
        self._digest = None
        leader = self._leads()
        self._journal.stable(number, self.workers[0])
        self._stopping = word.stop
        wanted = word.save
        if word.save:
            self._keeper.asked = False
        if self._kind == control.STEP:
            self._commit_step(number, contributors, word)
            wanted = wanted or self._keeper.due(self.steps)
        elif self._beginning:
            self._replica.take_params()
        elif self._kind == control.MEAN:
            self._answer = self._replica.values(1.0 / len(contributors))
        else:
            self._driver.ledger.end()
        traced = self._kind == control.STEP and self._journal.trace.active
        self._digest_due = traced or number == self._compare_after
        self._keeper.committed(number, self.steps, wanted, word.published, leader)
        if self._kind == control.END:
            self._keeper.finish(self.steps, leader, must=self._stopping)

    def dealt(self) -> tuple[int, int]:
        """Steps dealt to this worker so far, and the generation that the last was dealt for."""
        return self._dealer.dealt

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """A new membership is sealed: deal for it, report it, and compare replicas soon."""
        survey = recovered.verdict.survey
        self._dealer.resume(survey.dealt, dealt_for)
        self._journal.recovered(recovered)
        self._compare_after = survey.high

    # The parts.

    def _leads(self) -> bool:
        return self._driver.membership.ids[0] == self._me

    def _commit_step(
        self, number: int, contributors: Sequence[WorkerId], word: control.Sum
    ) -> None:
        deal = self._deal
        samples = {} if deal is None else {w: deal.of(w) for w in contributors}
        weights = [1] * len(contributors) if deal is None else list(map(len, samples.values()))
        total, active = sum(weights), sum(map(bool, weights))
        assert self._reference is not None
        rate = self.optimizer.lr * (active / self._reference if self._scale_lr else 1.0)
        if total:  # a step whose only samples were the lost workers' moves nothing
            self._replica.apply(rate, 1.0 / total)
            self.loss = word.loss
        if deal is not None:
            self._dealer.count(contributors)
            self._deal = None
        step, self.steps = self.steps, self.steps + 1
        self._contributed += self._brought
        now = self._fabric.clock()
        if self._journal.wants_steps:
            record = {
                "step": step,
                "generation": self._driver.ledger.generation,
                "workers": contributors,
                "contributions": [
                    {"worker": w, "samples": samples.get(w), "weight": weight}
                    for w, weight in zip(contributors, weights, strict=True)
                ],
                "loss": word.loss,
                "rate": rate,
                "seconds": now - self._committed_at,
            }
            self._journal.step(number, record, now, self._gradients - self._contributed)
        self._committed_at = now

    def _state(self) -> dict[str, Any]:
        """Everything registered: what a checkpoint holds and a joiner needs."""
        assert self._reference is not None
        state: dict[str, Any] = {
            "steps": self.steps,
            "seed": self.seed,
            "lr/reference": self._reference,
        }
        state.update(self._replica.state())
        for number, sampler in enumerate(self._samplers):
            state.update({f"sampler/{number}/{k}": v for k, v in sampler.state().items()})
        return state

    def _restore(self) -> checkpoint.Checkpoint | None:
        given = self._settings
        if given.checkpoint is None:
            return None
        if not given.resume:
            checkpoint.check_unused(given.checkpoint)
            return None
        found = checkpoint.load_latest(given.checkpoint, _warn)
        self._restored = found.state
        if found.state.get("seed") != self.seed:
            raise UsageError(
                f"{found.path} was written with seed={found.state.get('seed')!r} and this run has "
                f"seed={self.seed}: samples would be used twice or never; resume with the same seed"
            )
        self._replica.restore(found.state, str(found.path))
        self.steps = found.step
        if self._reference is None:
            self._reference = int(str(found.state["lr/reference"]))
        return found

    def _open_trace(self, trace: Trace, found: checkpoint.Checkpoint | None) -> None:
        trace.begin(resume=found is not None)
        trace.write(
            "start",
            workers=self._fabric.membership.ids,
            hosts=[worker.host for worker in self._fabric.membership],
            params=self._replica.size,
            seed=self.seed,
            strategy=str(self.strategy),
            optimizer=type(self.optimizer).__name__,
            lr=self.optimizer.lr,
            version=spotmpi.__version__,
            detect_ms=None if self._settings.job is None else self._settings.detect_ms,
        )
        if found is not None:
            trace.write("resume", step=found.step, path=str(found.path))

    def _need_entered(self, call: str) -> None:
        if not self._entered:
            raise UsageError(
                f"trainer.{call} belongs inside `with spotmpi.Trainer(...) as trainer`"
            )

    def _end_job(self, error: BaseException) -> None:
        """This worker's script is wrong: nobody may take its end for a revocation."""
        if self._settings.job is not None or self._settings.world_size is None:
            return  # the launcher hears of it and ends the job; alone there is nobody to end
        worker = self._settings.rank
        traceback.print_exception(error)
        print(f"spotmpi: worker {worker} raised the error above; the job ends", file=sys.stderr)
        sys.stderr.flush()
        from spotmpi.fabric.mpi import abort  # whether or not this worker came to connect

        # Often all workers come here at once, and mpirun (5.0.11) at times hangs for ever when
        # several ask it to abort within a millisecond: 1 in 17 jobs of 3. So one goes first.
        time.sleep(_BETWEEN_ABORTS * min(worker or 0, _ABORTS_APART))
        abort()


def _connect(alone: bool) -> Fabric:
    if alone:
        from spotmpi.fabric.solo import SoloFabric

        return SoloFabric()
    from spotmpi.fabric.mpi import MpiFabric

    return MpiFabric()


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
