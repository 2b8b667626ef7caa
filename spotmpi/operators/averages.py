"""Operators that average models: each worker moves its own parameters, and rounds bring the models
together.

In the equations w_i are the parameters of worker i, n_i the samples that it used since the last
round, and m = sum(n_i w_i) / sum(n_i) the mean of the models. A round tells a worker nothing of the
other models but this mean (with `Broadcast`: one of the models).
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
    """An operator that has a round of models."""

    @property
    def collective(self) -> bool:
        """True: it has a round."""
        return True

    @property
    def carries(self) -> Literal["models"]:
        """The kind of arrays that its round carries: models, or changes of models."""
        return "models"


class ModelAverage(_Meeting):
    """All workers go on with the mean of their models::

    w_i <- m
    """

    def run(self, step: Step) -> Run:
        """Sum the parameters in the round, and take their mean."""
        sums = yield _models(step)
        _assign(step.params, sums, 1.0 / step.weight)


class Broadcast(_Meeting):
    """All workers go on with the model of one worker. It is the first, in the order of the
    membership, that was dealt samples since the last round::

        w_i <- w_1

    What the other workers did to their models since the last round is dropped, but their samples
    count as used. If that worker is lost before any other has its model, the next one takes its
    place.
    """

    def run(self, step: Step) -> Run:
        """Bring the parameters of one worker to the round, and take its result."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            _assign(flats, step.params, times)

        sums = yield Contribute(Weighted(pack, 1.0), alone=True)
        # Some planes and workers added the model to zeros, which makes -0.0 into 0.0: do it on all.
        fill(step.params, 0)
        for w, total in zip(step.params, sums, strict=True):
            kernels_for(w).accumulate(w, total)


class PairAverage(Operator):
    """In each step a worker goes on with the mean of its own model and the model of another worker,
    j, which is drawn at random::

        w_i <- (w_i + w_j) / 2

    No worker waits. w_j is the latest model of j that has arrived. If none has, nothing is
    averaged. A model from the same host may be the same one as before. So a slow worker delays no
    other, and a lost one costs the others nothing.

    In the same step the worker shows its new model to the others, marked with the number of the
    next round. A model with the mark of an earlier round is not used: all workers have gone on from
    that round together, and the old model would only pull a worker back.
    """

    @property
    def paced(self) -> bool:
        """True: workers need not keep step."""
        return True

    def run(self, step: Step) -> Run:
        """Fetch, average and publish, in this order."""
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
    """Workers keep their own models. A central model z is pulled to their mean, and they are pulled
    to z. p workers take part::

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
        """The name of z, on which all workers agree."""
        return "centre"

    @property
    def leaves_apart(self) -> bool:
        """True: each worker keeps its own w_i."""
        return True

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return z and v."""
        return {name: State(layout.allocate()) for name in ("centre", "centre velocity")}

    def run(self, step: Step) -> Run:
        """Move v, w_i and z, in four passes over the parameters."""
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
        """The name of a, on which all workers agree."""
        return "anchor"

    @property
    def leaves_apart(self) -> bool:
        """True if some of each w_i remains, or the round carries only a part of it."""
        return self.mix > 0 or self.fragments > 1

    @property
    def ahead(self) -> int:
        """Steps from the making of d to the end of the round: ``delay``."""
        return self.delay

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return a and v, and with a delay the contribution that is under way."""
        found = {name: State(layout.allocate()) for name in ("anchor", "outer velocity")}
        if self.delay:
            found["sent"] = State(layout.allocate(), Scope.LOCAL)
        return found

    def early(self, step: Step) -> Contribute | None:
        """Return the contribution that travels during the delay; None without a delay."""
        return self._contribute(step) if self.delay else None

    def run(self, step: Step) -> Run:
        """Sum a - w_i, and update a and w_i. A narrow format harms these small sums less than
        models."""
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
        """Set flats = n_i (a - w_i), for the buckets that the round carries."""
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
    steps, and ``grace`` seconds have passed since, every other worker takes no more steps of its
    own. It brings to the round what it has done so far::

        n_i: samples of the steps that worker i has taken, not all samples that it was dealt

    The rest of its samples are dealt again. A worker finds this out between two steps, by its own
    clock. It begins no step that would probably end too late. A worker that is to leave or to stop
    takes no further step, and then the others take none either.
    """

    share: float = 0.75
    grace: float = 0.5

    def __post_init__(self) -> None:
        within("quorum", self.share, 0, 1, above=True)
        if finite("grace", self.grace) < 0:
            raise UsageError(f"grace is {self.grace}, expected 0 or more seconds")

    @property
    def paced(self) -> bool:
        """True: workers take different numbers of steps, and are dealt as many as they can take."""
        return True

    def of(self, workers: int) -> int:
        """Return how many of this many workers make a quorum."""
        return math.ceil(round(self.share * workers, 9))


@dataclass(frozen=True)
class SlowWeights(Operator):
    """Parameters w go back to slow weights s, which follow them::

    s <- s + mix * (w - s)
    w <- s
    """

    mix: float = 0.5

    def __post_init__(self) -> None:
        within("mix", self.mix, 0, 1, above=True)

    @property
    def moves(self) -> bool:
        """True: it changes the parameters."""
        return True

    @property
    def follows(self) -> Literal["models"]:
        """Models: all workers must have the same s."""
        return "models"

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return s."""
        return {"slow": State(layout.allocate())}

    def start(self, step: Step) -> None:
        """Set s to the parameters with which training begins."""
        _assign(step.state["slow"], step.params, 1.0)

    def run(self, step: Step) -> Run:
        """Move s and w, in two passes over the parameters."""
        yield from ()
        for slow, w in zip(step.state["slow"], step.params, strict=True):
            kernels_for(slow).blend(slow, w, self.mix, 1.0 - self.mix)
        _assign(step.params, step.state["slow"], 1.0)


def _models(step: Step) -> Contribute:
    """Return a contribution to a round that sums n_i w_i."""

    def pack(flats: Sequence[Buffer], times: float) -> None:
        _assign(flats, step.params, times)

    return Contribute(Weighted(pack, step.now.share))


def _assign(flats: Sequence[Buffer], values: Sequence[Buffer], scale: float) -> None:
    """Set flats = scale * values."""
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], scale)
