"""Operators that average models: workers move their own parameters, and meet now and then.

In the equations w_i are the parameters of worker i, n_i the samples that it used since the last
round, and m = sum(n_i w_i) / sum(n_i) their mean, which is all that a round carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotmpi.arrays.backend import Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import Fetch, Publish
from spotmpi.operators.stages import Contribute, Operator, Run, Step, Weighted, fragment
from spotmpi.optimizers.numbers import finite, whole

__all__ = ["ElasticAverage", "ModelAverage", "OuterUpdate", "PairAverage", "SlowWeights"]


class _Meeting(Operator):
    """It has a round."""

    @property
    def collective(self) -> bool:
        """It has."""
        return True


class ModelAverage(_Meeting):
    """All workers go on with the mean of their models::

    w_i <- m
    """

    def run(self, step: Step) -> Run:
        """The parameters go to the round, and come back from it."""
        sums = yield _models(step)
        _assign(step.params, sums, 1.0 / step.weight)


class PairAverage(Operator):
    """In each step a worker goes on with the mean of its model and another worker's, j, which is
    drawn at random::

        w_i <- (w_i + w_j) / 2

    Nobody waits: w_j is the latest model of j that has come to this worker, and if none has come
    since the last step, nothing is averaged. So a slow worker holds nobody back, and one that is
    lost costs the others nothing. What comes of it is shown to the others in the same step.
    """

    @property
    def paced(self) -> bool:
        """Workers need not keep step."""
        return True

    def run(self, step: Step) -> Run:
        """In the order: fetch, average, publish."""
        others = step.now.others
        if not (others and step.now.samples):
            return
        found = yield Fetch(others[int(step.now.chance * len(others))])
        if found is not None:
            for w, other in zip(step.params, found.model, strict=True):
                kernels_for(w).blend(w, other, 0.5, 0.5)
        yield Publish(step.params)


@dataclass(frozen=True)
class ElasticAverage(_Meeting):
    """Workers keep models of their own, and a model z of all is pulled to their mean, as they are
    pulled to it; p workers took part::

        v   <- momentum * v + pull * (m - z)
        w_i <- w_i - pull / p * (w_i - z)
        z   <- z + v
    """

    pull: float = 0.9
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _within("pull", self.pull, 0, 1, above=True)
        _within("momentum", self.momentum, 0, 1, below=True)

    @property
    def centre(self) -> str:
        """It is z that all agree on."""
        return "centre"

    def init(self, layout: Layout) -> Mapping[str, State]:
        """z and v."""
        return {name: State(layout.allocate()) for name in ("centre", "centre velocity")}

    def run(self, step: Step) -> Run:
        """In four passes over the parameters."""
        sums = yield _models(step)
        pull, own = self.pull, self.pull / step.active
        flats = step.state["centre"], step.state["centre velocity"], step.params, sums
        for z, v, w, total in zip(*flats, strict=True):
            kernels = kernels_for(z)
            kernels.blend(v, total, pull / step.weight, self.momentum)
            kernels.blend(v, z, -pull, 1.0)
            kernels.blend(w, z, own, 1.0 - own)
            kernels.accumulate(z, v)


@dataclass(frozen=True)
class OuterUpdate(_Meeting):
    """What workers have come to between them since the last round is the gradient of an outer
    optimizer, with Nesterov's momentum; a is the model after the last round::

        d   <- sum(n_i (a - w_i)) / sum(n_i)
        v   <- momentum * v + d
        a   <- a - rate * (d + momentum * v)
        w_i <- mix * w_i + (1 - mix) * a

    ``fragments``: each round does so with one of so many parts of the model, which take turns: the
    buckets that gradients would travel in (``bucket_mb``). ``delay``: d is made so many steps
    before the round ends, and travels while they are taken; ``mix`` is what remains of them.
    (Douillard et al., "Streaming DiLoCo", 2025.)
    """

    rate: float = 0.7
    momentum: float = 0.9
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        _within("rate", self.rate, 0, 10, above=True)
        _within("momentum", self.momentum, 0, 1, below=True)
        _within("mix", self.mix, 0, 1, below=True)
        whole("fragments", self.fragments, 1)
        whole("delay", self.delay, 0)

    @property
    def centre(self) -> str:
        """It is a that all agree on."""
        return "anchor"

    @property
    def ahead(self) -> int:
        """As many as it says."""
        return self.delay

    def init(self, layout: Layout) -> Mapping[str, State]:
        """a and v; and what is under way."""
        found = {name: State(layout.allocate()) for name in ("anchor", "outer velocity")}
        if self.delay:
            found["sent"] = State(layout.allocate(), Scope.LOCAL)
        return found

    def early(self, step: Step) -> Contribute | None:
        """What is under way."""
        return self._contribute(step) if self.delay else None

    def run(self, step: Step) -> Run:
        """The sums are of a - w_i, which is small: it bears a narrow wire better than models do."""
        if self.delay and step.now.sends:
            self._subtract(step, self._parts(step, "sent"))
        if not step.now.last:
            return
        sums = yield self._contribute(step)
        scale, which = 1.0 / step.weight, self._which(step)
        flats = self._parts(step, "anchor"), self._parts(step, "outer velocity"), sums
        for number, a, v, total in zip(which, *flats, strict=True):
            kernels = kernels_for(a)
            kernels.momentum(a, v, total, self.rate * self.momentum, self.momentum, scale)
            kernels.sgd(a, total, self.rate, scale)
            kernels.blend(step.params[number], a, 1.0 - self.mix, self.mix)

    def _contribute(self, step: Step) -> Contribute:
        def bring(flats: Sequence[Buffer]) -> None:
            if not step.now.share:
                fill(flats, 0)
            elif self.delay:
                _assign(flats, self._parts(step, "sent"), 1.0)
            else:
                self._subtract(step, flats)

        return Contribute(bring)

    def _subtract(self, step: Step, flats: Sequence[Buffer]) -> None:
        """flats = n_i (a - w_i)"""
        share = step.now.share
        for flat, number in zip(flats, self._which(step), strict=True):
            a, w = step.state["anchor"][number], step.params[number]
            kernels_for(flat).scaled_sum(flat, [a, w], [share, -share])

    def _parts(self, step: Step, name: str) -> list[Buffer]:
        return [step.state[name][number] for number in self._which(step)]

    def _which(self, step: Step) -> range:
        return fragment(len(step.params), self.fragments, step.now.round)


@dataclass(frozen=True)
class SlowWeights(Operator):
    """Parameters w go back on the way that they came, to slow weights s that follow them::

    s <- s + mix * (w - s)
    w <- s
    """

    mix: float = 0.5

    def __post_init__(self) -> None:
        _within("mix", self.mix, 0, 1, above=True)

    @property
    def moves(self) -> bool:
        """It does."""
        return True

    def init(self, layout: Layout) -> Mapping[str, State]:
        """s."""
        return {"slow": State(layout.allocate())}

    def start(self, step: Step) -> None:
        """From where the training begins."""
        _assign(step.state["slow"], step.params, 1.0)

    def run(self, step: Step) -> Run:
        """In two passes."""
        yield from ()
        for slow, w in zip(step.state["slow"], step.params, strict=True):
            kernels_for(slow).blend(slow, w, self.mix, 1.0 - self.mix)
        _assign(step.params, step.state["slow"], 1.0)


def _models(step: Step) -> Contribute:
    """A round that sums n_i w_i."""

    def pack(flats: Sequence[Buffer], times: float) -> None:
        _assign(flats, step.params, times)

    return Contribute(Weighted(pack, step.now.share))


def _assign(flats: Sequence[Buffer], values: Sequence[Buffer], scale: float) -> None:
    """flats = scale * values"""
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], scale)


def _within(
    name: str, value: Any, least: float, most: float, above: bool = False, below: bool = False
) -> None:
    """Raises UsageError for what is no number between these; ``above``, ``below``: nor one of
    them."""
    finite(name, value)
    if not (
        (least < value if above else least <= value) and (value < most if below else value <= most)
    ):
        said = "more than" if above else "at least"
        upto = "less than" if below else "at most"
        raise UsageError(f"{name} is {value!r}, expected {said} {least} and {upto} {most}")
