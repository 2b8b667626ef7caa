"""Operators that average models: workers move their own parameters, and meet now and then.

In the equations w_i are the parameters of worker i, n_i the samples that it used since the last
round, and m = sum(n_i w_i) / sum(n_i) their mean, which is all that a round carries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spotmpi.arrays.backend import HOST, Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import Fetch, Publish
from spotmpi.operators.stages import Operator
from spotmpi.operators.step import Contribute, Run, Step, Weighted, fragment
from spotmpi.optimizers.numbers import finite, whole, within

__all__ = [
    "Broadcast",
    "ElasticAverage",
    "ModelAverage",
    "OuterUpdate",
    "PairAverage",
    "Quorum",
    "SlowWeights",
]


class _Meeting(Operator):
    """It has a round."""

    @property
    def collective(self) -> bool:
        """It has."""
        return True

    @property
    def carries(self) -> Literal["models"]:
        """Or what was done to them."""
        return "models"


class ModelAverage(_Meeting):
    """All workers go on with the mean of their models::

    w_i <- m
    """

    def run(self, step: Step) -> Run:
        """The parameters go to the round, and come back from it."""
        sums = yield _models(step)
        _assign(step.params, sums, 1.0 / step.weight)


class Broadcast(_Meeting):
    """All workers go on with the model of one: the first that was dealt samples since the last
    round, in the order of the membership::

        w_i <- w_1

    What the others have come to since then is dropped, though their samples count as used. If that
    worker is lost before anybody has its model, the next one takes its place.
    """

    def run(self, step: Step) -> Run:
        """The parameters of one go to the round, and come back from it."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            _assign(flats, step.params, times)

        sums = yield Contribute(Weighted(pack, 1.0), alone=True)
        # Added to zeros, as they were on some workers and in some data planes: then -0.0 is 0.0.
        fill(step.params, 0)
        for w, total in zip(step.params, sums, strict=True):
            kernels_for(w).accumulate(w, total)


class PairAverage(Operator):
    """In each step a worker goes on with the mean of its model and another worker's, j, which is
    drawn at random::

        w_i <- (w_i + w_j) / 2

    Nobody waits: w_j is the latest model of j that is here, and if none is, nothing is averaged. Of
    a worker of the same host it may be the same one as before. So a slow worker holds nobody back,
    and one that is lost costs the others nothing. What comes of it is shown to the others in the
    same step, with the number of the round that it is on the way to: after a round that all have
    gone on from, a model from before it would only pull a worker back, and is left alone.
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
            *model, mark = found.model
            if mark.tolist() == [step.now.round]:
                for w, other in zip(step.params, model, strict=True):
                    kernels_for(w).blend(w, other, 0.5, 0.5)
        mark = HOST.zeros("int64", 1)
        HOST.fill(mark, step.now.round)
        yield Publish([*step.params, mark])


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
        within("pull", self.pull, 0, 1, above=True)
        within("momentum", self.momentum, 0, 1, below=True)

    @property
    def centre(self) -> str:
        """It is z that all agree on."""
        return "centre"

    @property
    def leaves_apart(self) -> bool:
        """Each has its w_i."""
        return True

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
        within("rate", self.rate, 0, 10, above=True)
        within("momentum", self.momentum, 0, 1, below=True)
        within("mix", self.mix, 0, 1, below=True)
        whole("fragments", self.fragments, 1)
        whole("delay", self.delay, 0)

    @property
    def centre(self) -> str:
        """It is a that all agree on."""
        return "anchor"

    @property
    def leaves_apart(self) -> bool:
        """Where something of each w_i remains, or a part of it."""
        return self.mix > 0 or self.fragments > 1

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
class Quorum(Operator):
    """The round waits for no worker that is late. Once ``share`` of all workers have taken their
    steps, and ``grace`` seconds have passed since, every other one takes no more of its own, and
    brings to the round what it has come to::

        n_i: samples of the steps that worker i has taken, and not of those that it was dealt

    What is left of its samples is dealt again. A worker finds out between two steps, by its own
    clock, and takes no step that is not likely to be over in that time. One that is to leave, or to
    stop, takes no step more, nor do the others then.
    """

    share: float = 0.75
    grace: float = 0.5

    def __post_init__(self) -> None:
        within("quorum", self.share, 0, 1, above=True)
        if finite("grace", self.grace) < 0:
            raise UsageError(f"grace is {self.grace}, expected 0 or more seconds")

    @property
    def paced(self) -> bool:
        """Workers take different numbers of steps, so they are dealt as many as they can take."""
        return True

    def of(self, workers: int) -> int:
        """How many of so many workers it takes."""
        return math.ceil(round(self.share * workers, 9))


@dataclass(frozen=True)
class SlowWeights(Operator):
    """Parameters w go back on the way that they came, to slow weights s that follow them::

    s <- s + mix * (w - s)
    w <- s
    """

    mix: float = 0.5

    def __post_init__(self) -> None:
        within("mix", self.mix, 0, 1, above=True)

    @property
    def moves(self) -> bool:
        """It does."""
        return True

    @property
    def follows(self) -> Literal["models"]:
        """All have one s."""
        return "models"

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
