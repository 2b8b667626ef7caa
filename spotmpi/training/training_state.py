"""The state of one worker's training, from before it is connected to others. All is registered.

Beside the model's arrays these are plain values: how far the training has come, the learning
rate, and where the script stands in its batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from spotmpi.errors import UsageError
from spotmpi.fabric import Arena
from spotmpi.launcher_channel import Measured
from spotmpi.optimizers.schedules import pack, rate_at, unpack
from spotmpi.policies import Policy
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.rounds.handshake import LIBRARY
from spotmpi.settings import Settings
from spotmpi.strategies import Strategy
from spotmpi.training.finite import Finite
from spotmpi.training.gradients.gradient_lengths import GradientLengths
from spotmpi.training.gradients.script_gradient import ScriptGradient
from spotmpi.training.model import Model
from spotmpi.training.script.script_position import ScriptPosition
from spotmpi.training.step_memory import StepArenas
from spotmpi.training.synchroniser import Synchroniser

P = TypeVar("P")


class Progress:
    """How far the training has come: steps, rounds of steps, the last loss."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps = 0
        """Steps done, which is also the number of the next step."""
        self.rounds = 0
        """Rounds of steps committed so far."""
        self.adds = 1
        """Steps that the next round of steps adds to `steps`; 0 if `steps` has all of them."""
        self.loss: float | None = None
        """Mean loss of all workers in the last round of steps, weighted as their gradients are."""

    def kept(self) -> Mapping[str, Any]:
        """Return the steps, the rounds, the seed, and the last loss if there is one."""
        loss = {} if self.loss is None else {"loss": float(self.loss)}
        return {"steps": self.steps, "rounds": self.rounds, "seed": self.seed, **loss}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on from a checkpoint's step. Raises UsageError if its seed is another one."""
        if found.get("seed") != self.seed:
            raise UsageError(
                f"{where} was written with seed={found.get('seed')!r} and this run has "
                f"seed={self.seed}: samples would be used twice or never; resume with the same seed"
            )
        self.steps, self.rounds = int(found["steps"]), int(found.get("rounds", 0))
        self.loss = float(found["loss"]) if "loss" in found else None

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return steps, rounds, loss; with ``contributors``, as after the drawn round: no loss."""
        after = contributors is not None
        return [self.steps + after * self.adds, self.rounds + after, None if after else self.loss]

    def restore(self, told: Any) -> None:
        """Take the other workers' numbers."""
        *numbers, loss = told
        self.steps, self.rounds = map(int, numbers)
        if loss is not None:
            self.loss = float(loss)


SCALES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda share: share,
    "sqrt": math.sqrt,
    "none": lambda _share: 1.0,
}
"""Factor of the learning rate, by the share that the present workers are of the reference."""


class Factor(NamedTuple):
    """Factor of the learning rate that the script wants, on its way from one value to another."""

    value: float
    start: float
    end: float
    taken: int
    """Steps since ``end`` became the aim."""

    def towards(self, end: float, steps: int, warmup: int) -> Factor:
        """Return the factor after ``steps`` more steps. All of the way takes ``warmup`` steps."""
        start, taken = (self.start, self.taken) if end == self.end else (self.value, 0)
        taken = min(taken + steps, warmup)
        value = end if taken == warmup else start + (end - start) * taken / warmup
        return Factor(value, start, end, taken)


