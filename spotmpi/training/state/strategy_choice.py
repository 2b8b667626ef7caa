"""Which strategies a training may follow, and which of them a worker wants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.optimizers import Optimizer
from spotmpi.policies import Metrics, Policy
from spotmpi.strategies import Strategy

__all__ = ["StrategyChoice"]


class StrategyChoice:
    """The strategies that a training may follow, and what one worker wants of them."""

    def __init__(self, strategies: Sequence[Strategy], policy: Policy | None) -> None:
        """``policy``: decides which of them to follow, if there is one."""
        self.strategies = strategies
        self.policy = policy
        self.wish: int | None = None
        """Number of the strategy that this worker's script or policy wants, if any."""
        self._reasons: dict[int, Mapping[str, Any]] = {}
        """What the policy has decided by on this worker, for the trace, by the number of the
        strategy that it decided for. No decision is older than the last one to stay."""

    @property
    def tells(self) -> bool:
        """True if rounds may carry tables: with a policy, or if any strategy is asynchronous."""
        return self.policy is not None or any(one.asynchronous for one in self.strategies)

    def number_of(self, strategy: Strategy) -> int:
        """Return the number of a strategy. Raises ValueError if it may not be followed."""
        return [*map(str, self.strategies)].index(str(strategy))

    def wanted(self, number: int) -> int | None:
        """Return the number of the strategy that this worker wants, unless it is this one."""
        return None if self.wish == number else self.wish

    def ask(self, strategy: Strategy) -> None:
        """Wish for this strategy, as the script does. Raises ValueError if it may not be
        followed."""
        self.wish = self.number_of(strategy)
        self._reasons.clear()

    def decide(self, policy: Policy, metrics: Metrics, leads: bool) -> Strategy | None:
        """Return what the policy decides for by these metrics; None: it stays, or a wish is still
        to be heard. Wish for that, if this worker ``leads``. All others decide as well: the leader
        may be lost before it can tell why. Raises UsageError if it is not among the strategies."""
        if self.wanted(self.number_of(metrics.strategy)) is not None:
            return None
        wanted = policy.decide(metrics)
        if wanted is None or str(wanted) == str(metrics.strategy):
            self._reasons.clear()
            return None
        try:
            number = self.number_of(wanted)
        except ValueError:
            raise UsageError(
                f"{policy} has decided for {wanted}, expected one of its strategies, "
                f"or None: {', '.join(map(str, self.strategies))}"
            ) from None
        self._reasons[number] = {"why": _reason(policy, metrics), "figures": metrics.figures()}
        if leads:
            self.wish = number
        return wanted

    def come_to(self, number: int) -> Mapping[str, Any]:
        """Note that workers follow this strategy from now on. Return why, if the policy decided so
        on this worker."""
        why = self._reasons.get(number, {})
        if self.wish == number:
            self.wish = None
        self._reasons.clear()
        return why

    def said(self, optimizer: Optimizer | None) -> str:
        """Return the strategies, this optimizer and the policy, as text."""
        known = " or ".join(map(str, self.strategies))
        known += "" if optimizer is None else f" {optimizer.kind}"
        return known + ("" if self.policy is None else f" {self.policy}")


def _reason(policy: Policy, metrics: Metrics) -> str:
    """Return the reason for a decision, as text for people."""
    there = f"{metrics.workers} workers on {metrics.hosts} host" + "s" * (metrics.hosts != 1)
    return (
        f"{policy}, with {there}: each worker does {metrics.share:.2f} of what it would do alone, "
        f"the slowest computes {metrics.slowest:.2f} times as long as the median one"
    )
