"""`Trainer`: trains one model on all workers, in steps that survive the loss of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from spotmpi import policies
from spotmpi.arrays.layout import BUCKET_MB
from spotmpi.errors import UsageError
from spotmpi.optimizers import Optimizer
from spotmpi.optimizers.numbers import whole
from spotmpi.policies import Policy
from spotmpi.protocol.sampler import Indices
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD, Strategy, named
from spotmpi.training.elastic import Elastic
from spotmpi.training.model import Model
from spotmpi.training.state.rate import SCALES, Rate
from spotmpi.training.state.training_state import TrainingState

__all__ = ["Trainer"]

P = TypeVar("P")


class Trainer(Elastic[P]):
    """Trains one model on all workers of the job, and goes on if any of them are lost.

    ``params``: list or dict of arrays, or nested lists, dicts and dataclasses of arrays, which then
        have names such as "encoder/w1". All workers begin with those of the first worker.
    ``optimizer``: one of `spotmpi.optimizers`. Its ``lr`` is meant for the number of workers at the
        start, or for ``lr_reference`` workers.
    ``strategy``: how workers synchronise; `SSGD` if not given. ``--strategy`` and ``--policy``
        replace it.
    ``strategies``: other strategies that workers may change to; see `strategy`.
    ``policy``: decides on such changes; one of `spotmpi.policies`. ``--policy`` replaces it, and
        ``--strategy`` turns it off.
    ``seed``: decides the order of samples.
    ``scale_lr``: how the learning rate follows the number of workers in each step's average:
        "linear", "sqrt" (with its square root) or "none".
    ``lr_warmup``: number of steps in which the learning rate comes to a new value.
    ``check_finite``: refuse gradients with NaN or infinity.
    ``bucket_mb``: MB of gradients summed at a time, about, from the last ones on; see `ready`.

    A context manager: entering the block starts MPI, unless the script runs alone. Leaving it ends
    the protection; the code after it is ordinary code. Both are collective.
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
        known, policy, insists = _chosen(strategy, strategies, policy)
        if lr_reference is not None and lr_reference < 1:
            raise UsageError(f"lr_reference is a number of workers, at least 1, not {lr_reference}")
        if not isinstance(scale_lr, str) or scale_lr not in SCALES:
            names = ", ".join(f'"{name}"' for name in SCALES)
            raise UsageError(f"scale_lr is {scale_lr!r}, expected one of {names}")
        whole("lr_warmup", lr_warmup, 0)
        if not bucket_mb > 0:
            raise UsageError(f"bucket_mb is a number of megabytes, more than 0, not {bucket_mb}")
        self.optimizer = optimizer
        fusable = any(one.fusable for one in known)
        model = Model(params, optimizer, bucket_mb=bucket_mb, fusable=fusable)
        rate = Rate(optimizer, lr_reference, scale_lr, lr_warmup)
        super().__init__(TrainingState(model, known, seed, rate, check_finite, policy))
        if insists:  # a checkpoint may have one that the policy decided for
            self._training.choice.wish = 0

    @property
    def strategy(self) -> Strategy:
        """The strategy that workers follow now.

        Set it to one of ``strategies`` to change it. Setting is local and returns at once. All
        workers change after the same round, as soon as the leader has asked for it and no newcomer
        is learning. Until then the property has its old value. All workers go on with the model
        that they have agreed on. The optimizer's memory begins again if each worker had its own (as
        with `LocalSGD` or `ADPSGD`) and all are to have the same (as with `SSGD`).
        """
        return self._training.sync.strategy

    @strategy.setter
    def strategy(self, wanted: Strategy) -> None:
        choice = self._training.choice
        try:
            choice.ask(wanted)
        except ValueError:
            raise UsageError(
                f"worker {self.worker}, step {self.steps}: the training may not change to "
                f"{wanted}: name it at the start, in Trainer(strategies=[...]); it knows "
                f"{', '.join(map(str, choice.strategies))}"
            ) from None

    @property
    def params(self) -> P:
        """The live parameters, in the structure they were given in. Read them; do not write.

        Parameters of half precision are rounded from the trained ones after each step.
        """
        return self._training.model.params

    @property
    def model(self) -> P:
        """The model that all workers agree on after a round. Checkpoints keep it. Read only.

        It is the same arrays as `params`, unless each worker trains its own model around this one
        (as with `SMA`, `EASGD` or `DiLoCo`). Evaluate and save this one.
        """
        return self._training.model.model

    @property
    def gradients(self) -> P:
        """Arrays to compute gradients into, always the same, in the structure of the parameters.

        ``step(trainer.gradients)`` copies nothing where workers share memory. Write all of them for
        each step: a round may use their memory. Inside the block only.
        """
        self._connected("gradients", alone=True)
        return self._training.gradient.arrays(self._training.sync.memory.shared)

    @property
    def loss(self) -> float | None:
        """Mean loss of all workers in the last step, weighted as their gradients are."""
        return self._training.progress.loss

    def ready(self, name: Any, grad: Any) -> None:
        """Give one gradient of the next step as soon as the backward pass has it.

        ``name`` is its key in ``params``, its index in a list, or its name if ``params`` are
        nested. The gradients given so far are summed over all workers while the script computes the
        others, bucket by bucket, from the last parameters on. Then call `step` with the gradients
        that were not given, if any. Do not change the array until `step` returns. Make no other
        call in between that needs all workers. Collective in effect, and short: it waits for the
        others only if workers join or leave before this step.
        """
        self._check_batch("ready")
        if self._training.gradient.micro_batches:
            raise UsageError(
                f"worker {self.worker}: trainer.ready() came after trainer.accumulate(), in step "
                f"{self.steps}: give the gradient of the rest of the batch to trainer.step()"
            )
        participant = self._connected("ready()")
        self._participant = self._run(participant.ready(name, grad))

    def accumulate(self, grads: P, samples: int, loss: float | None = None) -> None:
        """Give the gradient of a micro-batch, which is a part of this worker's batch. Local.

        ``grads`` has the form that `step` takes, and is the mean over ``samples`` samples. It
        counts in the next step by these samples. Give that step the gradient of the rest of the
        batch, or none if nothing is left. The script may use the arrays again at once.
        """
        self._connected("accumulate()", alone=True)
        self._check_batch("accumulate")
        gradient, batch = self._training.gradient, self._batch
        if gradient.pieces:
            raise UsageError(
                f"worker {self.worker}: trainer.accumulate() came after trainer.ready(), in step "
                f"{self.steps}: give whole gradients, or each array by itself"
            )
        parts = gradient.micro_batches
        parts.add(grads, samples, self._number(loss))
        if batch is not None and parts.samples > len(batch):
            raise UsageError(
                f"worker {self.worker}: {parts.samples} samples were accumulated in step "
                f"{self.steps}, whose batch has {len(batch)}: give each of them once"
            )

    def step(self, grads: P | None = None, loss: float | None = None) -> None:
        """Average ``grads`` over all workers and apply the average: one step. Collective, blocking.

        ``grads`` has the structure, shapes and dtypes of the parameters, and is the mean over this
        worker's batch. Outside of `batches` every worker counts as one sample. After `ready`, give
        a dict of the remaining gradients. After `accumulate`, give the gradient of the rest of the
        batch. Give none if nothing remains. Returns when the step is committed, even if workers die
        meanwhile. The property `loss` is then the mean over the workers.
        """
        participant = self._connected("step()")
        self._check_batch("step")
        loss = self._number(loss)
        if self._training.gradient.micro_batches:
            grads, loss = self._whole_batch(grads, loss)
        training = self._training
        whole = training.gradient.gathered(grads, training.sync.give)
        self._participant = self._run(participant.step(whole, loss))

    def _number(self, loss: object) -> float | None:
        """Return a loss as a float. The script gives a number or an array without dimensions."""
        if loss is None:
            return None
        try:
            return float(loss)  # type: ignore[arg-type]  # of any type
        except (TypeError, ValueError):
            shape = getattr(loss, "shape", None)
            given = type(loss).__name__ if shape is None else f"an array of shape {shape}"
            raise UsageError(
                f"worker {self.worker}: the loss of step {self.steps} is {given}, expected a "
                "number: give the mean over the batch"
            ) from None

    @property
    def _batch(self) -> Indices | None:
        """The batch that is being computed; None outside of a loop over batches."""
        return self._training.batch if self._training.position.inside else None

    def _whole_batch(self, grads: P | None, loss: float | None) -> tuple[P, float | None]:
        """Return the gradient and the loss of the whole batch. ``grads``: the gradient of the
        samples that were not accumulated, if there are any."""
        parts, batch = self._training.gradient.micro_batches, self._batch
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


