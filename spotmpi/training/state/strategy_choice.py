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
        self._decided: int | None = None
        """Number of the strategy that the policy decided for last, on this worker."""
        self._why: Mapping[str, Any] = {}
        """What it decided by, for the trace."""

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

    def decide(self, metrics: Metrics, leads: bool) -> Strategy | None:
        """Return what the policy, if there is one, decides for by these metrics; None: it stays.
        Wish for that, if this worker ``leads``: all others decide in case that the leader is lost
        before it can tell why. Raises UsageError if it is not among the strategies."""
        wanted = None if self.policy is None else self.policy.decide(metrics)
        if wanted is None or str(wanted) == str(metrics.strategy):
            return None
        try:
            self._decided = self.number_of(wanted)
        except ValueError:
            raise UsageError(
                f"{self.policy} has decided for {wanted}, expected one of its strategies, "
                f"or None: {', '.join(map(str, self.strategies))}"
            ) from None
        self._why = {"why": _reason(self.policy, metrics), "figures": metrics.figures()}
        if leads:
            self.wish = self._decided
        return wanted

    def come_to(self, number: int) -> Mapping[str, Any]:
        """Note that workers follow this strategy from now on. Return why, if the policy decided so
        on this worker."""
        why = self._why if self._decided == number else {}
        if self.wish == number:
            self.wish = None
        self._decided, self._why = None, {}
        return why

    def said(self, optimizer: Optimizer | None) -> str:
        """Return the strategies, this optimizer and the policy, as text."""
        known = " or ".join(map(str, self.strategies))
        known += "" if optimizer is None else f" {type(optimizer)}"
        return known + ("" if self.policy is None else f" {self.policy}")


def _reason(policy: Policy | None, metrics: Metrics) -> str:
    """Return the reason for a decision, as text for people."""
    there = f"{metrics.workers} workers on {metrics.hosts} host" + "s" * (metrics.hosts != 1)
    return (
        f"{policy}, with {there}: each worker does {metrics.share:.2f} of what it would do alone, "
        f"the slowest computes {metrics.slowest:.2f} times as long as the median one"
    )
