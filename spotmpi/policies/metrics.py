"""What policies decide by: figures that were measured while a strategy was followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotmpi.strategies import Strategy

__all__ = ["Metrics", "Tried"]

_DIGITS = 4


@dataclass(frozen=True)
class Tried:
    """What was measured last while some strategy was followed."""

    progress: float
    """Samples a second, of all workers."""
    workers: int
    """So many there were then."""
    ago: float = 0.0
    """Seconds since; 0 of the strategy that is followed."""
    period: float = 0.0
    """Seconds from one survey to the next then: a trial ends with one."""


@dataclass(frozen=True)
class Metrics:
    """How a training goes with the strategy that it follows. All times are of the leader's clock,
    and all figures of the last survey: some rounds, in which all workers say how they do."""

    strategy: Strategy
    """That is followed ..."""
    steps: int
    """... when so many steps are taken, ..."""
    since: int
    """... for so many of them ..."""
    seconds: float
    """... and for so long."""
    workers: int
    hosts: int
    throughput: float
    """Samples a second of each worker, in the mean."""
    share: float
    """That, as a share of what one worker comes to that has nobody to wait for."""
    slowest: float
    """The time that the slowest worker computes for a step, over that of the median one."""
    loss: float | None = None
    """The workers' mean in the last round."""
    noise: float | None = None
    """The gradient noise scale, in samples: a batch of all workers together that is much larger
    gains little by being larger. Measured where gradients are averaged, and an average over the
    last surveys; None: not known."""
    tried: Mapping[str, Tried] = field(default_factory=dict)
    """Of all strategies that were followed so far, by `Strategy.called`."""

    @property
    def communication(self) -> float:
        """The share of a step in which a usual worker does not compute: it sums, sends or waits."""
        return 1.0 - self.share

    @property
    def progress(self) -> float:
        """Samples a second, of all workers."""
        return self.throughput * self.workers

    def figures(self) -> dict[str, Any]:
        """For the trace; values of JSON."""
        known: dict[str, Any] = {
            name: round(getattr(self, name), _DIGITS)
            for name in ("seconds", "throughput", "share", "communication", "slowest")
        }
        known |= {name: getattr(self, name) for name in ("since", "workers", "hosts", "loss")}
        known["noise"] = None if self.noise is None else round(self.noise, _DIGITS)
        known["tried"] = {
            name: {
                "progress": round(one.progress, _DIGITS),
                "workers": one.workers,
                "ago": round(one.ago, _DIGITS),
            }
            for name, one in self.tried.items()
        }
        return known
