"""A queue at the parameter server: how fast a cluster is when its workers wait for each other.

A worker computes an update (think time Z_k of its instance type), the parameter server takes it in,
the worker goes on: a closed network of one delay and one FIFO station. Several servers take in all
parts of an update at once: P of them are one station that is P times as fast. Service is
exponential with the same mean for all types, so the network has a product form, and its throughput
can be computed exactly:

- by mean-value analysis (Reiser and Lavenberg, 1980), a recursion over all clusters up to the one
  asked for, where these are few, or have been computed already;
- by an integral over one variable (McKenna and Mitra, 1982) where they are many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from spotmpi.economy.models import Server, unknown_type
from spotmpi.economy.quantities import Cluster
from spotmpi.economy.reading import Field
from spotmpi.errors import UsageError

__all__ = ["Queue", "Station", "from_profile"]

_FEW = 1000
"""Population vectors: up to here the recursion takes about a millisecond; the integral always
takes a fraction of one."""
_REMEMBERED = 1_000_000
"""Clusters; then it begins anew."""
_NEGLIGIBLE = 45.0
"""Where the integrand is below e^-45 of its peak, nothing is lost in 64 bits."""
_PANELS = 24
"""Each of 16 nodes, over some 20 standard deviations: far finer than rounding can show."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


class Station:
    """Workers of some types and the station that they wait at. Remembers what it has computed, so
    that a search through clusters, each a little larger than others, takes a step for each."""

    def __init__(self, think_s: Sequence[float], service_s: float) -> None:
        """``think_s``: what a worker of each type computes for between two updates. Without service
        none of them may be 0."""
        self._think_s = tuple(think_s)
        self._service_s = service_s
        self._queues: dict[tuple[int, ...], float] = {}
        """How many workers wait or are served, on average, by how many there are of each type."""

    def throughput(self, counts: Sequence[int]) -> float:
        """Updates per second of ``counts[k]`` workers of each type, exactly; 0 without workers. At
        most about a millisecond, for 100,000 workers as well."""
        counts = tuple(counts)
        if not any(counts):
            return 0.0
        if self._service_s == 0:
            return sum(n / z for n, z in zip(counts, self._think_s, strict=True) if n)
        if not self._knows_smaller(counts):
            if math.prod(n + 1 for n in counts) > _FEW:
                return self._remember(counts, _integral(counts, self._think_s, self._service_s))
            for smaller in product(*(range(n + 1) for n in counts)):
                if smaller not in self._queues:
                    self._step(smaller)
        return self._step(counts)

    def _knows_smaller(self, counts: tuple[int, ...]) -> bool:
        """Whether every cluster with one worker fewer is known."""
        return all(_without(counts, k) in self._queues for k, n in enumerate(counts) if n)

    def _step(self, counts: tuple[int, ...]) -> float:
        """Mean-value analysis: an update that arrives sees the queue of the cluster without its
        worker."""
        rates = [0.0] * len(counts)
        for k, n in enumerate(counts):
            if n:
                seen = self._queues[_without(counts, k)]
                rates[k] = n / (self._think_s[k] + self._service_s * (1 + seen))
        return self._remember(counts, rates)

    def _remember(self, counts: tuple[int, ...], rates: Sequence[float]) -> float:
        if len(self._queues) >= _REMEMBERED:
            self._queues.clear()
        thinking = sum(rate * z for rate, z in zip(rates, self._think_s, strict=True))
        self._queues[counts] = sum(counts) - thinking  # Little's law, of those that think
        return sum(rates)


def _without(counts: tuple[int, ...], k: int) -> tuple[int, ...]:
    """One worker of type k fewer."""
    return (*counts[:k], counts[k] - 1, *counts[k + 1 :])


def _integral(counts: Sequence[int], think_s: Sequence[float], service_s: float) -> list[float]:
    """Updates per second of each type. The normalising constant is proportional to the integral
    over u > 0 of

        e^-u product_k (Z_k + d u)^N_k

    with the mean service time d, and type k's throughput is the constant without one worker by the
    constant with all: the mean of N_k / (Z_k + d u) over that density, which is log-concave: one
    peak, found by bisection.
    """
    types = [(n, z) for n, z in zip(counts, think_s, strict=True) if n]

    def height(u: float) -> float:
        return sum(n * math.log(z + service_s * u) for n, z in types) - u

    def slope(u: float) -> float:
        return sum(n * service_s / (z + service_s * u) for n, z in types) - 1

    most = float(1 + sum(counts))  # the slope is negative here, whatever the think times
    least = most * 1e-18
    peak = _crossing(slope, least, most) if slope(least) > 0 else least
    floor = height(peak) - _NEGLIGIBLE
    left = _crossing(lambda u: floor - height(u), least, peak) if height(least) < floor else 0.0
    right = 2 * most
    while height(right) > floor:
        right *= 2
    right = _crossing(lambda u: height(u) - floor, peak, right)

    edges = np.linspace(left, right, _PANELS + 1)
    half = (edges[1:] - edges[:-1]) / 2
    u = ((edges[1:] + edges[:-1]) / 2)[:, None] + half[:, None] * _NODES
    heights = -u
    for n, z in types:
        heights = heights + n * np.log(z + service_s * u)
    density = np.exp(heights - heights.max()) * half[:, None] * _WEIGHTS
    density /= density.sum()
    return [
        float((density * (n / (z + service_s * u))).sum()) if n else 0.0
        for n, z in zip(counts, think_s, strict=True)
    ]


