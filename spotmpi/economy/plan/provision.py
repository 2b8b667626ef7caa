"""Choosing a cluster: the cheapest that reaches the loss by the deadline within the quota.

What is minimised is T sum(n_m p_m). As spotDNN does it: bounds on the number of workers, the
instances sorted by how long they take for an iteration, and a window of n of them moved from the
slowest to the fastest. That finds clusters of neighbours only and may miss the cheapest, so all
clusters are searched where there are few enough of them, and always if it is asked for; and where
there are too many, those that are a step away from the best windows. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from spotmpi.economy.market.prices import Billing, cost
from spotmpi.economy.models import Model
from spotmpi.economy.models.spotdnn import SpotDnn
from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError

__all__ = ["Candidate", "Demand", "Search", "Way", "predict", "search"]

Way = Literal["all", "windows"]
"""How clusters are searched; ``windows``: as spotDNN does, and nothing beside."""

FEW = 100_000
"""Clusters that are searched one by one without being asked: seconds, or half a minute."""
_STARTS = 8
"""Windows from which one walks to cheaper clusters."""
_DENSE = 50
"""Sizes of windows, and places of one size, are looked at one by one up to twice this, then in
steps of a part of what lies behind."""


@dataclass(frozen=True)
class Demand:
    """What is wanted, and what it may take."""

    iterations: Callable[[Cluster], float]
    """How many a cluster still has to do; UsageError where the model does not hold for it."""
    deadline_s: float
    quota: Cluster
    dollars_per_hour: Mapping[str, float]
    """Of one instance of each type in the quota."""
    fixed_dollars_per_hour: float = 0.0
    """Of what is paid beside the workers: a parameter server, if it is to be counted."""
    existing: Cluster = field(default_factory=dict)
    """Instances that train already."""
    keeps: bool = True
    """Whether every cluster must have those."""
    startup_s: Callable[[Cluster], float] = lambda _: 0.0
    """Seconds until what is new in a cluster trains, which are paid."""
    billing: Billing = "second"

    @property
    def kept(self) -> Cluster:
        """What every cluster must have."""
        return self.existing if self.keeps else {}

    def meanwhile(self, cluster: Cluster) -> Cluster:
        """What of a cluster trains while the rest of it starts."""
        there = {name: min(count, self.existing.get(name, 0)) for name, count in cluster.items()}
        return {name: count for name, count in there.items() if count}


@dataclass(frozen=True)
class Candidate:
    """A cluster with its predictions, undisturbed: from its creation to the end of training, if
    nothing is revoked and no checkpoint is written."""

    cluster: Cluster
    iterations: float
    """That it still has to do."""
    seconds: float
    dollars: float


@dataclass
class Search:
    """What a search found."""

    feasible: list[Candidate]
    """In time undisturbed; the cheapest first."""
    fastest: Candidate | None = None
    """Of all, whether in time or not; None: the model holds for none."""
    alone: dict[str, Candidate] = field(default_factory=dict)
    """The cheapest cluster of one type only, or the fastest one if none is in time."""
    searched: int = 0
    late: int = 0
    outside: int = 0
    """Clusters for which the model does not hold."""
    example: tuple[Cluster, str] | None = None
    """One of these, and why; None: there are none."""
    everything: bool = False
    """Whether all clusters were looked at."""


def predict(model: Model, demand: Demand, cluster: Cluster) -> Candidate:
    """What a cluster takes. UsageError where the model does not hold for it."""
    left, seconds = demand.iterations(cluster), demand.startup_s(cluster)
    part = 1.0
    if seconds and (before := demand.meanwhile(cluster)):
        alone = demand.iterations(before) / model.rate(before)
        part = max(0.0, 1 - seconds / alone) if alone else 0.0
        seconds = min(seconds, alone)
    seconds += part * left / model.rate(cluster)
    hourly = sum(demand.dollars_per_hour[name] * count for name, count in cluster.items())
    dollars = cost(seconds, hourly + demand.fixed_dollars_per_hour, demand.billing)
    return Candidate(cluster, left, seconds, dollars)


def search(
    model: Model, demand: Demand, least: int, most: int | None, way: Way | None = None
) -> Search:
    """Look for clusters. Blocking: seconds; ``all`` takes as long as it takes.

    ``least`` and ``most`` (None: no limit) bound the number of workers of the windows; where all
    clusters are looked at they are not used, as a bound may be wrong and the search is not. Where
    no window up to ``most`` is in time, larger ones are looked at. Without a ``way`` that
    is all clusters if they are few; else windows, and what is one step away from the best of them.
    """
    ranges = {
        name: range(demand.kept.get(name, 0), count + 1) for name, count in demand.quota.items()
    }
    if missing := [name for name in demand.kept if not ranges.get(name)]:
        raise UsageError(
            f"{missing[0]} runs already, {demand.kept[missing[0]]} of them, and the quota has "
            f"{demand.quota.get(missing[0], 0)}; a quota includes what runs"
        )
    everything = way == "all"
    if way is None:
        everything = math.prod(len(one) for one in ranges.values()) <= FEW
    found = Search([], everything=everything)
    clusters = _all(ranges) if everything else _windows(model, demand, least, most)
    for cluster in clusters:
        _consider(model, demand, cluster, found)
    if not (everything or found.feasible or most is None):
        # Beyond the paper's upper bound a worker brings less, but it does bring something.
        for cluster in _windows(model, demand, most + 1, None):
            _consider(model, demand, cluster, found)
    if not everything and way is None:
        _improve(model, demand, found)
    found.feasible.sort(key=_price)
    return found


def _improve(model: Model, demand: Demand, found: Search) -> None:
    """Walk downhill from the best windows: a node more, a node less, one type for another."""
    seen = {_key(one.cluster) for one in found.feasible}
    for start in sorted(found.feasible, key=_price)[:_STARTS]:
        best: Candidate | None = start
        while best is not None:
            here, best = best, None
            for cluster in _beside(here.cluster, demand):
                if _key(cluster) in seen:
                    continue
                seen.add(_key(cluster))
                candidate = _consider(model, demand, cluster, found)
                if candidate is None or candidate.seconds > demand.deadline_s:
                    continue
                if _price(candidate) < _price(best or here):
                    best = candidate


def _key(cluster: Cluster) -> frozenset[tuple[str, int]]:
    return frozenset(cluster.items())


def _beside(cluster: Cluster, demand: Demand) -> Iterator[Cluster]:
    """The clusters that are one step away, within the quota and with what runs already."""
    for less in (None, *cluster):
        for more in (None, *demand.quota):
            if less == more:
                continue
            counts = dict(cluster)
            if less is not None:
                counts[less] -= 1
            if more is not None:
                counts[more] = counts.get(more, 0) + 1
            there = {name: counts[name] for name in demand.quota if counts.get(name)}
            enough = all(there.get(name, 0) >= least for name, least in demand.kept.items())
            if there and enough and all(demand.quota[name] >= n for name, n in there.items()):
                yield there


def bounds(model: Model, demand: Demand, loss: float | None) -> tuple[int, int | None]:
    """Fewest and most workers that can be right, as far as the model knows.

    ``loss``: to which all of a training leads; None where a part of it is done, as the bounds are
    those of a whole one.
    """
    if not isinstance(model, SpotDnn) or loss is None:
        return 1, None
    types = list(demand.quota)
    return model.fewest_workers(types, loss, demand.deadline_s), model.most_workers()


def _consider(model: Model, demand: Demand, cluster: Cluster, found: Search) -> Candidate | None:
    found.searched += 1
    try:
        candidate = predict(model, demand, cluster)
    except UsageError as error:
        found.outside += 1
        found.example = found.example or (cluster, str(error))
        return None
    if found.fastest is None or candidate.seconds < found.fastest.seconds:
        found.fastest = candidate
    in_time = candidate.seconds <= demand.deadline_s
    if len(cluster) == 1:
        (name,) = cluster
        other = found.alone.get(name)
        if other is None or _better(candidate, other, demand.deadline_s):
            found.alone[name] = candidate
    if in_time:
        found.feasible.append(candidate)
    else:
        found.late += 1
    return candidate


def _better(one: Candidate, other: Candidate, deadline_s: float) -> bool:
    if one.seconds <= deadline_s and other.seconds <= deadline_s:
        return _price(one) < _price(other)
    return one.seconds < other.seconds


def _price(candidate: Candidate) -> tuple[float, float]:
    return candidate.dollars, candidate.seconds


def _all(ranges: Mapping[str, range]) -> Iterator[Cluster]:
    for counts in product(*ranges.values()):
        if any(counts):
            yield {name: count for name, count in zip(ranges, counts, strict=True) if count}


def _windows(model: Model, demand: Demand, least: int, most: int | None) -> Iterator[Cluster]:
    spare = {n: count - demand.kept.get(n, 0) for n, count in demand.quota.items()}
    kept = sum(demand.kept.values())
    total = sum(spare.values())
    if kept:
        yield dict(demand.kept)
    # The slowest first. Beside others each takes as long as alone or longer, in the same order.
    slowest = sorted(spare, key=lambda name: model.rate({name: 1}))
    ends, position = [], 0
    for name in slowest:
        ends.append((name, position, position + spare[name]))
        position += spare[name]
    most = total if most is None else min(total, most - kept)
    for size in _spaced(max(1, least - kept), most):
        before: Cluster | None = None
        for begin in _spaced(0, total - size):
            end = begin + size
            within = {n: max(0, min(end, last) - max(begin, first)) for n, first, last in ends}
            counts = {name: demand.kept.get(name, 0) + within[name] for name in demand.quota}
            cluster = {name: count for name, count in counts.items() if count}
            if cluster != before:
                yield cluster
            before = cluster


def _spaced(first: int, last: int) -> Iterator[int]:
    """The numbers from the first to the last; of many only some, the further the sparser."""
    number = first
    while number < last:
        yield number
        number += max(1, (number - first) // _DENSE)
    if first <= last:
        yield last
