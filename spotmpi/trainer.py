"""The training loop that users call: steps that survive the loss of workers."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

import spotmpi
from spotmpi import checkpoint, settings
from spotmpi.buffers import flat_array, like
from spotmpi.channel import Channel
from spotmpi.errors import Left, Stopped, UsageError
from spotmpi.fabric import Fabric
from spotmpi.member import Member
from spotmpi.membership import WorkerId
from spotmpi.optimizers import Optimizer
from spotmpi.sampler import Indices, generator
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
        self._member: Member[P] = Member(
            params, optimizer, strategy, seed, scale_lr, lr_reference, check_finite
        )

    # What users call.

    @property
    def params(self) -> P:
        """The live parameters, in the structure they were given in. Read them; do not write."""
        return self._member.replica.params

    @property
    def steps(self) -> int:
        """Steps committed; the number of the step to come."""
        return self._member.steps

    @property
    def loss(self) -> float | None:
        """The workers' mean loss in the last step, weighted as their gradients are."""
        return self._member.loss

    @property
    def worker(self) -> WorkerId:
        """This worker's id: given at its admission, never reused."""
        return self._member.me

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that train now, in ring order."""
        return self._member.driver.membership.ids

    @property
    def generation(self) -> int:
        """How many times the membership was proposed anew; grows with every change."""
        return self._member.driver.membership.generation

    @property
    def leader(self) -> bool:
        """Whether once-only work (printing, evaluating) is this worker's. Local.

        Just one worker of each membership is the leader; if it is lost, another one is.
        """
        return self.workers[0] == self._member.me

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
        number = self._member.position.open(n, batch_size, passes, self.seed)
        self._member.position.enter()
        try:
            while (batch := self._member.next_batch(number)) is not None:
                self._member.batch = batch
                yield batch
                if self._member.batch is not None:
                    raise UsageError(
                        f"worker {self.worker}: the batch of step {self.steps} was not used: "
                        "call trainer.step() once for each batch"
                    )
        finally:
            self._member.position.leave(number)

    def step(self, grads: P, loss: float | None = None) -> None:
        """Average ``grads`` over all workers and apply it: one training step. Collective, blocking.

        ``grads`` has the structure, shapes and dtypes of the parameters and is the mean over this
        worker's batch; outside of `batches` every worker counts as one sample. Returns with the
        step committed, whoever dies meanwhile; `loss` is then the mean over the workers.
        """
        self._need_entered("step()")
        self._member.fabric.run(
            self._member.learn(grads) if self._member.guest else self._member.step(grads, loss)
        )

    def mean(self, x: Any) -> Any:
        """The mean of ``x`` (a number or an array of one shape) over the workers. Collective.

        A float for a number, else an array of float64. Exact: rounded once, whatever the order of
        the workers, and the mean of equal numbers is that number. Costs about as much as the
        all-reduce of one step, and 576 bytes more of it for each number beyond the fourth. A worker
        lost in it does not count.
        """
        self._need_entered("mean()")
        member = self._member
        known = member.position.recall()
        if known is not None:
            return like(x, flat_array(known))
        if member.guest:  # a rehearsal: what comes of it counts for nothing
            return like(x, flat_array(x))
        return member.fabric.run(member.mean(x))

    def save(self) -> None:
        """Ask for a checkpoint at the end of the step to come (or of the training). Local.

        Enough if one worker asks. It is written by whoever leads then, into ``--checkpoint DIR``.
        """
        self._need_entered("save()")
        if self._member.settings.checkpoint is None:
            raise UsageError(
                "trainer.save() has no place to write to: start with --checkpoint DIR "
                "(SPOTMPI_CHECKPOINT)"
            )
        self._member.keeper.asked = True

    def __enter__(self) -> Trainer[P]:
        member = self._member
        given = member.settings = Settings.from_environ()
        member.version = spotmpi.__version__
        member.guest = given.newcomer is not None
        member.channel = Channel.open(given)
        member.channel.tell("begin")
        try:
            if not member.guest:
                settings.check(given, given.world_size or 1)
            if given.checkpoint is not None:
                checkpoint.check_writable(given.checkpoint)
            trace = Trace(given.trace)
            member.fabric = _connect(given, member.channel)
        except UsageError as error:
            self._end_job(error)
            raise
        try:
            member.fabric.run(member.visit(trace) if member.guest else member.begin(trace))
        except Exception as error:
            self._end_job(error)
            raise
        member.entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        member = self._member
        if isinstance(error, Stopped):
            if self.leader and member.settings.job is None:  # a launcher would say it
                print(f"spotmpi: {error}", file=sys.stderr, flush=True)
            return
        if isinstance(error, Left):
            return
        if error is not None:
            self._end_job(error)
            return
        if member.guest:  # what stands after the block must not see a model that knows nothing
            why = f"worker {member.me} came after the last step"
            member.channel.tell("withdrawn", why=why)
            raise Left(why)
        try:
            member.fabric.run(member.finish("finished"))
        except Exception as failure:
            self._end_job(failure)
            raise

    def _need_entered(self, call: str) -> None:
        if not self._member.entered:
            raise UsageError(
                f"trainer.{call} belongs inside `with spotmpi.Trainer(...) as trainer`"
            )

    def _end_job(self, error: BaseException) -> None:
        """This worker's script is wrong: nobody may take its end for a revocation."""
        if self._member.settings.job is not None or self._member.settings.world_size is None:
            return  # the launcher hears of it and ends the job; alone there is nobody to end
        worker = self._member.settings.rank
        traceback.print_exception(error)
        print(f"spotmpi: worker {worker} raised the error above; the job ends", file=sys.stderr)
        sys.stderr.flush()
        from spotmpi.fabric.mpi import abort  # whether or not this worker came to connect

        # Often all workers come here at once, and mpirun (5.0.11) at times hangs for ever when
        # several ask it to abort within a millisecond: 1 in 17 jobs of 3. So one goes first.
        time.sleep(_BETWEEN_ABORTS * min(worker or 0, _ABORTS_APART))
        abort()


def _connect(given: Settings, channel: Channel) -> Fabric:
    if given.newcomer is None and given.world_size is None:
        from spotmpi.fabric.solo import SoloFabric

        settings.check_alone()
        return SoloFabric()
    if given.newcomer is not None:
        if "mpi4py.MPI" in sys.modules:
            raise UsageError(
                f"worker {given.newcomer}: the script imports mpi4py.MPI, and so starts MPI, "
                "before it enters the Trainer; a worker that joins later must not: import it later"
            )
        # Whatever could be done without the others is done: now the launcher may have one of them
        # bring this worker in, and then says as which process MPI will know it.
        os.environ.update(channel.admission(given.newcomer))
    from spotmpi.fabric.deaths import Deaths
    from spotmpi.fabric.mpi import MpiFabric

    me = given.rank if given.newcomer is None else given.newcomer
    # On one host mpirun has started all of them together, and tells them of each other.
    obituaries = channel.obituaries(me or 0) if given.stand_in else None
    follow = None if obituaries is None else Deaths(obituaries).follow
    fabric = MpiFabric(given.stand_in, given.newcomer, follow)
    if given.newcomer is not None:
        channel.tell("connected")
    return fabric