def _crossing(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that is positive at ``low`` and negative at ``high`` crosses zero."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return high


@dataclass(frozen=True)
class Queue:
    """A training whose workers share parameter servers: `spotmpi.economy.models.Model`.

    An iteration is one update by one worker. Asynchronous: workers wait for the server only.
    """

    name: str
    compute_s: Mapping[str, float]
    """Seconds that a worker of each instance type needs for one update, without any server's."""
    update_s: float
    """Service time of one update, in seconds, with one server; P servers take 1 / P of it."""
    server_instance: str
    """The instance type of a parameter server, for its price."""
    servers: int
    updates: int | None = None
    """Updates of the whole training, where the profile says so."""
    error_of_one: float | None = None
    """How far predicted times were off with one server, at most ..."""
    error_of_several: float | None = None
    """... and with several."""

    @cached_property
    def _station(self) -> Station:
        return Station([*self.compute_s.values()], self.update_s / self.servers)

    @property
    def error(self) -> float | None:
        """How far a predicted time was off, at most, as `models.Model` has it."""
        return self.error_of_one if self.servers == 1 else self.error_of_several

    @property
    def server(self) -> Server:
        """What all its servers are, as `models.Model` has it."""
        return Server(self.server_instance, self.servers)

    @property
    def length(self) -> float | None:
        """The updates of the whole training, as `models.Model` has it."""
        return self.updates

    @property
    def types(self) -> Sequence[str]:
        """The instance types that it knows."""
        return tuple(self.compute_s)

    def with_servers(self, servers: int) -> Queue:
        """The same training with another number of parameter servers. UsageError below 1."""
        if servers < 1:
            raise UsageError(f"{servers} parameter servers, expected at least 1")
        return replace(self, servers=servers)

    def rate(self, cluster: Cluster) -> float:
        """Updates per second of the whole cluster; 0 of an empty one.

        UsageError for a type that it does not know. Pure, less than a millisecond or so.
        """
        for name, count in cluster.items():
            if count and name not in self.compute_s:
                raise unknown_type(self.name, name, self.types)
        return self._station.throughput([cluster.get(name, 0) for name in self.compute_s])

    def bottleneck(self, cluster: Cluster) -> str:
        """``parameter server`` where one more of the cluster's fastest workers would add less than
        half of what it does alone, else ``compute``: below half, what it is paid for is more
        waiting than work.
        """
        there = [name for name, count in cluster.items() if count]
        if not there:
            return "compute"
        before = self.rate(cluster)
        fastest = min(there, key=self.compute_s.__getitem__)
        added = self.rate({**cluster, fastest: cluster[fastest] + 1}) - before
        return "parameter server" if added < self.rate({fastest: 1}) / 2 else "compute"

    def iterations(self, cluster: Cluster, loss: float) -> float:
        """Always UsageError: how the loss falls is not in such a profile."""
        raise UsageError(
            f"the profile of {self.name} has no loss model, so nothing says when a loss of "
            f"{loss:g} is reached; say --iterations instead"
        )

    def loss_after(self, cluster: Cluster, iterations: float) -> float:
        """Always UsageError, as of `iterations`."""
        raise UsageError(f"the profile of {self.name} has no loss model")


def from_profile(field: Field) -> Queue:
    """The model in a profile with ``model: queue``. UsageError names the line that is wrong."""
    field.only(
        *("model", "name", "source", "error_percent", "error_percent_several_servers"),
        *("update_s", "updates", "server", "instances"),
    )
    field.need("model").text("queue")
    field.need("source").text()
    one, several = field.get("error_percent"), field.get("error_percent_several_servers")
    updates, server = field.get("updates"), field.need("server")
    server.only("instance", "count")
    instances = field.need("instances")
    compute_s: dict[str, float] = {}
    for name, instance in instances.items():
        instance.only("compute_s")
        compute_s[name] = instance.need("compute_s").number("s", above=0)
    if not compute_s:
        instances.wrong("instances is empty, expected compute_s of at least one instance type")
    return Queue(
        name=field.need("name").text(),
        compute_s=compute_s,
        update_s=field.need("update_s").number("s", least=0),
        server_instance=server.need("instance").text(),
        servers=server.need("count").whole(least=1),
        updates=None if updates is None else updates.whole(least=1),
        error_of_one=None if one is None else one.number("%", least=0) / 100,
        error_of_several=None if several is None else several.number("%", least=0) / 100,
    )
