"""The base class of policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any

from spotmpi.policies.metrics import Metrics
from spotmpi.strategies import Strategy

__all__ = ["Policy"]


class Policy(ABC):
    """Decides during the training how workers synchronise, by the figures alone. It remembers
    nothing, so a new leader decides as the one before would have."""

    @property
    @abstractmethod
    def strategies(self) -> Sequence[Strategy]:
        """All strategies that it may decide for. The training begins with the first."""

    @abstractmethod
    def decide(self, metrics: Metrics) -> Strategy | None:
        """Return the strategy to go on with; None, or the one that is followed, if that stays.

        It is called on every worker at every survey, and only the leader's decision counts. So it
        must be quick and have no side effects.
        """

    def __str__(self) -> str:
        """Return a text for people: its numbers, and the strategies that it may decide for. It must
        be the same for the policies of all workers."""
        values: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        numbers = [
            f"{one.name}={getattr(self, one.name)}"
            for one in values
            if isinstance(getattr(self, one.name), int | float)
        ]
        said = [", ".join(numbers)] * bool(numbers)
        said.append(" or ".join(getattr(one, "called", repr(one)) for one in self.strategies))
        return f"{type(self).__name__}({': '.join(said)})"
