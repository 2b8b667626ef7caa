"""From measured steps to the numbers of the ring model, and how far these are off.

The fit is least squares of relative errors over the medians, where no number may be negative. Its
residual says little about a cluster that nobody has run, so the error that is stated comes from
runs that were kept back (`Check`):

- the largest size from those of at most half of it: as far ahead as one usually asks,
- each size from all others, where these suffice to know every number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt

from spotmpi.economy.models.ring import HostType, Load, RingLoss, load
from spotmpi.errors import UsageError

__all__ = [
    "Check",
    "Fit",
    "LossRun",
    "Measured",
    "Size",
    "calibrate",
    "fit_loss",
    "fit_noise",
    "loss_error",
    "non_negative",
]

Vector = npt.NDArray[np.float64]

Size = tuple[int, int]
"""Hosts, and workers of each."""

_UNKNOWN = {
    "exchange": "what a further worker on a host costs: too few runs differ in their workers",
    "crowding": "what workers beyond the cores cost: too few runs had more workers than cores",
    "hops": "the network's latency apart from its bandwidth: too few runs differ in their hosts",
}

_LEAST = 1e-9
"""Seconds, and seconds for an MB: what the model divides by is never nothing."""

_BLOCKS = 16
"""Of the losses of a run: each is the mean of so many parts of it."""

_POINTS = 2000
"""Of a loss curve; more only cost time."""


@dataclass(frozen=True)
class Measured:
    """Steps of a training whose workers did not change; seconds of each step."""

    hosts: int
    workers_per_host: int
    seconds: Sequence[float]

    @property
    def size(self) -> Size:
        """What tells it from others."""
        return self.hosts, self.workers_per_host

    @property
    def median(self) -> float:
        """Seconds of its usual step."""
        return median(self.seconds)


@dataclass(frozen=True)
class Check:
    """A size that was kept back, and predicted from others."""

    size: Size
    others: Sequence[Size]
    measured: float
    predicted: float
    lacking: Sequence[str]
    """Numbers that all sizes together tell, and the others do not."""

    @property
    def error(self) -> float:
        """0.1: predicted 10 % too slow; negative: too fast."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Fit:
    """What the runs say."""

    host: HostType
    medians: Mapping[Size, float]
    """Seconds of a step of each size that was measured, from few workers to many."""
    checks: Sequence[Check]
    unknown: Sequence[str]
    """What they do not tell, in words; it counts as nothing, or cannot be asked for."""

    @property
    def error(self) -> float | None:
        """The worst of the checks; None if no run could be kept back."""
        return max((abs(check.error) for check in self.checks), default=None)


def calibrate(runs: Iterable[Measured], cores: int, gradient_mb: float) -> Fit:
    """Fit the numbers of a type of host with ``cores`` cores.

    Runs of one size count as one, by the median of their medians. UsageError without any run, and
    where runs on several hosts do not tell what the network has cost them.
    """
    medians = _by_size(runs)
    if not medians:
        raise UsageError("there are no steps to profile; give traces of runs with more steps")
    if min(medians.values()) <= 0:
        raise UsageError("these steps took no time at all; give traces of runs, not of simulations")
    host, known = _fit(medians, cores, gradient_mb)
    if host.bandwidth_mbps is None and any(hosts > 1 for hosts, _ in medians):
        raise UsageError(
            "these runs do not tell what the network has cost them; add one with as many workers "
            "on each host, on one host alone"
        )
    wanted = [name for name in _UNKNOWN if _is_wanted(name, medians, cores)]
    unknown = [_UNKNOWN[name] for name in wanted if name not in known]
    return Fit(host, medians, list(_checks(medians, cores, gradient_mb, known)), unknown)


def non_negative(matrix: Vector, target: Vector) -> Vector:
    """The x >= 0 with the least \\|matrix x - target\\|.

    It is the free solution on the columns that it uses, so with the handful that the model has,
    each choice of columns is tried.
    """
    count = matrix.shape[1]
    best, least = np.zeros(count), float(np.linalg.norm(target))
    for size in range(1, count + 1):
        for chosen in map(list, combinations(range(count), size)):
            found = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
            off = float(np.linalg.norm(matrix[:, chosen] @ found - target))
            if found.min() >= 0 and off < least * (1 - 1e-12):
                best, least = np.zeros(count), off
                best[chosen] = found
    return best


