"""spotDNN's analytic model of asynchronous training with a parameter server.

Shang, Xu, Bai, Chen, Zhou, Liu: "spotDNN: Provisioning Spot Instances for Predictable Distributed
DNN Training in the Cloud", IWQoS 2023. Worker *i* of *n* takes T_i seconds for an iteration::

    T_i    = Tcomm_i + Tcomp_i
    Tcomm  = 2 S / Bwk + 2 gpus S / Bpcie
    Tcomp  = gpus batch / speed - 2 S / Breq - 2 gpus S / Bpcie     (speed is measured end to end)
    Bwk    = P Bps / n + (1 - P) Breq   if Breq > Bps / n,  else Breq
    P      = a1 sqrt(n) + b1, kept within 0 and 1: how likely workers meet at the server's network

    Texp   = 1 / sum(1 / T_i)           seconds from one iteration of anybody to the next
    v      = sum(b_i / T_i),  bw = v Texp,  b_i = gpus batch
    R      = sqrt((w_1 - 1)^2 + w_2^2 + ... + w_n^2),  w_i = (b_i / T_i) / v,  1 the fastest
    loss   = (g2 bw + g3) sqrt((R + g4) n) / (j + g1) + g5          after j iterations
    T      = j Texp

The published coefficients leave R out: with ``g4 = None`` the root is sqrt(n). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spotmpi.economy.models import Server, unknown_type
from spotmpi.economy.quantities import Cluster
from spotmpi.economy.reading import Field
from spotmpi.errors import UsageError

__all__ = [
    "Contention",
    "Instance",
    "LossCoefficients",
    "SpotDnn",
    "batch_that_fits",
    "from_profile",
    "unevenness",
]


@dataclass(frozen=True)
class Instance:
    """One type: its GPUs, its speed in samples per second measured end to end, its batch."""

    gpus: int
    speed: float
    batch_per_gpu: int

    @property
    def batch(self) -> int:
        """Samples in an iteration of this worker."""
        return self.gpus * self.batch_per_gpu


@dataclass(frozen=True)
class Contention:
    """The coefficients of P, a1 > 0."""

    a1: float
    b1: float

    def probability(self, workers: int) -> float:
        """P, that workers meet at the server's network."""
        return min(1.0, max(0.0, self.a1 * math.sqrt(workers) + self.b1))


@dataclass(frozen=True)
class LossCoefficients:
    """The coefficients of the loss; g5 is the floor that it never reaches."""

    g1: float
    g2: float
    g3: float
    g4: float | None
    g5: float


class _Equal(NamedTuple):
    """The workers of one type."""

    number: int
    seconds: float
    """T_i"""
    batch: int