class Rate:
    """The learning rate that the script wants, and how it follows the number of workers."""

    def __init__(
        self, lr: Any, reference: int | None = None, scale: str = "linear", warmup: int = 0
    ) -> None:
        """``lr``: has the rate as ``lr``, which may be set. ``scale``: one of `SCALES`. ``warmup``:
        steps in which the rate comes to a new value when the number of workers changes."""
        self._lr = lr
        self.reference = reference
        """Number of workers that the rate is meant for; None until it is known."""
        self._scale = scale
        self._warmup = warmup
        self._factor: Factor | None = None
        """Factor of the last step; None before the first."""
        self._drawn: Factor | None = None
        """Factor of the next round, as `now` computed it."""
        self._progress = Progress(0)

    def follow(self, progress: Progress) -> None:
        """Take the number of the step, for schedules, from ``progress``."""
        self._progress = progress

    @property
    def how(self) -> str:
        """How the rate follows the workers, as text: equal on workers that do the same."""
        return f"scale_lr={self._scale!r}, lr_warmup={self._warmup}"

    @property
    def asked(self) -> float:
        """Rate that the script wants for the next step. The script may change it between steps."""
        return rate_at(self._lr.lr, self._progress.steps)

    def now(self, active: int, asked: float, steps: int = 1) -> float:
        """Return the rate of a round of ``steps`` steps, to which ``active`` slots contribute."""
        assert self.reference is not None
        end = SCALES[self._scale](active / self.reference)
        self._drawn = Factor(end, end, end, self._warmup)
        if self._factor is not None:
            self._drawn = self._factor.towards(end, steps, self._warmup)
        return asked * self._drawn.value

    def taken(self) -> None:
        """Keep the factor that `now` computed: its round has moved the parameters."""
        self._factor = self._drawn

    def kept(self) -> Mapping[str, Any]:
        """Return the reference and the factor. The rate itself is the script's."""
        factor = {} if self._factor is None else self._factor._asdict()
        return {
            "lr/reference": self.reference,
            **{f"lr/factor/{name}": value for name, value in factor.items()},
        }

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on with a checkpoint's factor, and its reference unless the script gives one."""
        if self.reference is None:
            self.reference = int(str(found["lr/reference"]))
        if all(f"lr/factor/{name}" in found for name in Factor._fields):
            self._factor = Factor(*(found[f"lr/factor/{name}"] for name in Factor._fields))

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return the reference, the rate and the factor."""
        factor = self._factor if contributors is None else self._drawn
        return [self.reference, pack(self._lr.lr), factor]

    def restore(self, told: Any) -> None:
        """Take the other workers' rate, even if the script has changed its own meanwhile."""
        reference, lr, factor = told
        self.reference = int(reference)
        self._factor = None if factor is None else Factor(*factor)
        if lr is not None:
            self._lr.lr = unpack(lr)


_MOST = (1 << 63) - 1
"""Largest number of steps that the launcher can be told."""


class Meter:
    """Measures how long this worker's script computes and waits.

    `pace` covers the time since the last survey; `measured` covers all, for the launcher.
    """

    def __init__(self) -> None:
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._since: float | None = None
        self._waits_since: float | None = None
        self._used = 0
        self._computed = self._waited = self._stalled = self._stalling = 0.0

    def computes(self, now: float) -> None:
        """Begin to count computing: the script goes on."""
        if self._waits_since is not None:
            waited = now - self._waits_since
            self._waited += waited
            self._stalled += min(self._stalling, waited)
        self._since, self._waits_since, self._stalling = now, None, 0.0

    def waits(self, now: float) -> None:
        """Begin to count waiting: the script has come to a step, or to another call to spotmpi."""
        if self._since is not None:
            self._seconds += now - self._since
            self._computed += now - self._since
        self._since, self._waits_since = None, now

    def stalls(self, seconds: float) -> None:
        """Count ``seconds`` of the present wait as spent on a change of the membership."""
        self._stalling += seconds

    def used(self, samples: int) -> None:
        """Count committed samples, of all workers."""
        self._used += samples

    def measured(self, whole: int | None) -> Measured:
        """Return the measures of all that is over. ``whole``: steps of the training, if known."""
        return Measured(whole or 0, self._used, self._computed, self._waited, self._stalled)

    def took(self, samples: int) -> None:
        """Count a step of this worker with this number of samples."""
        self._steps += 1
        self._samples += samples

    def pace(self, me: WorkerId) -> Pace:
        """Return this worker's pace since the last survey."""
        return Pace(me, self._steps, self._steps, self._samples, self._seconds)

    def reset(self) -> None:
        """Begin again to measure the pace."""
        self._steps = self._samples = 0
        self._seconds = 0.0


class Followed:
    """Keeps the strategy that workers follow."""

    def __init__(self, training: TrainingState[Any]) -> None:
        self._training = training

    def kept(self) -> Mapping[str, Any]:
        """Return the strategy's name."""
        return {"followed": self._training.sync.strategy.called}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Follow the checkpoint's strategy, if the script has it."""
        known = [one.called for one in self._training.strategies]
        if found.get("followed") in known:
            self._training.follow(known.index(str(found["followed"])))

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return the strategy's number."""
        return self._training.number

    def restore(self, told: Any) -> None:
        """Follow the strategy that the other workers follow."""
        self._training.follow(int(told))


