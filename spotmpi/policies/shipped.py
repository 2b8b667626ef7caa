"""The policies that come with spotmpi. None of them flaps. Each looks for a while at what it has
decided for, and needs more than a little to go back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotmpi.errors import UsageError
from spotmpi.optimizers.numbers import finite, whole
from spotmpi.policies.metrics import Metrics
from spotmpi.policies.policy import Policy
from spotmpi.strategies import ADPSGD, SSGD, Strategy

__all__ = ["Best", "Fixed", "Schedule", "StragglerAware", "ThroughputBelow"]


@dataclass(frozen=True)
class Fixed(Policy):
    """Always follows the same strategy."""

    strategy: Strategy = field(default_factory=SSGD)

    @property
    def strategies(self) -> Sequence[Strategy]:
        """The one strategy."""
        return [self.strategy]

    def decide(self, metrics: Metrics) -> Strategy | None:
        """Return the one strategy."""
        return self.strategy


@dataclass(frozen=True)
class ThroughputBelow(Policy):
    """Follows ``first`` until each worker does less than the share ``least`` of what it does alone.
    Then it follows ``then`` (Wagenländer et al., "Spotnik", 2020, section 3.3).

    It goes back when there are fewer workers than when it left, as the network has less to do then,
    or after ``again`` seconds, to look again. It looks at either for at least ``settle`` seconds.
    """

    least: float = 0.4
    then: Strategy = field(default_factory=ADPSGD)
    first: Strategy = field(default_factory=SSGD)
    settle: float = 2.0
    again: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < finite("ThroughputBelow: least", self.least) < 1:
            raise UsageError(f"ThroughputBelow: least is {self.least}, expected a share, as 0.4")
        _seconds(self, "settle", "again")

    @property
    def strategies(self) -> Sequence[Strategy]:
        """Both strategies."""
        return [self.first, self.then]

    def decide(self, metrics: Metrics) -> Strategy | None:
        """Decide by the share; go back by the number of workers, or after a time."""
        if metrics.seconds < self.settle:
            return None
        if _is(metrics.strategy, self.first):
            return self.then if metrics.share < self.least else None
        known = metrics.tried.get(self.first.called)
        if known is None or metrics.workers < known.workers or known.ago > self.again:
            return self.first
        return None


@dataclass(frozen=True)
class StragglerAware(Policy):
    """Follows ``then`` while the slowest worker is far behind the median one, else ``first``. It
    goes to ``then`` at ``ratio`` times the median time for a step, and back below 0.8 of that."""

    ratio: float = 1.5
    then: Strategy = field(default_factory=ADPSGD)
    first: Strategy = field(default_factory=SSGD)
    settle: float = 2.0

    def __post_init__(self) -> None:
        if not finite("StragglerAware: ratio", self.ratio) > 1:
            raise UsageError(f"StragglerAware: ratio is {self.ratio}, expected more than 1, as 1.5")
        _seconds(self, "settle")

    @property
    def strategies(self) -> Sequence[Strategy]:
        """Both strategies."""
        return [self.first, self.then]

    def decide(self, metrics: Metrics) -> Strategy | None:
        """Decide by the slowest worker."""
        if metrics.seconds < self.settle:
            return None
        if _is(metrics.strategy, self.first):
            return self.then if metrics.slowest >= self.ratio else None
        return self.first if metrics.slowest < 0.8 * self.ratio else None


@dataclass(frozen=True)
class Schedule(Policy):
    """Follows a strategy from a step on: ``Schedule({0: SSGD(), 1000: LocalSGD()})``."""

    begins: Mapping[int, Strategy]

    def __post_init__(self) -> None:
        for step in self.begins:
            whole("Schedule: step", step, 0)
        if 0 not in self.begins:
            raise UsageError(
                f"Schedule begins at the steps {sorted(self.begins)}, expected 0 and later ones"
            )

    @property
    def strategies(self) -> Sequence[Strategy]:
        """The strategies, in the order of their steps."""
        return [self.begins[step] for step in sorted(self.begins)]

    def decide(self, metrics: Metrics) -> Strategy | None:
        """Decide by the number of steps."""
        return self.begins[max(step for step in self.begins if step <= metrics.steps)]

    def __str__(self) -> str:
        """Return a text with the steps: the policies of all workers are compared by it."""
        said = (f"{step}: {self.begins[step].called}" for step in sorted(self.begins))
        return f"Schedule({', '.join(said)})"


@dataclass(frozen=True)
class Best(Policy):
    """Follows the one of ``candidates`` with which all workers together use most samples a second.

    It begins with the first. It tries another one where that could be better by the share
    ``better``: as long as workers wait for each other or for the network, and if its rounds are not
    more frequent. The ones with the fewest rounds come first, and asynchronous ones last. A trial
    takes ``settle`` seconds, and on to the next survey. It waits until it takes less time than the
    workers could have saved since the last change.

    It tries them again when the number of workers changes, and after ``again`` seconds. It tries a
    candidate that was far behind less often, also when workers come and go, so that each costs no
    more than the share ``cost`` of the time. It goes back to one that was better by the share
    ``better``. It cannot know what a sample is worth with each strategy: name only strategies that
    you trust.
    """

    candidates: Sequence[Strategy]
    settle: float = 2.0
    again: float = 120.0
    cost: float = 0.02
    better: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.candidates, Strategy) or not self.candidates:
            raise UsageError("Best has no candidates: give it a list, as Best([SSGD()])")
        _seconds(self, "settle", "again")
        for name in ("cost", "better"):
            if not 0 < finite(f"Best: {name}", getattr(self, name)) < 1:
                raise UsageError(f"Best: {name} is {getattr(self, name)}, expected a share")

    @property
    def strategies(self) -> Sequence[Strategy]:
        """All candidates."""
        return list(self.candidates)

    def decide(self, metrics: Metrics) -> Strategy | None:
        """Return a candidate that is to be tried, or the best one."""
        if metrics.seconds < self.settle:
            return None
        if due := [one for one in self.candidates if self._is_due(one, metrics)]:
            return min(due, key=lambda one: (one.asynchronous, -_steps(one)))
        known = {name: one for name, one in metrics.tried.items() if one.workers == metrics.workers}
        least = (1 + self.better) * metrics.progress
        better = [
            one
            for one in self.candidates
            if one.called in known and known[one.called].progress > least
        ]
        return max(better, key=lambda one: known[one.called].progress, default=None)

    def _is_due(self, candidate: Strategy, metrics: Metrics) -> bool:
        """Return True if the candidate is to be tried: a trial could pay, and what is known of it
        is too old, or is of another number of workers. One that was behind has to wait, as it may
        be behind again."""
        if not self._trial_could_pay(candidate, metrics):
            return False
        known = metrics.tried.get(candidate.called)
        if known is None:
            return True
        loses = (self.settle + known.period) * known.behind
        usual = self.again if known.workers == metrics.workers else 0.0
        return known.ago > max(usual, loses / self.cost)

    def _trial_could_pay(self, candidate: Strategy, metrics: Metrics) -> bool:
        """Return True if the candidate could have saved more time, since this strategy is followed,
        than a trial takes. No strategy can do more than let all workers compute all the time."""
        if _has_rounds_as_often(candidate, metrics.strategy):
            return False
        least = (1 + self.better) * metrics.share
        gain = 1 / least - 1 if least > 0 else math.inf
        # Its first round is not looked at, and one more passes until all have changed back.
        trial = self.settle + 2 * metrics.tried[metrics.strategy.called].period
        return gain * metrics.seconds > trial


def _has_rounds_as_often(one: Strategy, other: Strategy) -> bool:
    """Return True if workers surely wait as long with ``one`` as with ``other``."""
    waits = not (one.asynchronous or other.asynchronous or one.delay)
    return waits and one.wire == other.wire and _steps(one) <= _steps(other)


def _steps(strategy: Strategy) -> int:
    """Return the number of steps in which all of the model is sent once."""
    return strategy.every * strategy.fragments


def _is(one: Strategy, other: Strategy) -> bool:
    return str(one) == str(other)


def _seconds(policy: Policy, *names: str) -> None:
    for name in names:
        kind, value = type(policy).__name__, getattr(policy, name)
        if finite(f"{kind}: {name}", value) < 0:
            raise UsageError(f"{kind}: {name} is {value}, expected a number of seconds")
