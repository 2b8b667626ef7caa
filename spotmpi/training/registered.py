"""What a worker trains, before and after it is connected to others: all that is registered.

Beside the replica's arrays these are plain values: how far the training has come, the learning
rate, and where the script stands in its batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from spotmpi.errors import UsageError
from spotmpi.protocol.membership import WorkerId
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
        self.loss: float | None = None
        """The workers' mean loss in the last round of steps, weighted as their gradients are."""

    def kept(self) -> Mapping[str, Any]:
        """The number, and by what the samples are ordered."""
        return {"steps": self.steps, "seed": self.seed}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """From that step."""
        if found.get("seed") != self.seed:
            raise UsageError(
                f"{where} was written with seed={found.get('seed')!r} and this run has "
                f"seed={self.seed}: samples would be used twice or never; resume with the same seed"
            )
        self.steps = int(found["steps"])

    def told(self, contributors: Sequence[WorkerId] | None) -> Any:
        """The number."""
        return self.steps + (contributors is not None)

    def take(self, told: Any) -> None:
        """As many as the others."""
        self.steps = int(told)


class Rate:
    """The learning rate that was asked for, and how it follows the number of workers."""

    def __init__(self, lr: Any, reference: int | None, follows: bool) -> None:
        """``lr``: has the rate as ``lr``, and may be given another."""
        self._lr = lr
        self.reference = reference
        """The number of workers that the rate is meant for; None until that is known."""
        self._follows = follows

    @property
    def asked(self) -> float:
        """The script's, which may change it between steps."""
        rate: float = self._lr.lr
        return rate

    def now(self, active: int, asked: float) -> float:
        """The rate that holds for a round to which so many slots contribute."""
        assert self.reference is not None
        return asked * (active / self.reference if self._follows else 1.0)

    def kept(self) -> Mapping[str, Any]:
        """What it is meant for; the rate is the script's."""
        return {"lr/reference": self.reference}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """With the script's rate, meant for as many as it was."""
        if self.reference is None:
            self.reference = int(str(found["lr/reference"]))

    def told(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Both."""
        return [self.reference, self._lr.lr]

    def take(self, told: Any) -> None:
        """The others' rate, also if the script has changed it meanwhile."""
        self.reference, self._lr.lr = int(told[0]), float(told[1])


class Training(Generic[P]):
    """One worker's, with everything registered. Local, all of it."""

    def __init__(self, replica: Replica[P], seed: int, rate: Rate, check_finite: bool) -> None:
        self.replica = replica
        self.progress = Progress(seed)
        self.rate = rate
        self.position = ScriptPosition()
        self.check_finite = check_finite
        """Refuse contributions that hold NaN or infinity."""
        self.batch: Any = None
        """The samples that the script has and has not used yet."""
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
            ("the seed", str(self.progress.seed)),
            ("the settings", str((given.trace, kept, given.min_workers))),
        ]
