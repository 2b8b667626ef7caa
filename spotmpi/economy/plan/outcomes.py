"""Many trainings, and what they say: means and quantiles, each with its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from spotmpi.economy.plan.events import Counts, Result, Runtime, Training, train

__all__ = ["Campaign", "Estimate", "campaign", "estimate", "quantile", "share"]

_Z = 1.959964
"""Of a normal distribution 95 % lie within so many standard deviations."""


@dataclass(frozen=True)
class Estimate:
    """A figure from a sample, and the 95 % interval in which the true one lies.

    The interval is that of chance only: what the model gets wrong is not in it.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Campaign:
    """The outcomes of many runs of one training with one runtime, in the order of their seeds."""

    runtime: Runtime
    outcomes: Sequence[Result]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Of the runs that ended."""
        return np.array([one.seconds for one in self.outcomes if math.isfinite(one.seconds)])

    @property
    def dollars(self) -> NDArray[np.float64]:
        """Of the runs that ended."""
        return np.array([one.dollars for one in self.outcomes if math.isfinite(one.seconds)])

    @property
    def ended(self) -> Estimate:
        """The share of the runs that came to their end."""
        return share(len(self.seconds), len(self.outcomes))

    def within(self, deadline_s: float) -> Estimate:
        """The share of the runs that ended in time."""
        return share(int((self.seconds <= deadline_s).sum()), len(self.outcomes))

    def seconds_below(self, part: float) -> Estimate | None:
        """What this part of all runs took at most; None: so many did not end."""
        return self._below(self.seconds, part)

    def dollars_below(self, part: float) -> Estimate | None:
        """What this part of all runs cost at most; None: so many did not end."""
        return self._below(self.dollars, part)

    def _below(self, sample: NDArray[np.float64], part: float) -> Estimate | None:
        runs = len(self.outcomes)
        if part * (runs - 1) > len(sample) - 1:
            return None
        return quantile(np.concatenate([sample, np.full(runs - len(sample), math.inf)]), part)

    @property
    def losses(self) -> float:
        """Workers lost in a run, on average."""
        return float(np.mean([one.losses for one in self.outcomes]))

    @property
    def hired_s(self) -> float:
        """Node seconds on demand in the place of spot nodes, on average."""
        return float(np.mean([one.hired_s for one in self.outcomes]))

    @property
    def undone(self) -> float:
        """The part of the training that was done again, on average."""
        return float(np.mean([one.undone for one in self.outcomes]))


def campaign(
    training: Training,
    runtime: Runtime,
    runs: int,
    seed: int,
    tell: Callable[[int], None] = lambda done: None,
) -> Campaign:
    """Live through ``runs`` trainings. Run i depends on (seed, i) only: another runtime or another
    training lives through the same fates, as far as both have the same nodes. Blocking."""
    remembered: dict[Counts, float] = {}

    def speed(counts: Counts) -> float:
        if counts not in remembered:
            remembered[counts] = training.speed(counts)
        return remembered[counts]

    quick = replace(training, speed=speed)
    outcomes = []
    for run in range(runs):
        outcomes.append(train(quick, runtime, np.random.default_rng([seed, run])))
        tell(run + 1)
    return Campaign(runtime, outcomes)


def estimate(sample: NDArray[np.float64]) -> Estimate:
    """The mean of a sample that is not empty, with the interval of the normal approximation."""
    mean = float(sample.mean())
    if len(sample) < 2:
        return Estimate(mean, -math.inf, math.inf)
    half = _Z * float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return Estimate(mean, mean - half, mean + half)


def quantile(sample: NDArray[np.float64], part: float) -> Estimate:
    """A quantile of a sample that is not empty; its interval is that of order statistics, whatever
    the distribution, and infinite where the sample is too small to tell."""
    ordered = np.sort(sample)
    size = len(ordered)
    half = _Z * math.sqrt(size * part * (1 - part))
    low, high = math.floor(size * part - half) - 1, math.ceil(size * part + half)
    # By hand: where the next one is infinite, NumPy adds it with a weight of 0, and says nan.
    place, rest = divmod(part * (size - 1), 1)
    value = float(ordered[int(place)])
    if rest:
        value += rest * (float(ordered[int(place) + 1]) - value)
    return Estimate(
        value,
        float(ordered[low]) if low >= 0 else -math.inf,
        float(ordered[high]) if high < size else math.inf,
    )


def share(count: int, of: int) -> Estimate:
    """A share of runs; its interval is Wilson's."""
    part = count / of
    centre = (part + _Z**2 / (2 * of)) / (1 + _Z**2 / of)
    half = _Z * math.sqrt(part * (1 - part) / of + _Z**2 / (4 * of**2)) / (1 + _Z**2 / of)
    # Rounding may put an end of the interval a hair inside of the share.
    return Estimate(part, max(0.0, min(part, centre - half)), min(1.0, max(part, centre + half)))
