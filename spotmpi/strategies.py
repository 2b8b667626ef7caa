"""Strategies: how workers synchronise, as chains of operators."""

from __future__ import annotations

from typing import Any

from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer
from spotmpi.operators import Apply, Chain, GradientAverage, Step


class Strategy:
    """A chain with one collective operator. ``Strategy(GradientAverage() >> Apply())``."""

    def __init__(self, chain: Chain) -> None:
        collective = [operator for operator in chain.operators if operator.collective]
        if len(collective) != 1:
            raise UsageError(
                f"a strategy has exactly one collective operator, and {chain} has "
                f"{len(collective)}: begin with GradientAverage() >> Apply()"
            )
        self.chain = chain
        self._collective = collective[0]
        self._after = chain.operators[chain.operators.index(self._collective) :]

    def contribute(self, step: Step, grads: Any, weight: float, contribution: list[Buffer]) -> None:
        """Fill ``contribution`` for the step's round. Local."""
        self._collective.contribute(step, grads, weight, contribution)

    def complete(self, step: Step) -> None:
        """The round is complete: run the chain's rest. Local, the same on every worker."""
        for operator in self._after:
            operator.complete(step)

    def __str__(self) -> str:
        return str(self.chain)


class SSGD(Strategy):
    """Synchronous SGD: every step applies the average of all workers' gradients."""

    def __init__(self) -> None:
        super().__init__(GradientAverage() >> Apply())