@dataclass(frozen=True)
class SpotDnn:
    """A profile in spotDNN's sense, and what follows from it. A `models.Model`."""

    name: str
    instances: Mapping[str, Instance]
    gradient_mb: float
    """S"""
    required_mbps: float
    """Breq: what a worker alone takes of the server's network."""
    server_mbps: float
    """Bps"""
    pcie_mbps: float
    contention: Contention
    loss: LossCoefficients
    server: Server | None = None
    error: float | None = None

    @property
    def length(self) -> None:
        """Not known, as `models.Model` has it: it trains to a loss."""

    @property
    def types(self) -> Sequence[str]:
        """The instance types, as `models.Model` has it."""
        return tuple(self.instances)

    def bandwidth(self, workers: int) -> float:
        """Bwk, MB/s: what each of n workers gets of the server's network."""
        share = self.server_mbps / workers
        if self.required_mbps <= share:
            return self.required_mbps
        meet = self.contention.probability(workers)
        return meet * share + (1 - meet) * self.required_mbps

    def seconds(self, name: str, workers: int) -> float:
        """T_i: an iteration of one worker of this type, among ``workers`` in all."""
        instance = self._instance(name)
        pcie = 2 * instance.gpus * self.gradient_mb / self.pcie_mbps
        communication = 2 * self.gradient_mb / self.bandwidth(workers) + pcie
        alone = 2 * self.gradient_mb / self.required_mbps + pcie
        return communication + instance.batch / instance.speed - alone

    def rate(self, cluster: Cluster) -> float:
        """1 / Texp, as `models.Model` has it."""
        return sum(worker.number / worker.seconds for worker in self._workers(cluster))

    def weighted_batch(self, cluster: Cluster) -> float:
        """bw: samples in an iteration, weighted by how often who makes one."""
        workers = self._workers(cluster)
        speed = sum(worker.number * worker.batch / worker.seconds for worker in workers)
        return speed / sum(worker.number / worker.seconds for worker in workers)

    def unevenness(self, cluster: Cluster) -> float:
        """R: 0 for one worker, near 1 for many."""
        workers = self._workers(cluster)
        return unevenness([(worker.number, worker.batch / worker.seconds) for worker in workers])

    def loss_after(self, cluster: Cluster, iterations: float) -> float:
        """The loss after j iterations, as `models.Model` has it."""
        return self._numerator(cluster) / (iterations + self.loss.g1) + self.loss.g5

    def iterations(self, cluster: Cluster, loss: float) -> float:
        """j until the loss is reached, as `models.Model` has it."""
        self._above_floor(loss)
        return max(0.0, self._numerator(cluster) / (loss - self.loss.g5) - self.loss.g1)

    def bottleneck(self, cluster: Cluster) -> str:
        """What takes most of the time that an iteration takes, as `models.Model` has it."""
        workers = sum(cluster.values())
        shares = {"compute": 0.0, "parameter server's network": 0.0, "PCIe": 0.0}
        for name, count in cluster.items():
            seconds = self.seconds(name, workers)
            weight = count / seconds
            network = 2 * self.gradient_mb / self.bandwidth(workers)
            pcie = 2 * self._instance(name).gpus * self.gradient_mb / self.pcie_mbps
            shares["parameter server's network"] += weight * network
            shares["PCIe"] += weight * pcie
            shares["compute"] += weight * (seconds - network - pcie)
        return max(shares, key=lambda name: shares[name])

    def most_workers(self) -> int:
        """n_upper: from here on all workers meet at the server, and more of them bring little."""
        return math.floor(((1 - self.contention.b1) / self.contention.a1) ** 2)

    def fewest_workers(self, types: Sequence[str], loss: float, deadline_s: float) -> int:
        """n_lower: fewer workers, of whichever of these types, miss the deadline.

        The paper takes the smallest batch. b (g2 b + g3) is concave where g2 < 0, so that the
        largest batch may need even fewer: the bound is the lower of the two.
        """
        self._above_floor(loss)
        root = 1.0 if self.loss.g4 is None else math.sqrt(self.loss.g4)
        instances = [self._instance(name) for name in types]
        fastest = max(
            one.batch / self.seconds(name, 1) for name, one in zip(types, instances, strict=True)
        )
        batches = (min(one.batch for one in instances), max(one.batch for one in instances))
        samples = min(
            b * ((self.loss.g2 * b + self.loss.g3) * root / (loss - self.loss.g5) - self.loss.g1)
            for b in batches
        )
        return max(1, math.ceil(samples / (fastest * deadline_s)))

    def _numerator(self, cluster: Cluster) -> float:
        scale = self.loss.g2 * self.weighted_batch(cluster) + self.loss.g3
        if scale <= 0:
            raise UsageError(
                f"the loss model of {self.name} does not hold for batches of "
                f"{self.weighted_batch(cluster):.0f} samples, where g2 bw + g3 is below 0"
            )
        workers = sum(cluster.values())
        if self.loss.g4 is None:
            return scale * math.sqrt(workers)
        return scale * math.sqrt((self.unevenness(cluster) + self.loss.g4) * workers)

    def _above_floor(self, loss: float) -> None:
        if loss <= self.loss.g5:
            raise UsageError(
                f"a loss of {loss:g} is never reached: the floor of {self.name} is "
                f"{self.loss.g5:g}; ask for more than that"
            )

    def _workers(self, cluster: Cluster) -> list[_Equal]:
        total = sum(cluster.values())
        return [
            _Equal(count, self.seconds(name, total), self._instance(name).batch)
            for name, count in cluster.items()
            if count
        ]

    def _instance(self, name: str) -> Instance:
        found = self.instances.get(name)
        if found is None:
            raise unknown_type(self.name, name, self.types)
        return found


