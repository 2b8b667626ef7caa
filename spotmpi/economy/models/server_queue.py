"""A queue at the parameter server: how fast a cluster is when its workers wait for each other.

A worker computes an update (think time Z_k of its instance type), the parameter servers take it in,
the worker goes on: a closed network of one delay and one FIFO station for each server. An update is
split evenly over the servers and visits them one after the other; service is exponential with the
same mean for all types, so the network has a product form, and its throughput can be computed
exactly:

- by mean-value analysis (Reiser and Lavenberg, 1980), a recursion over all clusters up to the one
  asked for, where these are few;
- by an integral over one variable (McKenna and Mitra, 1982) where they are many.

Exponential service is the pessimistic side: service that is more regular makes workers wait less.
`spotmpi.bench.papers.icac19` says how much that is in a measured case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from spotmpi.economy.models import Server
from spotmpi.economy.quantities import Cluster
from spotmpi.economy.reading import Field
from spotmpi.errors import UsageError

__all__ = ["Queue", "from_profile", "throughput"]

_FEW = 1000
"""Population vectors: up to here the recursion takes about a millisecond; the integral always
takes a fraction of one."""
_NEGLIGIBLE = 45.0
"""Where the integrand is below e^-45 of its peak, nothing is lost in 64 bits."""
_PANELS = 24
"""Each of 16 nodes, over some 20 standard deviations: far finer than rounding can show."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def throughput(
    counts: Sequence[int], think_s: Sequence[float], service_s: float, servers: int
) -> float:
    """Updates per second of ``counts[k]`` workers that compute for ``think_s[k]`` each, exactly.

    ``service_s`` is the service time of one update by one server; each of ``servers`` has
    ``service_s / servers`` of it. Without service no worker may have a think time of 0. 0 updates
    without workers. At most about a millisecond, for 100,000 workers as well. Pure.
    """
    there = [(n, z) for n, z in zip(counts, think_s, strict=True) if n]
    if not there:
        return 0.0
    if service_s == 0:
        return sum(n / z for n, z in there)
    few = math.prod(n + 1 for n, _ in there) <= _FEW
    method = _recursion if few else _integral
    return method([n for n, _ in there], [z for _, z in there], service_s, servers)


def _recursion(
    counts: Sequence[int], think_s: Sequence[float], service_s: float, servers: int
) -> float:
    """Mean-value analysis: an update that arrives sees the queue of the cluster without its worker.

    All servers have the same queue at all times of the recursion: one number for each cluster.
    """
    queues: dict[tuple[int, ...], float] = {(0,) * len(counts): 0.0}
    total = 0.0
    for population in product(*(range(n + 1) for n in counts)):
        total = queue = 0.0
        for k, n in enumerate(population):
            if n:
                seen = queues[(*population[:k], n - 1, *population[k + 1 :])]
                response = service_s * (1 + seen)  # of all servers together
                rate = n / (think_s[k] + response)
                total += rate
                queue += rate * response / servers
        queues[population] = queue
    return total


def _integral(
    counts: Sequence[int], think_s: Sequence[float], service_s: float, servers: int
) -> float:
    """The normalising constant of P servers of mean d is proportional to the integral over u > 0 of

        e^-u u^(P-1) product_k (Z_k + d u)^N_k

    and type k's throughput is the constant without one worker by the constant with all: the mean
    of N_k / (Z_k + d u) over that density, which is log-concave: one peak, found by bisection.
    """
    each = service_s / servers
    types = list(zip(counts, think_s, strict=True))

    def height(u: float) -> float:
        power = (servers - 1) * math.log(u) if servers > 1 else 0.0
        return power - u + sum(n * math.log(z + each * u) for n, z in types)

    def slope(u: float) -> float:
        return (servers - 1) / u - 1 + sum(n * each / (z + each * u) for n, z in types)

    most = float(servers + sum(counts))  # the slope is negative here, whatever the think times
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
    waits = [z + each * u for z in think_s]
    heights = (servers - 1) * np.log(u) - u
    rate = np.zeros_like(u)
    for n, wait in zip(counts, waits, strict=True):
        heights += n * np.log(wait)
        rate += n / wait
    density = np.exp(heights - heights.max()) * half[:, None] * _WEIGHTS
    return float((density * rate).sum() / density.sum())


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
    """Service time of one update, in seconds, with one server."""
    server_instance: str
    """The instance type of a parameter server, for its price."""
    servers: int
    updates: int | None = None
    """Updates of the whole training, where the profile says so."""
    error: float | None = None

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
        return throughput(*self._workers(cluster), self.update_s, self.servers)

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

    def _workers(self, cluster: Cluster) -> tuple[list[int], list[float]]:
        for name, count in cluster.items():
            if count and name not in self.compute_s:
                raise UsageError(
                    f"the profile of {self.name} does not know instance type {name!r}; "
                    f"it knows {', '.join(self.compute_s)}"
                )
        there = {name: count for name, count in cluster.items() if count}
        return list(there.values()), [self.compute_s[name] for name in there]


def from_profile(field: Field) -> Queue:
    """The model in a profile with ``model: queue``. UsageError names the line that is wrong."""
    field.only(
        "model", "name", "source", "error_percent", "update_s", "updates", "server", "instances"
    )
    field.need("model").text("queue")
    field.need("source").text()
    error, updates, server = field.get("error_percent"), field.get("updates"), field.need("server")
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
        error=None if error is None else error.number("%", least=0) / 100,
    )
