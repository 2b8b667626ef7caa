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
    """Decides during the training how workers synchronise. It remembers nothing and decides by the
    figures alone, so a new leader decides as the one before would have."""

    @property
    @abstractmethod
    def strategies(self) -> Sequence[Strategy]:
        """All strategies that it may decide for. The training begins with the first."""

    @abstractmethod
    def decide(self, metrics: Metrics) -> Strategy | None:
        """Return the strategy to go on with; None, or the one that is followed, if that stays."""

    def __str__(self) -> str:
        """Return a text for people. It must be the same for the policies of all workers."""
        values: tuple[Field[Any], ...] = fields(self) if is_dataclass(self) else ()
        said = ", ".join(
            f"{one.name}={getattr(self, one.name)}"
            for one in values
            if isinstance(getattr(self, one.name), int | float)
        )
        return f"{type(self).__name__}({said})"
