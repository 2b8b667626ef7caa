"""What a policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Any

from spotmpi.policies.metrics import Metrics
from spotmpi.strategies import Strategy

__all__ = ["Policy"]


class Policy(ABC):
    """Decides under way how workers synchronise. It remembers nothing: what it decides follows from
    the figures alone, so whoever leads next decides as the one before would have."""

    @property
    @abstractmethod
    def strategies(self) -> Sequence[Strategy]:
        """All that it may decide for; the training begins with the first."""

    @abstractmethod
    def decide(self, metrics: Metrics) -> Strategy | None:
        """The strategy to go on with; None, or the one that is followed: it stays."""

    def __str__(self) -> str:
        """For people; and all workers must have policies of which this says the same."""
        values: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        said = ", ".join(
            f"{one.name}={getattr(self, one.name)}"
            for one in values
            if isinstance(getattr(self, one.name), int | float)
        )
        return f"{type(self).__name__}({said})"
