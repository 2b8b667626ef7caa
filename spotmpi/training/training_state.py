"""What a worker trains, before and after it is connected to others: all that is registered.

Beside the replica's arrays these are plain values: how far the training has come, the learning
rate, and where the script stands in its batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from spotmpi.errors import UsageError
from spotmpi.launcher_channel import Measured
from spotmpi.optimizers.schedules import pack, rate_at, unpack
from spotmpi.policies import Policy
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.settings import Settings
from spotmpi.strategies import Strategy
from spotmpi.training.finite import Finite
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
        """The number, by what the samples are ordered, and the last loss, if there is one."""
        loss = {} if self.loss is None else {"loss": float(self.loss)}
        return {"steps": self.steps, "rounds": self.rounds, "seed": self.seed, **loss}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """From that step."""
        if found.get("seed") != self.seed:
            raise UsageError(
                f"{where} was written with seed={found.get('seed')!r} and this run has "
                f"seed={self.seed}: samples would be used twice or never; resume with the same seed"
            )
        self.steps, self.rounds = int(found["steps"]), int(found.get("rounds", 0))
        self.loss = float(found["loss"]) if "loss" in found else None

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Both numbers; and the loss, of which the round that is drawn tells a new one."""
        after = contributors is not None
        return [self.steps + after * self.adds, self.rounds + after, None if after else self.loss]

    def restore(self, told: Any) -> None:
        """As many as the others."""
        *numbers, loss = told
        self.steps, self.rounds = map(int, numbers)
        if loss is not None:
            self.loss = float(loss)


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

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """All of that, and the rate."""
        factor = self._factor if contributors is None else self._drawn
        return [self.reference, pack(self._lr.lr), factor]

    def restore(self, told: Any) -> None:
        """The others' rate, also if the script has changed it meanwhile."""
        reference, lr, factor = told
        self.reference = int(reference)
        self._factor = None if factor is None else Factor(*factor)
        if lr is not None:
            self._lr.lr = unpack(lr)


_MOST = (1 << 63) - 1
"""Steps that the launcher can be told of."""


class Meter:
    """How long this worker's script has computed for its steps since the last survey, and what the
    launcher is told of all of them."""

    def __init__(self) -> None:
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._since: float | None = None
        self._waits_since: float | None = None
        self._used = 0
        self._computed = self._waited = self._stalled = self._stalling = 0.0

    def computes(self, now: float) -> None:
        """The script goes on."""
        if self._waits_since is not None:
            waited = now - self._waits_since
            self._waited += waited
            self._stalled += min(self._stalling, waited)
        self._since, self._waits_since, self._stalling = now, None, 0.0

    def waits(self, now: float) -> None:
        """It has come to a step, or to something else that is not its own."""
        if self._since is not None:
            self._seconds += now - self._since
            self._computed += now - self._since
        self._since, self._waits_since = None, now

    def stalls(self, seconds: float) -> None:
        """So much of the wait that it is in was for another membership."""
        self._stalling += seconds

    def used(self, samples: int) -> None:
        """Steps are committed that are of so many samples, of all workers."""
        self._used += samples

    def measured(self, whole: int | None) -> Measured:
        """Of all that is over. ``whole``: steps in all, if that is known."""
        return Measured(whole or 0, self._used, self._computed, self._waited, self._stalled)

    def took(self, samples: int) -> None:
        """A step with so many samples."""
        self._steps += 1
        self._samples += samples

    def pace(self, me: WorkerId) -> Pace:
        """What there is to say."""
        return Pace(me, self._steps, self._steps, self._samples, self._seconds)

    def begin_anew(self) -> None:
        """It was said."""
        self._steps = self._samples = 0
        self._seconds = 0.0


class Followed:
    """The strategy that is followed."""

    def __init__(self, training: TrainingState[Any]) -> None:
        self._training = training

    def kept(self) -> Mapping[str, Any]:
        """In words."""
        return {"followed": self._training.replica.strategy.called}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """With that one, if there is a choice."""
        known = [one.called for one in self._training.replica.strategies]
        if found.get("followed") in known:
            self._training.follow(known.index(str(found["followed"])))

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Its number."""
        return self._training.strategy

    def restore(self, told: Any) -> None:
        """With the one that the others follow."""
        self._training.follow(int(told))


class TrainingState(Generic[P]):
    """One worker's, with everything registered. Local, all of it."""

    def __init__(
        self,
        replica: Replica[P],
        seed: int,
        rate: Rate,
        check_finite: bool,
        policy: Policy | None = None,
    ) -> None:
        self.replica = replica
        replica.surveyed = policy is not None
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
        self.wish: int | None = None
        """The number of the strategy that this worker's script, or its policy, wants to go on with
        ..."""
        self.why: Mapping[str, Any] = {}
        """... and what it was decided by, for the trace."""
        self.policy = policy
        """Says what to go on with, if there is one."""
        self.meter = Meter()
        self.finite = Finite(replica.registry, "params" if replica.moves_itself else "state")
        """Whether the model is."""
        self._counted: tuple[int, int] | None = None
        """Rounds done and workers, when it was counted last ..."""
        self._whole: int | None = None
        """... how many steps there are in all."""
        self.registry = replica.registry
        self.registry.keep("strategy", Followed(self))
        self.registry.keep("progress", self.progress)
        self.registry.keep("rate", rate)
        self.registry.keep("position", self.position)
        self.registry.keep("finite", self.finite)

    @property
    def tells(self) -> bool:
        """Whether workers tell in tables how they do, with this strategy or one that they may
        change to."""
        return self.policy is not None or any(one.paced for one in self.replica.strategies)

    @property
    def strategy(self) -> int:
        """The number of the one that is followed."""
        return self.replica.strategies.index(self.replica.strategy)

    def number_of(self, strategy: Strategy) -> int:
        """Of one of those that may be followed. Raises ValueError for another."""
        return [*map(str, self.replica.strategies)].index(str(strategy))

    def follow(self, number: int) -> None:
        """Go on with the strategy of this number, where all agree on a model."""
        if number == self.strategy:
            return
        self.replica.switch(self.replica.strategies[number])
        self.paces = ()

    def measured(self, workers: Collection[WorkerId]) -> Measured:
        """What the launcher is to know, where these workers take the steps that are to come."""
        now = self.progress.rounds, len(workers)
        if now != self._counted:  # in the middle of a round's steps it would be too many
            left = self.position.left(len(workers))
            self._counted = now
            self._whole = None if left is None else min(self.progress.steps + left, _MOST)
        return self.meter.measured(self._whole)

    @property
    def what(self) -> str:
        """The strategies, and the optimizer if there is one."""
        optimizer, strategies = self.replica.optimizer, map(str, self.replica.strategies)
        known = " or ".join(strategies) + ("" if optimizer is None else f" {type(optimizer)}")
        return known + ("" if self.policy is None else f" {self.policy}")

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