class TrainingState(Generic[P]):
    """All that one worker trains, registered. Local, all of it."""

    def __init__(
        self,
        model: Model[P],
        strategies: Sequence[Strategy],
        seed: int,
        rate: Rate,
        check_finite: bool,
        policy: Policy | None = None,
    ) -> None:
        """``strategies``: the first one, and those to which the training may change."""
        self.model = model
        self.strategies = strategies
        self.progress = Progress(seed)
        self.rate = rate
        rate.follow(self.progress)
        self.position = ScriptPosition()
        self.check_finite = check_finite
        """True if contributions with NaN or infinity are refused."""
        self.joined = False
        """True if this worker has joined after the start."""
        self.batch: Any = None
        """Samples that the script has been given and has not used yet."""
        self.paces: Sequence[Pace] = ()
        """Paces of all workers in the last round of steps, if the strategy is asynchronous."""
        self.wish: int | None = None
        """Number of the strategy that this worker's script or policy wants, if any."""
        self.why: Mapping[str, Any] = {}
        """What the policy's wish was decided by, for the trace."""
        self.meter = Meter()
        self.policy = policy
        """Decides which strategy to follow, if there is one."""
        self.gradient = ScriptGradient[P](
            model.brought, "grads" if model.moves_itself else "arrays"
        )
        """The gradient of the next step."""
        self._lengths = GradientLengths()
        self._arenas: StepArenas | None = None
        self.sync = self._synchroniser(strategies[0])
        """The strategy at work."""
        self.finite = Finite(model.registry, "params" if model.moves_itself else "state")
        """Watches whether the model is finite."""
        self._counted: tuple[int, int] | None = None
        """Rounds and workers at the time when `_whole` was computed."""
        self._whole: int | None = None
        """Steps of the training in all; None if not known."""
        self.registry = model.registry
        self.registry.keep("strategy", Followed(self))
        self.registry.keep("progress", self.progress)
        self.registry.keep("rate", rate)
        self.registry.keep("position", self.position)
        self.registry.keep("finite", self.finite)

    @property
    def tells(self) -> bool:
        """True if rounds may carry tables: with a policy, or if any strategy is asynchronous."""
        return self.policy is not None or any(one.asynchronous for one in self.strategies)

    @property
    def number(self) -> int:
        """Number of the strategy that workers follow."""
        return self.strategies.index(self.sync.strategy)

    def number_of(self, strategy: Strategy) -> int:
        """Return the number of a strategy. Raises ValueError if it may not be followed."""
        return [*map(str, self.strategies)].index(str(strategy))

    def follow(self, number: int) -> None:
        """Follow the strategy of this number. At this point all workers must agree on a model.

        All train from that model. Each worker keeps what its optimizer remembers; but that begins
        again if workers had different ones and will have the same from now on. What the strategy
        remembers begins again.
        """
        if number == self.number:
            return
        before, strategy = self.sync.strategy, self.strategies[number]
        self.sync.leave()
        self.model.settle()
        # An average of what the workers' optimizers remember would be a round more.
        if before.local_models and not strategy.local_models:
            self.model.forget()
        self.sync = self._synchroniser(strategy)
        self.sync.start()
        self.paces = ()

    def furnish(self, arena_of: Callable[..., Arena]) -> None:
        """Get memory for rounds from the data plane: ``arena_of`` is its `Fabric.arena`."""
        self._arenas = StepArenas(arena_of, self.strategies, self.model.double_buffer)
        self.sync.memory.furnish(self._arenas)

    def _synchroniser(self, strategy: Strategy) -> Synchroniser[P]:
        known = self.model, self.gradient, self.progress, self._lengths
        made = Synchroniser(strategy, *known, surveyed=self.policy is not None)
        if self._arenas is not None:
            made.memory.furnish(self._arenas)
        return made

    def measured(self, workers: Collection[WorkerId]) -> Measured:
        """Return what the launcher is told, if these workers take the steps to come."""
        now = self.progress.rounds, len(workers)
        if now != self._counted:  # in the middle of a round's steps it would be too large
            left = self.position.left(len(workers))
            self._counted = now
            self._whole = None if left is None else min(self.progress.steps + left, _MOST)
        return self.meter.measured(self._whole)

    @property
    def what(self) -> str:
        """The strategies, the optimizer and the policy, as text."""
        optimizer, strategies = self.model.optimizer, map(str, self.strategies)
        known = " or ".join(strategies) + ("" if optimizer is None else f" {type(optimizer)}")
        return known + ("" if self.policy is None else f" {self.policy}")

    def facts(self, given: Settings) -> list[tuple[str, str]]:
        """Return what must be equal on all workers, with its value here."""
        # Not the folder's name: hosts may have different names for it.
        kept = given.checkpoint is not None, given.checkpoint_every
        return [
            (LIBRARY, self.model.library),
            ("bucket_mb", str(self.model.bucket_mb)),
            ("the names, shapes or dtypes of the parameters", self.model.signature),
            ("the strategy or the optimizer", self.what),
            ("how the learning rate follows the workers", self.rate.how),
            ("the seed", str(self.progress.seed)),
            ("the settings", str((given.trace, kept, given.min_workers))),
        ]
