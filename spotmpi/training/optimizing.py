"""`Optimizing`, the base of trainings in which an optimizer moves the parameters in rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from spotmpi import policies
from spotmpi.arrays.layout import BUCKET_MB
from spotmpi.errors import UsageError
from spotmpi.optimizers import Optimizer
from spotmpi.optimizers.numbers import whole
from spotmpi.policies import Policy
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD, Strategy, named
from spotmpi.training.elastic import Elastic
from spotmpi.training.model import Model
from spotmpi.training.state.rate import SCALES, Rate
from spotmpi.training.state.training_state import TrainingState

__all__ = ["Optimizing"]

P = TypeVar("P")


class Optimizing(Elastic[P]):
    """A training whose parameters an optimizer moves, by a strategy that may change meanwhile.

    `Trainer` says what the arguments are.
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
        self.optimizer = optimizer
        known, policy, insists = _chosen(strategy, strategies, policy)
        if lr_reference is not None and lr_reference < 1:
            raise UsageError(f"lr_reference is a number of workers, at least 1, not {lr_reference}")
        if not isinstance(scale_lr, str) or scale_lr not in SCALES:
            names = ", ".join(f'"{name}"' for name in SCALES)
            raise UsageError(f"scale_lr is {scale_lr!r}, expected one of {names}")
        whole("lr_warmup", lr_warmup, 0)
        if not bucket_mb > 0:
            raise UsageError(f"bucket_mb is a number of megabytes, more than 0, not {bucket_mb}")
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
    def loss(self) -> float | None:
        """Mean loss of all workers in the last step, weighted as their gradients are."""
        return self._training.progress.loss

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