def fit_loss(iterations: Sequence[float], losses: Sequence[float]) -> RingLoss | None:
    """The curve g3 / (j + g1) + g5 nearest to losses after j iterations (least squares).

    None where there is no such curve: fewer than 8 losses, one that is not finite or negative, no
    fall from the first quarter to the last.
    """
    j, y = np.asarray(iterations, float), np.asarray(losses, float)
    quarter = len(y) // 4
    if quarter < 2 or not np.isfinite(y).all() or y.min() < 0:
        return None
    if not np.median(y[-quarter:]) < np.median(y[:quarter]):
        return None
    thin = max(1, len(y) // _POINTS)
    j, y = j[::thin], y[::thin]

    def at(g1: float) -> tuple[float, RingLoss]:
        shape = (g1 + j[0]) / (j + g1)  # 1 at the first: both columns are of one size
        matrix = np.stack([shape, np.ones_like(j)], axis=1)
        scale, floor = non_negative(matrix, y)
        off = float(np.linalg.norm(matrix @ [scale, floor] - y))
        return off, RingLoss(g1, float(scale) * (g1 + float(j[0])), float(floor))

    span = float(j[-1] - j[0]) or 1.0
    low, high = np.log(span * 1e-8), np.log(span * 1e3)
    for _ in range(8):  # the residual has one valley in g1, or is flat: narrow it down
        grid = np.linspace(low, high, 25)
        best = int(np.argmin([at(float(np.exp(g1)))[0] for g1 in grid]))
        low, high = grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)]
    return at(float(np.exp((low + high) / 2)))[1]


def loss_error(iterations: Sequence[float], losses: Sequence[float]) -> float | None:
    """How far a curve fitted to the first three quarters is off, on average over the last.

    0.1: 10 % of the loss there. None where `fit_loss` gives no curve.
    """
    kept = 3 * len(losses) // 4
    curve = fit_loss(iterations[:kept], losses[:kept])
    measured = float(np.mean(losses[kept:])) if curve is not None else 0.0
    if curve is None or not 0 < measured < np.inf:
        return None
    predicted = float(np.mean([curve.at(j) for j in iterations[kept:]]))
    return abs(predicted / measured - 1)


@dataclass(frozen=True)
class LossRun:
    """Losses of a run with so many workers."""

    workers: float
    iterations: Sequence[float]
    losses: Sequence[float]


def fit_noise(runs: Sequence[LossRun]) -> tuple[RingLoss, float] | None:
    """The curve with the noise scale that brings runs of several numbers of workers nearest to one
    another, and how far their losses are off it on average (0.1: 10 %).

    Compared are means of some steps each, as losses of single batches are noisy. The curve is that
    of the largest run. None where there is no curve, or where no run has twice
    the workers of another: what a larger batch is worth cannot be told from such runs.
    """
    most = max((run.workers for run in runs), default=0.0)
    if not runs or most < 2 * min(run.workers for run in runs):
        return None
    pooled = np.concatenate([np.asarray(run.losses, float) for run in runs])
    every = [np.asarray(run.iterations, float) for run in runs]

    def off(noise: float) -> tuple[float, RingLoss] | None:
        factors = [(most + noise) / (run.workers + noise) for run in runs]
        j = np.concatenate([one * factor for one, factor in zip(every, factors, strict=True)])
        order = np.argsort(j, kind="stable")
        curve = fit_loss(j[order].tolist(), pooled[order].tolist())
        if curve is None:
            return None
        told = [[curve.at(one) for one in run * f] for run, f in zip(every, factors, strict=True)]
        parts = zip(told, (run.losses for run in runs), strict=True)
        far = np.concatenate([_in_blocks(one) - _in_blocks(seen) for one, seen in parts])
        return float(np.mean(np.abs(far)) / np.mean(pooled)), curve

    low, high = np.log(most * 1e-3), np.log(most * 1e3)
    best: tuple[float, RingLoss] | None = None
    for _ in range(3):
        grid = np.linspace(low, high, 13)
        found = [off(float(np.exp(one))) for one in grid]
        there = [one[0] if one is not None else np.inf for one in found]
        least = int(np.argmin(there))
        best, noise = found[least], float(np.exp(grid[least]))
        low, high = grid[max(0, least - 1)], grid[min(len(grid) - 1, least + 1)]
    if best is None:
        return None
    return replace(best[1], workers=most, noise=noise), best[0]


