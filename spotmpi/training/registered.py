"""What a worker trains, before and after it is connected to others: all that is registered.

Beside the replica's arrays these are plain values: how far the training has come, the learning
rate, and where the script stands in its batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from spotmpi.errors import UsageError
from spotmpi.optimizers.schedules import pack, rate_at, unpack
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.settings import Settings
from spotmpi.training.replica import Replica
from spotmpi.training.script_position import ScriptPosition

P = TypeVar("P")

LIBRARY = "the library that their arrays are of"
"""The fact in which a worker differs that came without a GPU."""


class Progress:
    """How far the training has come."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps = 0
        """Steps done; the number of the step to come."""
        self.rounds = 0
        """Rounds of steps done."""
        self.adds = 1
        """Steps that count with the next of these rounds; 0 if it has none that is not done."""
        self.loss: float | None = None
        """The workers' mean loss in the last round of steps, weighted as their gradients are."""

    def kept(self) -> Mapping[str, Any]:
        """The number, and by what the samples are ordered."""
        return {"steps": self.steps, "rounds": self.rounds, "seed": self.seed}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """From that step."""
        if found.get("seed") != self.seed:
            raise UsageError(
                f"{where} was written with seed={found.get('seed')!r} and this run has "
                f"seed={self.seed}: samples would be used twice or never; resume with the same seed"
            )
        self.steps, self.rounds = int(found["steps"]), int(found.get("rounds", 0))

    def told(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Both numbers."""
        after = contributors is not None
        return [self.steps + after * self.adds, self.rounds + after]

    def take(self, told: Any) -> None:
        """As many as the others."""
        self.steps, self.rounds = map(int, told)


SCALES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda share: share,
    "sqrt": math.sqrt,
    "none": lambda _share: 1.0,
}
"""How a learning rate may follow the workers that there are, as a share of those it is for."""


class Factor(NamedTuple):
    """What the rate that was asked for is multiplied with, on its way from one value to another."""

    value: float
    start: float
    end: float
    taken: int
    """Steps since ``end`` became the aim."""

    def towards(self, end: float, steps: int, warmup: int) -> Factor:
        """After so many steps more; all of the way takes ``warmup`` of them."""
        start, taken = (self.start, self.taken) if end == self.end else (self.value, 0)
        taken = min(taken + steps, warmup)
        value = end if taken == warmup else start + (end - start) * taken / warmup
        return Factor(value, start, end, taken)


class Rate:
    """The learning rate that was asked for, and how it follows the number of workers."""

    def __init__(
        self, lr: Any, reference: int | None = None, scale: str = "linear", warmup: int = 0
    ) -> None:
        """``lr``: has the rate as ``lr``, and may be given another. ``scale``: one of `SCALES`.
        ``warmup``: steps in which it comes to a new value when there are more workers, or fewer."""
        self._lr = lr
        self.reference = reference
        """The number of workers that the rate is meant for; None until that is known."""
        self._scale = scale
        self._warmup = warmup
        self._factor: Factor | None = None
        """Of the last step; None before the first."""
        self._drawn: Factor | None = None
        """Of the round to come, as it is known."""
        self._progress = Progress(0)

    def follow(self, progress: Progress) -> None:
        """The steps of a schedule are these."""
        self._progress = progress

    @property
    def how(self) -> str:
        """How it follows the workers: equal on two that do the same."""
        return f"scale_lr={self._scale!r}, lr_warmup={self._warmup}"

    @property
    def asked(self) -> float:
        """For the step to come: the script's, which may change it between steps."""
        return rate_at(self._lr.lr, self._progress.steps)

    def now(self, active: int, asked: float, steps: int = 1) -> float:
        """The rate that holds for a round of so many steps, to which so many slots contribute."""
        assert self.reference is not None
        end = SCALES[self._scale](active / self.reference)
        self._drawn = Factor(end, end, end, self._warmup)
        if self._factor is not None:
            self._drawn = self._factor.towards(end, steps, self._warmup)
        return asked * self._drawn.value

    def taken(self) -> None:
        """The round that `now` was asked of has moved the parameters."""
        self._factor = self._drawn

    def kept(self) -> Mapping[str, Any]:
        """What it is meant for, and where it is on its way; the rate is the script's."""
        factor = {} if self._factor is None else self._factor._asdict()
        return {
            "lr/reference": self.reference,
            **{f"lr/factor/{name}": value for name, value in factor.items()},
        }

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """With the script's rate, meant for as many as it was."""
        if self.reference is None:
            self.reference = int(str(found["lr/reference"]))
        if all(f"lr/factor/{name}" in found for name in Factor._fields):
            self._factor = Factor(*(found[f"lr/factor/{name}"] for name in Factor._fields))

    def told(self, contributors: Sequence[WorkerId] | None) -> Any:
        """All of that, and the rate."""
        factor = self._factor if contributors is None else self._drawn
        return [self.reference, pack(self._lr.lr), factor]

    def take(self, told: Any) -> None:
        """The others' rate, also if the script has changed it meanwhile."""
        reference, lr, factor = told
        self.reference = int(reference)
        self._factor = None if factor is None else Factor(*factor)
        if lr is not None:
            self._lr.lr = unpack(lr)


class Training(Generic[P]):
    """One worker's, with everything registered. Local, all of it."""

    def __init__(self, replica: Replica[P], seed: int, rate: Rate, check_finite: bool) -> None:
        self.replica = replica
        self.progress = Progress(seed)
        self.rate = rate
        rate.follow(self.progress)
        replica.follow_rounds(self.progress)
        self.position = ScriptPosition()
        self.check_finite = check_finite
        """Refuse contributions that hold NaN or infinity."""
        self.batch: Any = None
        """The samples that the script has and has not used yet."""
        self.paces: Sequence[Pace] = ()
        """What the last round of steps has told of all workers, if they are paced."""
        self.registry = replica.registry
        self.registry.keep("progress", self.progress)
        self.registry.keep("rate", rate)
        self.registry.keep("position", self.position)

    @property
    def what(self) -> str:
        """The strategy, and the optimizer if there is one."""
        optimizer = self.replica.optimizer
        return str(self.replica.strategy) + ("" if optimizer is None else f" {type(optimizer)}")

    def facts(self, given: Settings) -> list[tuple[str, str]]:
        """What must be the same on all workers, and its value here."""
        # Not the folder's name: another host may have another one for it.
        kept = given.checkpoint is not None, given.checkpoint_every
        return [
            (LIBRARY, self.replica.library),
            ("bucket_mb", str(self.replica.bucket_mb)),
            ("the names, shapes or dtypes of the parameters", self.replica.signature),
            ("the strategy or the optimizer", self.what),
            ("how the learning rate follows the workers", self.rate.how),
            ("the seed", str(self.progress.seed)),
            ("the settings", str((given.trace, kept, given.min_workers))),
        ]
