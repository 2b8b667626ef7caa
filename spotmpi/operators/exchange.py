"""Stages in which workers exchange models one with another, without a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators.operator import Asking, Stage
from spotmpi.operators.step import Step

__all__ = ["PairAverage", "PushSum"]


class PairAverage(Stage):
    """In each step a worker goes on with the mean of its own model and the model of another worker,
    j, which is drawn at random::

        w_i <- (w_i + w_j) / 2

    No worker waits. w_j is the latest model of j that has arrived. If none has, nothing is
    averaged. So a slow worker delays no other, and a lost one costs the others nothing.

    A model is averaged into one other worker's at most. So a worker pulls others at most once for
    each step that it has taken. Otherwise a worker that stands still would pull all others back to
    its old model, in each of their steps, and what they have learnt since would be lost.

    In the same step the worker shows its new model to the others, marked with the number of the
    next round. A model with the mark of an earlier round is not used: all workers have gone on from
    that round together, and the old model would only pull a worker back.
    """

    asynchronous: ClassVar[bool] = True

    def run(self, step: Step) -> Asking:
        """Fetch, average and publish, in this order."""
        others = step.now.others
        if not (others and step.now.samples):
            return
        found = yield Fetch(others[int(step.now.chance * len(others))], unread=True)
        if found is not None:
            *model, mark = found.model
            if mark.tolist() == [step.now.round]:
                for w, other in zip(step.params, model, strict=True):
                    kernels_for(w).blend(w, other, 0.5, 0.5)
        mark = HOST.zeros("int64", 1)
        HOST.fill(mark, step.now.round)
        yield Publish([*step.params, mark])


class PushSum(Stage):
    """Workers give models away along a ring of all workers, which is drawn again for each round. A
    worker has its model w with a weight p, which is 1 at the beginning of a round. In each step it
    takes what the worker before it has given, and gives half of p w and half of p to the worker
    after it::

        p w <- p w + dx      p <- p + dp           dx, dp: taken
        p w <- p w / 2       p <- p / 2            the same amount is given

    So w is always a mean of models with positive weights that add up to p, even if something
    arrives late or never. No worker waits, and nothing is lost or taken twice: a worker shows the
    sum of all that it has given in the round, and takes what the other's sum has gained since it
    last took. What was given to a dead worker is lost, with its weight.

    A worker gives nothing while its weight is less than 1. Otherwise it would lose weight in each
    step in which nothing arrives. And when a worker of small weight takes something, what it has
    learnt itself counts for little. If a worker is lost or stands still, those after it soon give
    nothing, until the next round: each trains for itself.
    """

    asynchronous: ClassVar[bool] = True

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return the sums that were given and taken in this round, each with its weight."""
        found = {name: State(layout.allocate(), Scope.LOCAL) for name in ("given", "taken")}
        # The round, the generation and the weight given in the round: they travel together.
        told = HOST.zeros("float64", 3)
        told[:] = -1.0  # no round yet
        found["told"] = State([told], Scope.LOCAL, paged=False)
        # This worker's own weight, and the weight that it has taken.
        found["weights"] = State([HOST.zeros("float64", 2)], Scope.LOCAL, paged=False)
        return found

    def run(self, step: Step) -> Asking:
        """Fetch, take, give and publish, in this order."""
        now = step.now
        if now.before is None or not now.samples:
            return
        (told,), (weights,) = step.state["told"], step.state["weights"]
        ring = [float(now.round), float(now.generation)]
        if told[:2].tolist() != ring:
            told[:], weights[:] = [*ring, 0.0], [1.0, 0.0]
            fill(step.state["given"], 0)
            fill(step.state["taken"], 0)
        found = yield Fetch(now.before)
        # The answer may come from a worker that was asked in an earlier round.
        if found is not None and found.worker == now.before:
            self._take(step, found)
        if weights[0] >= 1:
            self._give(step)
        yield Publish([*step.state["given"], told])

    def _take(self, step: Step, found: Fetched) -> None:
        """Take what the other worker's sum has gained."""
        (told,), (weights,) = step.state["told"], step.state["weights"]
        *given, theirs = found.model
        # Skip the sums of another ring, and models that an earlier strategy showed.
        if len(given) != len(step.params) or theirs[:2].tolist() != told[:2].tolist():
            return
        own, gained = float(weights[0]), float(theirs[2] - weights[1])
        if gained <= 0:
            return
        whole = own + gained
        for w, there, taken in zip(step.params, given, step.state["taken"], strict=True):
            kernels = kernels_for(w)
            kernels.blend(taken, there, 1.0, -1.0)  # dx
            kernels.blend(w, taken, 1.0 / whole, own / whole)
            kernels.pack(taken, [there], 1.0)
        weights[:] = [whole, theirs[2]]

    def _give(self, step: Step) -> None:
        """Give half of this worker's weight away. w stays as it is."""
        (told,), (weights,) = step.state["told"], step.state["weights"]
        weights[0] /= 2
        told[2] += weights[0]
        for given, w in zip(step.state["given"], step.params, strict=True):
            kernels_for(w).blend(given, w, float(weights[0]), 1.0)
