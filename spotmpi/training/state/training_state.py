"""The state of one worker's training, from before it is connected to others. All is registered.

Beside the model's arrays these are plain values: how far the training has come, the learning
rate, and where the script stands in its batches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from spotmpi.fabric import Arena
from spotmpi.policies import Policy
from spotmpi.protocol.membership import WorkerId
from spotmpi.rounds.handshake import LIBRARY
from spotmpi.settings import Settings
from spotmpi.strategies import Strategy
from spotmpi.training.gradients.gradient_lengths import GradientLengths
from spotmpi.training.gradients.script_gradient import ScriptGradient
from spotmpi.training.model import Model
from spotmpi.training.script.script_position import ScriptPosition
from spotmpi.training.state.finite import Finite
from spotmpi.training.state.meter import Meter
from spotmpi.training.state.progress import Outlook, Progress
from spotmpi.training.state.rate import Rate
from spotmpi.training.state.strategy_choice import StrategyChoice
from spotmpi.training.step_memory import StepArenas
from spotmpi.training.synchroniser import Synchroniser

P = TypeVar("P")

BEFORE_PAGES = ("strategy", "progress")
"""Names of the values that a newcomer must know before it can learn the others page by page."""


class Followed:
    """Keeps the strategy that workers follow."""

    def __init__(self, training: TrainingState[Any]) -> None:
        self._training = training

    def kept(self) -> Mapping[str, Any]:
        """Return the strategy's name."""
        return {"followed": self._training.sync.strategy.called}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Follow the checkpoint's strategy. Warn if the script does not have it, as its first one
        is followed then."""
        known = [one.called for one in self._training.choice.strategies]
        if (followed := found.get("followed")) in known:
            self._training.follow(known.index(str(followed)))
        elif followed is not None:
            warnings.warn(
                f"{where} was written with the strategy {followed}, which this script does not "
                f"have: it begins with {self.kept()['followed']} instead; to go on with the other "
                "one, name it in Trainer(strategies=[...]) or by --strategy",
                RuntimeWarning,
                stacklevel=2,
            )

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return the strategy's number, and the rounds of steps before it."""
        return [self._training.number, self._training.sync.since]

    def restore(self, told: Any) -> None:
        """Follow the strategy that the other workers follow."""
        number, since = map(int, told)
        self._training.follow(number)
        self._training.sync.since = since


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
        self.choice = StrategyChoice(strategies, policy)
        """The strategies that the training may follow."""
        self.progress = Progress(seed)
        self.rate = rate
        rate.follow(self.progress)
        self.position = ScriptPosition()
        self.outlook = Outlook(self.progress, self.position)
        self.joined = False
        """True if this worker has joined after the start."""
        self.batch: Any = None
        """Samples that the script has been given and has not used yet."""
        self.meter = Meter()
        self.gradient = ScriptGradient[P](
            model.brought, "grads" if model.moves_itself else "arrays"
        )
        """The gradient of the next step."""
        self._lengths = GradientLengths()
        self._arenas: StepArenas | None = None
        self.sync = self._synchroniser(strategies[0])
        """The strategy at work."""
        called = "params" if model.moves_itself else "state"
        self.finite = Finite(model.registry, called, check_finite)
        """Watches whether the model is finite."""
        self.registry = model.registry
        self.registry.keep("strategy", Followed(self))
        self.registry.keep("progress", self.progress)
        self.registry.keep("rate", rate)
        self.registry.keep("position", self.position)
        self.registry.keep("finite", self.finite)

    @property
    def number(self) -> int:
        """Number of the strategy that workers follow."""
        return self.choice.strategies.index(self.sync.strategy)

    def follow(self, number: int) -> None:
        """Follow the strategy of this number. At this point all workers must agree on a model.

        All train from that model. Each worker keeps what its optimizer remembers; but that begins
        again if workers had different ones and will have the same from now on. If the optimizer
        asks for it the rate then begins again, too. What the strategy remembers begins again.
        """
        if number == self.number:
            return
        before, strategy = self.sync.strategy, self.choice.strategies[number]
        self.sync.leave()
        self.model.settle()
        if before.local_models and not strategy.local_models:
            self._begin_memory_again()
        self.sync = self._synchroniser(strategy)
        self.sync.start()

    def _begin_memory_again(self) -> None:
        # A mean of what workers remember would take a round, and no training ends better with it:
        # docs/adr/0046.
        self.model.forget()
        if self.model.optimizer is not None:
            self.rate.begin_again(self.model.optimizer.rises)

    def show(self) -> None:
        """Show the script its parameters as they are now."""
        self.model.show((self.progress.steps, self.progress.rounds))

    def furnish(self, arena_of: Callable[..., Arena]) -> None:
        """Get memory for rounds from the data plane: ``arena_of`` is its `Fabric.arena`."""
        self._arenas = StepArenas(arena_of, self.choice.strategies, self.model.double_buffer)
        self.sync.memory.furnish(self._arenas)

    def _synchroniser(self, strategy: Strategy) -> Synchroniser[P]:
        known = self.model, self.gradient, self.progress, self._lengths
        made = Synchroniser(strategy, *known, surveyed=self.choice.policy is not None)
        if self._arenas is not None:
            made.memory.furnish(self._arenas)
        return made

    def facts(self, given: Settings) -> list[tuple[str, str]]:
        """Return what must be equal on all workers, with its value here."""
        # Not the folder's name: hosts may have different names for it.
        kept = given.checkpoint is not None, given.checkpoint_every
        return [
            (LIBRARY, self.model.library),
            ("bucket_mb", str(self.model.bucket_mb)),
            ("the names, shapes or dtypes of the parameters", self.model.signature),
            ("the strategy or the optimizer", self.choice.said(self.model.optimizer)),
            ("how the learning rate follows the workers", self.rate.how),
            ("the seed", str(self.progress.seed)),
            ("the settings", str((given.trace, kept, given.min_workers))),
        ]