def _chosen(
    strategy: Strategy | None, strategies: Sequence[Strategy], policy: Policy | None
) -> tuple[list[Strategy], Policy | None, bool]:
    """Return the strategies of a training, the first one first, and the policy that chooses.
    ``--policy`` replaces the policy, and ``--strategy`` both; then the third value is True if there
    was a policy. Raises UsageError."""
    if not isinstance(policy, Policy | None):
        raise UsageError(f"policy must be one of spotmpi.policies, not {policy!r}")
    if isinstance(strategies, Strategy):
        raise UsageError("strategies is one strategy, expected a list, as [LocalSGD()]")
    given = Settings.from_environ()
    if given.policy is not None and given.strategy is not None:
        raise UsageError("SPOTMPI_POLICY and SPOTMPI_STRATEGY are both set: set one of them")
    if strategies and (given.policy or given.strategy):  # the script may want to go on with its own
        strategies = [*strategies, SSGD() if strategy is None else strategy]
    if given.policy is not None:
        strategy, policy = None, policies.named(given.policy)
    if policy is not None:
        if not (decides := list(policy.strategies)):
            raise UsageError(f"{policy} has no strategies: name all that it may decide for")
        strategies = [*strategies, *decides]
        strategy = strategy or decides[0]
    insists = False
    if (asked := given.strategy) is not None:
        insists = policy is not None
        strategy, policy = named(asked), None
    if strategy is None:
        strategy = SSGD()
    known: dict[str, Strategy] = {}
    for one in (strategy, *strategies):
        if not isinstance(one, Strategy):
            raise UsageError(f"strategy must be one of spotmpi.strategies, not {one!r}")
        known.setdefault(str(one), one)
    return [*known.values()], policy, insists