def unevenness(speeds: Sequence[tuple[int, float]]) -> float:
    """R of so many workers of each speed (samples per second): how far their shares of the updates
    are from those of one worker that does them all. Pure."""
    total = sum(count * speed for count, speed in speeds)
    shares = [(count, speed / total) for count, speed in speeds]
    fastest = max(share for _, share in shares)
    squares = sum(count * share**2 for count, share in shares)
    return math.sqrt(max(0.0, squares - fastest**2) + (fastest - 1) ** 2)


_LARGEST = 1e9
"""Of a size or a speed: beyond it a file has a slip, and arithmetic no digits left."""
_KEYS = (
    "model name source error_percent gradient_mb required_mbps server_mbps pcie_mbps contention "
    "loss batch server instances"
).split()


def batch_that_fits(memory_gb: float, a2: float, b2: float) -> int:
    """The batch per GPU: the power of two that ``a2 mem + b2`` allows."""
    room = a2 * memory_gb + b2
    if room < 1:
        raise UsageError(f"a GPU with {memory_gb:g} GB has no room for a batch of 1")
    return 1 << math.floor(math.log2(room))


def from_profile(field: Field) -> SpotDnn:
    """The model that a profile (``model: spotdnn``) holds. UsageError names a mistake's line."""
    field.only(*_KEYS)
    contention, loss = field.need("contention"), field.need("loss")
    contention.only("a1", "b1")
    loss.only("g1", "g2", "g3", "g4", "g5")
    g4 = loss.get("g4")
    error, server = field.get("error_percent"), field.get("server")
    model = SpotDnn(
        name=field.need("name").text(),
        instances={
            name: _instance(one, field.get("batch"))
            for name, one in field.need("instances").items()
        },
        gradient_mb=field.need("gradient_mb").number("MB", above=0, most=_LARGEST),
        required_mbps=field.need("required_mbps").number("MB/s", above=0, most=_LARGEST),
        server_mbps=field.need("server_mbps").number("MB/s", above=0, most=_LARGEST),
        pcie_mbps=field.need("pcie_mbps").number("MB/s", above=0, most=_LARGEST),
        contention=Contention(
            contention.need("a1").number(above=0), contention.need("b1").number(most=1)
        ),
        loss=LossCoefficients(
            loss.need("g1").number(),
            loss.need("g2").number(),
            loss.need("g3").number(),
            None if g4 is None else g4.number(least=0),
            loss.need("g5").number(),
        ),
        server=None if server is None else _server(server),
        error=None if error is None else error.number("%", least=0) / 100,
    )
    if not model.instances:
        field.need("instances").wrong("instances is empty, expected at least one type")
    for name, one in field.need("instances").items():
        if model.seconds(name, 1) <= 2 * model.gradient_mb / model.required_mbps:
            one.wrong(
                f"{name} has no time left to compute: {model.instances[name].batch} samples at "
                f"{model.instances[name].speed:g} a second are over before a gradient is sent"
            )
    return model


def _server(field: Field) -> Server:
    field.only("instance", "count")
    count = field.get("count")
    return Server(field.need("instance").text(), 1 if count is None else count.whole(least=1))


def _instance(field: Field, batch: Field | None) -> Instance:
    field.only("gpus", "samples_per_second", "batch_per_gpu", "gpu_memory_gb")
    gpus = field.need("gpus").whole(least=1)
    speed = field.need("samples_per_second").number("samples/s", above=0, most=_LARGEST)
    if (given := field.get("batch_per_gpu")) is not None:
        return Instance(gpus, speed, given.whole(least=1))
    if batch is None:
        field.wrong(f"{field.name} has no batch_per_gpu, and there is no batch to compute it from")
    batch.only("a2", "b2")
    memory = field.need("gpu_memory_gb")
    try:
        size = batch_that_fits(
            memory.number("GB", above=0), batch.need("a2").number(), batch.need("b2").number()
        )
    except UsageError as error:
        memory.wrong(str(error))
    return Instance(gpus, speed, size)
