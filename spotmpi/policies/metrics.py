"""The figures by which policies decide: they are measured while a strategy is followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotmpi.strategies import Strategy

__all__ = ["Metrics", "Tried"]

_DIGITS = 4


@dataclass(frozen=True)
class Tried:
    """What was measured last while one strategy was followed."""

    progress: float
    """Samples a second, of all workers."""
    workers: int
    """Workers at the time of the measurement."""
    ago: float = 0.0
    """Seconds since the measurement; 0 for the strategy that is followed."""
    period: float = 0.0
    """Seconds between surveys at the time of the measurement: a trial ends with a survey."""
    behind: float = 0.0
    """How far it is behind the best one that was measured with as many workers, as a share."""


@dataclass(frozen=True)
class Metrics:
    """How a training goes with the strategy that it follows. All times are of the leader's clock.
    All figures are of the last survey: some rounds in which all workers tell how they do."""

    strategy: Strategy
    """The strategy that is followed."""
    steps: int
    """Steps taken so far."""
    since: int
    """Steps taken with this strategy, after its first round."""
    seconds: float
    """Seconds for which this strategy has been followed, after its first round."""
    workers: int
    hosts: int
    throughput: float
    """Samples a second of each worker, in the mean."""
    share: float
    """The throughput, as a share of what workers would reach, in the mean, that wait for nobody."""
    slowest: float
    """The slowest worker's time to compute a step, divided by the median worker's."""
    loss: float | None = None
    """The workers' mean loss in the last round; None if it is not known."""
    noise: float | None = None
    """The gradient noise scale, in samples; None if it is not known. A batch of all workers
    together that is much larger gains little by being larger. The scale is measured where gradients
    are averaged, and is an average over the last surveys."""
    tried: Mapping[str, Tried] = field(default_factory=dict)
    """Results of all strategies that were followed so far, by `Strategy.called`."""

    @property
    def communication(self) -> float:
        """The share of a step in which a usual worker does not compute: it sums, sends or waits."""
        return 1.0 - self.share

    @property
    def progress(self) -> float:
        """Samples a second, of all workers."""
        return self.throughput * self.workers

    def figures(self) -> dict[str, Any]:
        """Return the figures for the trace, as JSON values."""
        known: dict[str, Any] = {
            name: round(getattr(self, name), _DIGITS)
            for name in ("seconds", "throughput", "share", "communication", "slowest")
        }
        whole = ("steps", "since", "workers", "hosts", "loss")
        known |= {name: getattr(self, name) for name in whole}
        known["noise"] = None if self.noise is None else round(self.noise, _DIGITS)
        known["tried"] = {
            name: {
                "progress": round(one.progress, _DIGITS),
                "workers": one.workers,
                "ago": round(one.ago, _DIGITS),
                "period": round(one.period, _DIGITS),
                "behind": round(one.behind, _DIGITS),
            }
            for name, one in self.tried.items()
        }
        return known

    @classmethod
    def of(cls, strategy: Strategy, figures: Mapping[str, Any]) -> Metrics:
        """Return the metrics that had these `figures` while ``strategy`` was followed. Raises
        KeyError, TypeError or AttributeError if they are not such figures."""
        known = {name: value for name, value in figures.items() if name != "communication"}
        tried = {name: Tried(**one) for name, one in known.pop("tried").items()}
        return cls(strategy, tried=tried, **known)
