"""The ring model: how long a step of this project's own runtime takes, by what it is made of.

A step is synchronous: every worker one batch, then one all-reduce. On a host with ``cores`` cores
that runs ``w`` workers, beside ``h - 1`` other hosts::

    seconds = compute_s * b                             b = ceil(w / cores) batches on a core
            + crowding_s * (b - 1)                      and the changes between them
            + exchange_s_per_worker * (w - 1)           the all-reduce within the host
            + wire(h) * gradient_mb / bandwidth         the all-reduce between hosts
            + hops(h) * latency_s

- *compute_s* holds all that a worker does by itself: the script, Python, the optimizer. All wait
  for the core that has most to do: 3 workers on 2 cores are as slow as 4.
- *crowding_s* is what a change of process and cold caches cost, in the whole of a step.
- *exchange_s_per_worker* is linear because the workers of a host pass the gradient through its
  memory: ``MPI_Allreduce`` of 102 MB takes 32, 86 and 182 ms on 2, 4 and 8 workers. It also holds
  what a worker loses in threads, which is linear too: ``spotmpi run`` gives each of ``w`` workers
  ``cores / w`` of them, so what can use them takes ``w / cores`` of its time on one.
- *wire* and *hops* are those of a ring: each of n hosts sends and gets 2 (n - 1) / n of the
  gradient, in 2 (n - 1) turns (`protocol.host_ring`). What is less than 4 MB may go another way, in
  fewer of them.
- The hosts of a cluster wait for the slowest: the longest of each part counts.

`calibration` fits these numbers, and says how far they are off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotmpi.economy.models import unknown_type
from spotmpi.economy.quantities import Cluster
from spotmpi.economy.reading import Field
from spotmpi.errors import UsageError

__all__ = ["HostType", "Load", "RingLoss", "Ring", "from_profile", "load", "to_yaml"]


class Load(NamedTuple):
    """What a step does on one host, in multiples of what it costs there: see the formula above."""

    compute: float
    exchange: float
    crowding: float
    wire_mb: float
    hops: float


def load(workers: int, cores: int, hosts: int, gradient_mb: float) -> Load:
    """The load of a step, with ``workers`` on each of ``hosts`` hosts of ``cores`` cores."""
    batches = math.ceil(workers / cores)
    return Load(
        compute=float(batches),
        exchange=workers - 1.0,
        crowding=batches - 1.0,
        wire_mb=_wire(hosts) * gradient_mb,
        hops=_hops(hosts),
    )


def _wire(hosts: int) -> float:
    """Gradients that pass the link of a host, one after the other."""
    return 2 * (hosts - 1) / hosts


def _hops(hosts: int) -> float:
    """Messages that wait for each other."""
    return 2.0 * (hosts - 1)


@dataclass(frozen=True)
class HostType:
    """One type of instance, as it trains this script; numbers are not negative."""

    workers: int
    """For each host."""
    cores: int
    compute_s: float
    exchange_s_per_worker: float | None
    """None: nobody knows, and ``compute_s`` holds the exchange of ``workers`` workers."""
    crowding_s: float = 0.0
    bandwidth_mbps: float | None = None
    """None: no run had several hosts, and nobody has said it."""
    latency_s: float = 0.0

    def exchange(self, workers: int) -> float:
        """Seconds of a further worker; UsageError if they are needed and not known."""
        if self.exchange_s_per_worker is not None:
            return self.exchange_s_per_worker
        if workers != self.workers:
            raise UsageError(
                f"nobody has measured what a further worker on a host costs: the profile knows "
                f"{self.workers} for each host, and {workers} are asked for; profile a run with "
                "another number of workers as well"
            )
        return 0.0

    def seconds_per_mb(self) -> float:
        """Of what a host sends; UsageError if it is not known."""
        if self.bandwidth_mbps is None:
            raise UsageError(
                "nobody has measured a run on several hosts; add bandwidth_mbps (MB/s of a host) "
                "and latency_s to the instance in the profile, or profile such a run"
            )
        return 1 / self.bandwidth_mbps

    def step(self, workers: int, hosts: int, gradient_mb: float) -> float:
        """Seconds of a step with ``workers`` on each of ``hosts`` hosts of this type alone."""
        return sum(_parts([(self, workers)], hosts, gradient_mb).values())


@dataclass(frozen=True)
class RingLoss:
    """loss(j) = g3 / (j + g1) + g5 after j iterations of a run with so many ``workers``.

    More workers average more batches in a step, and a step is worth less than so many times as
    much: of n workers a loss needs (n + noise) / (workers + noise) times the iterations, where
    ``noise`` is the gradient noise scale in batches of one worker (McCandlish et al., An Empirical
    Model of Large-Batch Training, 2018: steps = least (1 + noise / n)).
    """

    g1: float
    g3: float
    g5: float
    workers: float = 1.0
    noise: float | None = None
    """None: nobody knows, and all iterations count alike, which flatters large clusters."""

    def at(self, iterations: float, workers: float | None = None) -> float:
        """The loss after so many iterations of that many workers (None: as in the fitted run)."""
        return self.g3 / (iterations / self.factor(workers) + self.g1) + self.g5

    def factor(self, workers: float | None) -> float:
        """How many times the iterations that many workers need."""
        if workers is None or self.noise is None:
            return 1.0
        return (workers + self.noise) / (self.workers + self.noise)

    def iterations(self, loss: float, workers: float | None = None) -> float:
        """Iterations until a loss; UsageError at or below the floor ``g5``."""
        if not loss > self.g5:
            raise UsageError(
                f"a loss of {loss:g} is never reached: the curve of the profile tends to "
                f"{self.g5:g}; ask for more than that"
            )
        return self.factor(workers) * max(0.0, self.g3 / (loss - self.g5) - self.g1)


class Ring:
    """A training on spotmpi itself; `models.Model`. A cluster counts hosts, not workers."""

    def __init__(
        self,
        name: str,
        hosts: Mapping[str, HostType],
        gradient_mb: float,
        *,
        error: float | None = None,
        loss: RingLoss | None = None,
    ) -> None:
        self._name = name
        self._hosts = dict(hosts)
        self._gradient_mb = gradient_mb
        self._error = error
        self._loss = loss

    @property
    def name(self) -> str:
        """What is trained, for people."""
        return self._name

    @property
    def types(self) -> Sequence[str]:
        """The instance types that it knows, in the order of its profile."""
        return list(self._hosts)

    @property
    def error(self) -> float | None:
        """How far a run that was kept back was off, at most; None: nobody has compared."""
        return self._error

    @property
    def server(self) -> None:
        """None: workers need nobody else."""

    @property
    def length(self) -> None:
        """Not known: a profile is of some steps."""

    @property
    def hosts(self) -> Mapping[str, HostType]:
        """What it knows of each type."""
        return self._hosts

    @property
    def gradient_mb(self) -> float:
        """MB that each worker brings to a step."""
        return self._gradient_mb

    @property
    def loss(self) -> RingLoss | None:
        """The curve, if the profile has one."""
        return self._loss

    def rate(self, cluster: Cluster) -> float:
        """Iterations (batches of one worker) per second; 0 of an empty cluster. UsageError for
        a type that it does not know, or several hosts whose bandwidth is not known."""
        there = self._there(cluster)
        if not there:
            return 0.0
        workers = sum(self._hosts[name].workers * count for name, count in there.items())
        return workers / sum(self._step(there).values())

    def bottleneck(self, cluster: Cluster) -> str:
        """``compute``, ``cores``, ``memory bandwidth within a host`` or ``network``: the largest
        part of a step."""
        there = self._there(cluster)
        if not there:
            return "compute"
        parts = self._step(there)
        return max(parts, key=lambda part: parts[part])

    def iterations(self, cluster: Cluster, loss: float) -> float:
        """Iterations until the loss, more of them where more workers make a batch larger, as far
        as the profile knows the noise of the gradient."""
        return self._curve().iterations(loss, self._workers(cluster))

    def loss_after(self, cluster: Cluster, iterations: float) -> float:
        """The loss after so many iterations, as above."""
        return self._curve().at(iterations, self._workers(cluster))

    def _workers(self, cluster: Cluster) -> float | None:
        there = self._there(cluster)
        return float(sum(self._hosts[name].workers * n for name, n in there.items())) or None

    def _curve(self) -> RingLoss:
        if self._loss is None:
            raise UsageError(
                f"the profile of {self._name} has no loss; profile a trace whose script gives "
                "trainer.step(grads, loss=...), or ask for a number of iterations"
            )
        return self._loss

    def _there(self, cluster: Cluster) -> Cluster:
        for name in cluster:
            if name not in self._hosts:
                raise unknown_type(self._name, name, self.types)
        return {name: count for name, count in cluster.items() if count}

    def _step(self, there: Cluster) -> dict[str, float]:
        kinds = [(self._hosts[name], self._hosts[name].workers) for name in there]
        return _parts(kinds, sum(there.values()), self._gradient_mb)


def _parts(
    kinds: Sequence[tuple[HostType, int]], hosts: int, gradient_mb: float
) -> dict[str, float]:
    """Seconds of a step by what they are spent on; the slowest type decides each of them."""
    batches, exchanges, wires = [], [], [0.0]
    for host, workers in kinds:
        one = load(workers, host.cores, hosts, gradient_mb)
        all_of_it = one.compute * host.compute_s + one.crowding * host.crowding_s
        batches.append((all_of_it, host.compute_s))
        exchanges.append(one.exchange * host.exchange(workers))
        if hosts > 1:
            wires.append(one.wire_mb * host.seconds_per_mb() + one.hops * host.latency_s)
    slowest, alone = max(batches)
    return {
        "compute": alone,
        "cores": slowest - alone,
        "memory bandwidth within a host": max(exchanges),
        "network": max(wires),
    }


def from_profile(field: Field) -> Ring:
    """The model of a profile whose ``model`` is ``ring``. UsageError names the line."""
    field.only(
        *("model", "name", "source", "error_percent", "gradient_mb", "strategy", "loss"),
        "instances",
    )
    field.need("model").text("ring")
    if (strategy := field.get("strategy")) is not None:
        strategy.text("SSGD")
    error = field.get("error_percent")
    curve = field.get("loss")
    instances = field.need("instances")
    hosts = {name: _host(instance) for name, instance in instances.items()}
    if not hosts:
        instances.wrong("instances is empty, expected at least one type with its numbers")
    return Ring(
        field.need("name").text(),
        hosts,
        field.need("gradient_mb").number("MB", above=0),
        error=None if error is None else error.number("%", least=0) / 100,
        loss=None if curve is None else _loss(curve),
    )


def _host(field: Field) -> HostType:
    seconds = ("compute_s", "exchange_s_per_worker", "crowding_s", "latency_s")
    field.only("workers_per_host", "cores", "bandwidth_mbps", *seconds)

    def optional(name: str) -> float | None:
        found = field.get(name)
        return None if found is None else found.number("s", least=0)

    bandwidth = field.get("bandwidth_mbps")
    return HostType(
        workers=field.need("workers_per_host").whole(least=1),
        cores=field.need("cores").whole(least=1),
        compute_s=field.need("compute_s").number("s", above=0),
        exchange_s_per_worker=optional("exchange_s_per_worker"),
        crowding_s=optional("crowding_s") or 0.0,
        bandwidth_mbps=None if bandwidth is None else bandwidth.number("MB/s", above=0),
        latency_s=optional("latency_s") or 0.0,
    )


def _loss(field: Field) -> RingLoss:
    field.only("g1", "g3", "g5", "workers", "noise")
    workers, noise = field.get("workers"), field.get("noise")
    return RingLoss(
        g1=field.need("g1").number(above=0),
        g3=field.need("g3").number(least=0),
        g5=field.need("g5").number(),
        workers=1.0 if workers is None else workers.number(above=0),
        noise=None if noise is None else noise.number("batches", least=0),
    )


def to_yaml(ring: Ring, source: str) -> str:
    """The profile as a file that `from_profile` reads back; six digits. ``source``: whence."""
    lines = [
        "model: ring",
        f"name: {_quoted(ring.name)}",
        f"source: {_quoted(source)}",
    ]
    if ring.error is None:
        lines.append("# no error_percent: nobody has compared a prediction with a run")
    else:
        lines.append(f"error_percent: {100 * ring.error:.6g}  # of runs that were kept back")
    lines += [f"gradient_mb: {ring.gradient_mb:.6g}", "strategy: SSGD"]
    if ring.loss is not None:
        curve = ring.loss
        numbers = f"g1: {curve.g1:.6g}, g3: {curve.g3:.6g}, g5: {curve.g5:.6g}"
        numbers += f", workers: {curve.workers:.6g}"
        if curve.noise is None:
            lines.append("# no noise: all batches count alike, however many workers average them")
        else:
            numbers += f", noise: {curve.noise:.6g}"
        lines.append(f"loss: {{{numbers}}}")
    lines.append("instances:")
    for name, host in ring.hosts.items():
        lines += [f"  {_quoted(name)}:", *(f"    {line}" for line in _lines(host))]
    return "\n".join(lines) + "\n"


def _lines(host: HostType) -> list[str]:
    lines = [
        f"workers_per_host: {host.workers}",
        f"cores: {host.cores}",
        f"compute_s: {host.compute_s:.6g}",
    ]
    if host.exchange_s_per_worker is None:
        lines.append("# no exchange_s_per_worker: all runs had the same number of workers")
    else:
        lines.append(f"exchange_s_per_worker: {host.exchange_s_per_worker:.6g}")
    lines.append(f"crowding_s: {host.crowding_s:.6g}")
    if host.bandwidth_mbps is None:
        lines.append("# no run had several hosts: for that, add bandwidth_mbps and latency_s")
    else:
        lines.append(f"bandwidth_mbps: {host.bandwidth_mbps:.6g}")
        lines.append(f"latency_s: {host.latency_s:.6g}")
    return lines


def _quoted(text: str) -> str:
    """A YAML text, whatever is in it: a file's name may hold anything."""
    plain = "".join(
        character
        if character.isprintable() and character not in '"\\'
        else "?"
        if "\ud800" <= character <= "\udfff"
        else f"\\U{ord(character):08x}"
        for character in text
    )
    return f'"{plain}"'
