"""The training loop that users call: steps that survive the loss of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from spotmpi.arrays.layout import BUCKET_MB
from spotmpi.errors import UsageError
from spotmpi.optimizers import Optimizer
from spotmpi.optimizers.numbers import whole
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD, Strategy, named
from spotmpi.training.elastic import Elastic
from spotmpi.training.registered import SCALES, Rate, Training
from spotmpi.training.replica import Replica

__all__ = ["Trainer"]

P = TypeVar("P", bound="Sequence[Any] | dict[str, Any]")


class Trainer(Elastic[P]):
    """Trains one model on all workers of the job, whoever of them is revoked.

    ``params``: list or dict of arrays; those of the first worker count. ``strategy``: how workers
    synchronise, `SSGD` if none is given; ``--strategy`` replaces it. ``optimizer.lr`` is meant
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
        seed: int = 0,
        scale_lr: str = "linear",
        lr_reference: int | None = None,
        lr_warmup: int = 0,
        check_finite: bool = False,
        bucket_mb: float = BUCKET_MB,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"optimizer must be one of spotmpi.optimizers, not {optimizer!r}")
        if (asked := Settings.from_environ().strategy) is not None:
            strategy = named(asked)
        if strategy is None:
            strategy = SSGD()
        if not isinstance(strategy, Strategy):
            raise UsageError(f"strategy must be one of spotmpi.strategies, not {strategy!r}")
        if lr_reference is not None and lr_reference < 1:
            raise UsageError(f"lr_reference is a number of workers, at least 1, not {lr_reference}")
        if not isinstance(scale_lr, str) or scale_lr not in SCALES:
            names = ", ".join(f'"{name}"' for name in SCALES)
            raise UsageError(f"scale_lr is {scale_lr!r}, expected one of {names}")
        whole("lr_warmup", lr_warmup, 0)
        if not bucket_mb > 0:
            raise UsageError(f"bucket_mb is a number of megabytes, more than 0, not {bucket_mb}")
        self.optimizer = optimizer
        self.strategy = strategy
        replica = Replica(params, optimizer, strategy, bucket_mb=bucket_mb)
        rate = Rate(optimizer, lr_reference, scale_lr, lr_warmup)
        super().__init__(Training(replica, seed, rate, check_finite))

    @property
    def params(self) -> P:
        """The live parameters, in the structure they were given in. Read them; do not write."""
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

        ``name``: its key in ``params``, or its index in a list. What was given is summed over all
        workers while the script computes the rest, bucket by bucket, from the last parameters on.
        Then call `step`, with those that were not given, if any. Leave the array as it is until
        that returns. Nothing else that needs all workers may stand between. Collective in effect,
        and short: it waits for the others only where workers join or leave before this step.
        """
        self._check_batch("ready")
        self._take_piece(name, grad)

    def step(self, grads: P | None = None, loss: float | None = None) -> None:
        """Average ``grads`` over all workers and apply it: one training step. Collective, blocking.

        ``grads`` has the structure, shapes and dtypes of the parameters and is the mean over this
        worker's batch; outside of `batches` every worker counts as one sample. If some were given
        to `ready`, it is a dict of the rest. Returns with the step committed, whoever dies
        meanwhile; `loss` is then the mean over the workers.
        """
        self._connected("step()")
        self._check_batch("step")
        self._take_step(self._training.replica.gathered(grads), loss)
