"""Operators that average models: each worker moves its own parameters, and rounds bring the models
together.

In the equations w_i are the parameters of worker i, n_i the samples that it used since the last
round, and m = sum(n_i w_i) / sum(n_i) the mean of the models. A round tells a worker nothing of the
other models but this mean (with `Broadcast`: one of the models).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from spotmpi.arrays.backend import Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import State
from spotmpi.operators.operator import Kind, Meeting, Stage
from spotmpi.operators.step import Bring, Step, Weighted
from spotmpi.optimizers.numbers import whole, within

__all__ = ["Broadcast", "ElasticAverage", "ModelAverage", "OuterUpdate", "SlowWeights"]


class ModelAverage(Meeting):
    """All workers go on with the mean of their models::

    w_i <- m
    """

    carries: ClassVar[Kind] = "models"

    def contribute(self, step: Step) -> Bring:
        """Bring n_i w_i."""
        return _models(step, step.now.share)

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Take the mean."""
        _assign(step.params, sums, 1.0 / step.weight)


class Broadcast(Meeting):
    """All workers go on with the model of one worker. It is the first, in the order of the
    membership, that was dealt samples since the last round::

        w_i <- w_1

    What the other workers did to their models since the last round is dropped, but their samples
    count as used. If that worker is lost before any other has its model, the next one takes its
    place.
    """

    carries: ClassVar[Kind] = "models"
    alone: ClassVar[bool] = True

    def contribute(self, step: Step) -> Bring:
        """Bring the parameters."""
        return _models(step, 1.0)

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Take the parameters of the one worker."""
        # Some planes and workers added the model to zeros, which makes -0.0 into 0.0: do it on all.
        fill(step.params, 0)
        for w, total in zip(step.params, sums, strict=True):
            kernels_for(w).accumulate(w, total)


@dataclass(frozen=True)
class ElasticAverage(Meeting):
    """Workers keep their own models. A central model z is pulled to their mean, and they are pulled
    to z. p workers take part::

        v   <- momentum * v + pull * (m - z)
        w_i <- w_i - pull / p * (w_i - z)
        z   <- z + v
    """

    carries: ClassVar[Kind] = "models"
    centre: ClassVar[str] = "centre"
    """z: all workers agree on it."""
    pull: float = 0.9
    momentum: float = 0.0

    def __post_init__(self) -> None:
        within("pull", self.pull, 0, 1, above=True)
        within("momentum", self.momentum, 0, 1, below=True)

    @property
    def equalises(self) -> bool:
        """False: each worker keeps its own w_i."""
        return False

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return z and v."""
        return {name: State(layout.allocate()) for name in ("centre", "centre velocity")}

    def contribute(self, step: Step) -> Bring:
        """Bring n_i w_i."""
        return _models(step, step.now.share)

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Move v, w_i and z, in four passes over the parameters."""
        pull, own = self.pull, self.pull / step.active
        flats = step.state["centre"], step.state["centre velocity"], step.params, sums
        for z, v, w, total in zip(*flats, strict=True):
            kernels = kernels_for(z)
            kernels.blend(v, total, pull / step.weight, self.momentum)
            kernels.blend(v, z, -pull, 1.0)
            kernels.blend(w, z, own, 1.0 - own)
            kernels.accumulate(z, v)


@dataclass(frozen=True)
class OuterUpdate(Meeting):
    """The workers' mean change since the last round is the gradient of an outer optimizer, with
    Nesterov's momentum. a is the model after the last round::

        d   <- sum(n_i (a - w_i)) / sum(n_i)
        v   <- momentum * v + d
        a   <- a - rate * (d + momentum * v)
        w_i <- mix * w_i + (1 - mix) * a

    ``fragments``: the number of parts of the model that take turns. Each round carries one of them.
    The parts are made of the buckets in which gradients would travel (``bucket_mb``). ``delay``: d
    is made this many steps before the round ends, and travels during these steps. ``mix``: the
    share of w_i that remains. (Douillard et al., "Streaming DiLoCo", 2025.)
    """

    carries: ClassVar[Kind] = "models"
    centre: ClassVar[str] = "anchor"
    """a: all workers agree on it."""
    rate: float = 0.7
    momentum: float = 0.9
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        within("rate", self.rate, 0, 10, above=True)
        within("momentum", self.momentum, 0, 1, below=True)
        within("mix", self.mix, 0, 1, below=True)
        whole("fragments", self.fragments, 1)
        whole("delay", self.delay, 0)

    @property
    def equalises(self) -> bool:
        """False if some of each w_i remains, or the round carries only a part of it."""
        return self.mix == 0 and self.fragments == 1

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return a and v."""
        return {name: State(layout.allocate()) for name in ("anchor", "outer velocity")}

    def contribute(self, step: Step) -> Bring:
        """Bring n_i (a - w_i). A narrow format harms these small sums less than models."""

        def bring(flats: Sequence[Buffer]) -> None:
            share = step.now.share
            if not share:
                fill(flats, 0)
                return
            for flat, number in zip(flats, step.carried(self.fragments), strict=True):
                a, w = step.state["anchor"][number], step.params[number]
                kernels_for(flat).scaled_sum(flat, [a, w], [share, -share])

        return bring

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Move v, a and w_i, in three passes over what the round carries."""
        scale = 1.0 / step.weight
        for number, total in zip(step.carried(self.fragments), sums, strict=True):
            a, v = step.state["anchor"][number], step.state["outer velocity"][number]
            kernels = kernels_for(a)
            kernels.momentum(a, v, total, self.rate * self.momentum, self.momentum, scale)
            kernels.sgd(a, total, self.rate, scale)
            kernels.blend(step.params[number], a, 1.0 - self.mix, self.mix)


@dataclass(frozen=True)
class SlowWeights(Stage):
    """Parameters w go back to slow weights s, which follow them::

    s <- s + mix * (w - s)
    w <- s
    """

    moves: ClassVar[bool] = True
    works_on: ClassVar[Kind] = "models"
    """All workers must have the same s."""
    mix: float = 0.5

    def __post_init__(self) -> None:
        within("mix", self.mix, 0, 1, above=True)

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return s."""
        return {"slow": State(layout.allocate())}

    def start(self, step: Step) -> None:
        """Set s to the parameters with which training begins."""
        _assign(step.state["slow"], step.params, 1.0)

    def run(self, step: Step) -> None:
        """Move s and w, in two passes over the parameters."""
        for slow, w in zip(step.state["slow"], step.params, strict=True):
            kernels_for(slow).blend(slow, w, self.mix, 1.0 - self.mix)
        _assign(step.params, step.state["slow"], 1.0)


def _models(step: Step, weight: float) -> Bring:
    """Return what brings the parameters, multiplied by ``weight``."""

    def pack(flats: Sequence[Buffer], times: float) -> None:
        _assign(flats, step.params, times)

    return Weighted(pack, weight)


def _assign(flats: Sequence[Buffer], values: Sequence[Buffer], scale: float) -> None:
    """Set flats = scale * values."""
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], scale)
