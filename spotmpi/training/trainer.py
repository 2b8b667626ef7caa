"""The training loop that users call: steps that survive the loss of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from spotmpi.arrays.layout import BUCKET_MB
from spotmpi.errors import UsageError
from spotmpi.optimizers import Optimizer
from spotmpi.optimizers.numbers import whole
from spotmpi.policies import Policy
from spotmpi.protocol.sampler import Indices
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD, Strategy, named
from spotmpi.training.elastic import Elastic
from spotmpi.training.replica import Replica
from spotmpi.training.training_state import SCALES, Rate, TrainingState

__all__ = ["Trainer"]

P = TypeVar("P")


class Trainer(Elastic[P]):
    """Trains one model on all workers of the job, whoever of them is revoked.

    ``params``: list or dict of arrays, or nested lists, dicts and dataclasses of them, whose names
    are then such as "encoder/w1"; those of the first worker count. ``strategy``: how workers
    synchronise, `SSGD` if none is given; ``--strategy`` replaces it. ``strategies``: others that
    they may change to; see `strategy`. ``policy``: decides that under way, one of
    `spotmpi.policies`; ``--strategy`` has none decide. ``optimizer.lr`` is meant
    for the number of workers at the start (``lr_reference`` names another number), and follows the
    number in each step's average from there: ``scale_lr`` is "linear", "sqrt" (with the square root
    of it) or "none". It takes ``lr_warmup`` steps to come to its new value. ``seed`` decides the
    order of samples. ``check_finite``: refuse gradients with NaN or infinity. ``bucket_mb``:
    about so many MB of gradients are summed at a time, from the last ones on; see `ready`.

    A context manager: entering starts MPI if there is one and is collective, leaving is collective
    too and ends what spotmpi protects; what stands after the block is ordinary code.
    """

    _call = "trainer"
    _use = "step"

    def __init__(
        self,
        params: P,
        *,
        optimizer: Optimizer,
        strategy: Strategy | None = None,
        strategies: Sequence[Strategy] = (),
        policy: Policy | None = None,
        seed: int = 0,
        scale_lr: str = "linear",
        lr_reference: int | None = None,
        lr_warmup: int = 0,
        check_finite: bool = False,
        bucket_mb: float = BUCKET_MB,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"optimizer must be one of spotmpi.optimizers, not {optimizer!r}")
        if not isinstance(policy, Policy | None):
            raise UsageError(f"policy must be one of spotmpi.policies, not {policy!r}")
        if isinstance(strategies, Strategy):
            raise UsageError("strategies is one strategy, expected a list, as [LocalSGD()]")
        if policy is not None:
            if not (decides := list(policy.strategies)):
                raise UsageError(f"{policy} has no strategies: name all that it may decide for")
            strategies = [*strategies, *decides]
            strategy = strategy or decides[0]
        insists = False
        if (asked := Settings.from_environ().strategy) is not None:
            insists = policy is not None
            if strategies:  # the script may want to go on with its own
                strategies = [*strategies, SSGD() if strategy is None else strategy]
            strategy, policy = named(asked), None
        if strategy is None:
            strategy = SSGD()
        for one in (strategy, *strategies):
            if not isinstance(one, Strategy):
                raise UsageError(f"strategy must be one of spotmpi.strategies, not {one!r}")
        if lr_reference is not None and lr_reference < 1:
            raise UsageError(f"lr_reference is a number of workers, at least 1, not {lr_reference}")
        if not isinstance(scale_lr, str) or scale_lr not in SCALES:
            names = ", ".join(f'"{name}"' for name in SCALES)
            raise UsageError(f"scale_lr is {scale_lr!r}, expected one of {names}")
        whole("lr_warmup", lr_warmup, 0)
        if not bucket_mb > 0:
            raise UsageError(f"bucket_mb is a number of megabytes, more than 0, not {bucket_mb}")
        self.optimizer = optimizer
        known: dict[str, Strategy] = {}
        for one in (strategy, *strategies):
            known.setdefault(str(one), one)
        first, *others = known.values()
        replica = Replica(params, optimizer, first, bucket_mb=bucket_mb, others=others)
        rate = Rate(optimizer, lr_reference, scale_lr, lr_warmup)
        super().__init__(TrainingState(replica, seed, rate, check_finite, policy))
        if insists:  # a checkpoint may be of one that the policy had decided for
            self._training.wish = 0

    @property
    def strategy(self) -> Strategy:
        """How workers synchronise now.

        Set it to one of ``strategies``: all workers change to that one after the same round, as
        soon as the worker that leads has asked for it and nobody is learning the model. Local, and
        returns at once; until all have changed, it is what it was. All go on with the model that
        they have agreed on, and what the optimizer remembers begins anew where each worker had its
        own (`LocalSGD`, `ADPSGD`) and all are to have the same (`SSGD`).
        """
        return self._training.replica.strategy

    @strategy.setter
    def strategy(self, wanted: Strategy) -> None:
        known = list(map(str, self._training.replica.strategies))
        if str(wanted) not in known:
            raise UsageError(
                f"worker {self.worker}, step {self.steps}: the training may not change to "
                f"{wanted}: name it at the start, in Trainer(strategies=[...]); it knows "
                f"{', '.join(known)}"
            )
        self._training.wish = known.index(str(wanted))

    @property
    def params(self) -> P:
        """The live parameters, in the structure they were given in. Read them; do not write.

        Those of half precision are rounded from what is trained, anew after each step.
        """
        return self._training.replica.params

    @property
    def model(self) -> P:
        """The model that all workers agree on after a round: what a checkpoint keeps. Read only.

        The same arrays as `params`, but where each worker trains one of its own around it (`SMA`,
        `EASGD`, `DiLoCo`): evaluate and save this one.
        """
        return self._training.replica.model

    @property
    def gradients(self) -> P:
        """Arrays in the structure of the parameters, to compute gradients into; always the same.

        ``step(trainer.gradients)`` copies nothing where workers share memory. They hold what was
        written last until the script writes them again. Inside the block only.
        """
        self._connected("gradients", alone=True)
        return self._training.replica.gradients

    @property
    def loss(self) -> float | None:
        """The workers' mean loss in the last step, weighted as their gradients are."""
        return self._training.progress.loss

    def ready(self, name: Any, grad: Any) -> None:
        """Give one gradient for the step to come, as soon as the backward pass has it.

        ``name``: its key in ``params``, its index in a list, or its name if they are nested. What
        was given is summed over all workers while the script computes the rest, bucket by bucket,
        from the last parameters on. Then call `step`, with those that were not given, if any. Leave
        the array as it is until that returns. Nothing else that needs all workers may stand
        between. Collective in effect, and short: it waits for the others only where workers join or
        leave before this step.
        """
        self._check_batch("ready")
        if self._training.replica.micro_batches:
            raise UsageError(
                f"worker {self.worker}: trainer.ready() came after trainer.accumulate(), in step "
                f"{self.steps}: give the gradient of the rest of the batch to trainer.step()"
            )
        self._take_piece(name, grad)

    def accumulate(self, grads: P, samples: int, loss: float | None = None) -> None:
        """Give the gradient of a part of this worker's batch: of a micro-batch. Local.

        ``grads``: as `step` takes them, the mean over ``samples`` samples. They count in the next
        step by these; it is given the gradient of the rest of the batch, or none if nothing is
        left. The arrays may be used again at once.
        """
        self._connected("accumulate()", alone=True)
        self._check_batch("accumulate")
        replica, batch = self._training.replica, self._batch
        if replica.pieces:
            raise UsageError(
                f"worker {self.worker}: trainer.accumulate() came after trainer.ready(), in step "
                f"{self.steps}: give whole gradients, or each array by itself"
            )
        parts = replica.micro_batches
        parts.add(grads, samples, self._number(loss))
        if batch is not None and parts.samples > len(batch):
            raise UsageError(
                f"worker {self.worker}: {parts.samples} samples were accumulated in step "
                f"{self.steps}, whose batch has {len(batch)}: give each of them once"
            )

    def step(self, grads: P | None = None, loss: float | None = None) -> None:
        """Average ``grads`` over all workers and apply it: one training step. Collective, blocking.

        ``grads`` has the structure, shapes and dtypes of the parameters and is the mean over this
        worker's batch; outside of `batches` every worker counts as one sample. If some were given
        to `ready`, it is a dict of the rest; if there were micro-batches (`accumulate`), it is of
        what is left of the batch. Returns with the step committed, whoever dies meanwhile; `loss`
        is then the mean over the workers.
        """
        self._connected("step()")
        self._check_batch("step")
        loss = self._number(loss)
        if self._training.replica.micro_batches:
            grads, loss = self._whole_batch(grads, loss)
        self._take_step(self._training.replica.gathered(grads), loss)

    def _number(self, loss: object) -> float | None:
        """A loss as the script gives it: a number, or an array of no dimension."""
        if loss is None:
            return None
        try:
            return float(loss)  # type: ignore[arg-type]  # whatever it is
        except (TypeError, ValueError):
            shape = getattr(loss, "shape", None)
            given = type(loss).__name__ if shape is None else f"an array of shape {shape}"
            raise UsageError(
                f"worker {self.worker}: the loss of step {self.steps} is {given}, expected a "
                "number: give the mean over the batch"
            ) from None

    @property
    def _batch(self) -> Indices | None:
        """That is being computed, in a loop over batches."""
        return self._training.batch if self._training.position.inside else None

    def _whole_batch(self, grads: P | None, loss: float | None) -> tuple[P, float | None]:
        """The gradient of all of it, and its loss. ``grads``: of what is left after micro-batches,
        if anything is."""
        parts, batch = self._training.replica.micro_batches, self._batch
        left = 0 if batch is None else len(batch) - parts.samples
        if batch is not None and left and grads is None:
            raise UsageError(
                f"worker {self.worker}: {parts.samples} samples were accumulated in step "
                f"{self.steps}, whose batch has {len(batch)}: accumulate the rest, or give its "
                "gradient to trainer.step()"
            )
        if left:
            parts.add(grads, left, loss)
        elif grads is not None:
            raise UsageError(
                f"worker {self.worker}: trainer.step() was given a gradient in step {self.steps}, "
                "of which all was accumulated: call it without"
            )
        return parts.gradient, parts.loss if left or loss is None else loss