def _in_blocks(losses: Sequence[float]) -> Vector:
    """Means of neighbours."""
    blocks = np.array_split(np.asarray(losses, float), min(len(losses), _BLOCKS))
    return np.array([block.mean() for block in blocks])


def _by_size(runs: Iterable[Measured]) -> dict[Size, float]:
    found: dict[Size, list[float]] = {}
    for run in runs:
        if run.seconds:
            found.setdefault(run.size, []).append(run.median)
    return {size: median(found[size]) for size in sorted(found, key=_order)}


def _order(size: Size) -> tuple[int, Size]:
    return size[0] * size[1], size


def _is_wanted(name: str, medians: Iterable[Size], cores: int) -> bool:
    """Whether one would miss it."""
    if name == "hops":
        return any(hosts > 1 for hosts, _ in medians)
    return name == "exchange" or any(workers > cores for _, workers in medians)


def _fit(medians: dict[Size, float], cores: int, gradient_mb: float) -> tuple[HostType, set[str]]:
    """The host, and which of its numbers the sizes tell."""
    loads = np.array([load(workers, cores, hosts, gradient_mb) for hosts, workers in medians])
    seconds = np.array(list(medians.values()))
    relative = loads / seconds[:, None]
    columns: list[int] = []
    for column in range(len(Load._fields)):
        wider = loads[:, [*columns, column]]  # what was run decides, and not how long it took
        size = np.linalg.norm(wider, axis=0)
        if size[-1] > 0 and np.linalg.matrix_rank(wider / size, tol=1e-9) > len(columns):
            columns.append(column)
    scale = np.linalg.norm(relative[:, columns], axis=0)
    found = non_negative(relative[:, columns] / scale, np.ones(len(seconds))) / scale
    known = {Load._fields[column]: float(x) for column, x in zip(columns, found, strict=True)}
    largest = max(medians, key=_order)
    alone = len({workers for _, workers in medians}) == 1
    host = HostType(
        # As many as the runs had, but not more than one to a core, unless none had fewer.
        workers=largest[1] if alone else max(_usual(medians, cores)),
        cores=cores,
        compute_s=max(known["compute"], _LEAST),
        # Of 3 and 5 workers on 3 cores nobody can tell it from the cores: then it is in these.
        exchange_s_per_worker=None if alone else known.get("exchange", 0.0),
        crowding_s=known.get("crowding", 0.0),
        bandwidth_mbps=1 / max(known["wire_mb"], _LEAST) if "wire_mb" in known else None,
        latency_s=known.get("hops", 0.0),
    )
    return host, set(known)


def _usual(medians: Iterable[Size], cores: int) -> Sequence[int]:
    numbers = [workers for _, workers in medians]
    return [workers for workers in numbers if workers <= cores] or [min(numbers)]


def _checks(
    medians: dict[Size, float], cores: int, gradient_mb: float, known: set[str]
) -> Iterator[Check]:
    largest = max(medians, key=_order)
    half = [size for size in medians if 2 * size[0] * size[1] <= largest[0] * largest[1]]
    candidates = [(largest, half, False)]
    for size in medians:
        others = [other for other in medians if other != size]
        if (size, others) != (largest, half):
            candidates.append((size, others, True))
    for size, others, strict in candidates:
        if not others:
            continue
        host, told = _fit({other: medians[other] for other in others}, cores, gradient_mb)
        if strict and known - told:
            continue
        try:
            predicted = host.step(size[1], size[0], gradient_mb)
        except UsageError:  # the others do not tell what this size needs
            continue
        lacking = sorted(known - told)
        yield Check(size, others, medians[size], predicted, lacking)
