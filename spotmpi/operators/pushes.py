"""Operators that give models away in one direction, with the weights that belong to them."""

from __future__ import annotations

from collections.abc import Mapping

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators.stages import Operator
from spotmpi.operators.step import Run, Step

__all__ = ["PushSum"]

_LEAST = 1 / 16
"""Who has no more weight than that gives none. It loses weight as long as nothing comes, and what
is very small beside the sums that it is added to is lost in their rounding."""


class PushSum(Operator):
    """Models are given away along a ring of all workers, which is drawn anew for each round. A
    worker has its model w with a weight p, which is 1 at the beginning of a round. In each step it
    gives half of p w and of p to the worker after it, and it takes what the one before has given::

        p w <- p w + dx      p <- p + dp           dx, dp: taken
        p w <- p w / 2       p <- p / 2            as much is given

    So w is a mean of models, whose weights are positive and add up to p, whatever arrives late or
    never. Nobody waits, and nothing is lost or taken twice: a worker shows the sum of all that it
    has given in the round, and takes what another's sum has gained since it took last. What was
    given to a dead worker is gone with its weight.

    Nobody gives who has but 1/16.
    """

    @property
    def paced(self) -> bool:
        """Workers need not keep step."""
        return True

    def init(self, layout: Layout) -> Mapping[str, State]:
        """What was given and what was taken in this round, each with its weight."""
        found = {name: State(layout.allocate(), Scope.LOCAL) for name in ("given", "taken")}
        # The round and the generation, and the weight that was given in it; they travel together.
        told = HOST.zeros("float64", 3)
        told[:] = -1.0  # of no round yet
        found["told"] = State([told], Scope.LOCAL, paged=False)
        # This worker's own weight, and the one that it has taken.
        found["weights"] = State([HOST.zeros("float64", 2)], Scope.LOCAL, paged=False)
        return found

    def run(self, step: Step) -> Run:
        """In the order: fetch, take, give, publish."""
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
        # It may be the answer of one that was asked in an earlier round.
        if found is not None and found.worker == now.before:
            self._take(step, found)
        if weights[0] > _LEAST:
            self._give(step)
        yield Publish([*step.state["given"], told])

    def _take(self, step: Step, found: Fetched) -> None:
        """What the other's sum has gained."""
        (told,), (weights,) = step.state["told"], step.state["weights"]
        *given, theirs = found.model
        # Not the sums of another ring, nor what a strategy before this one showed.
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
        """Half of what there is: w remains as it is."""
        (told,), (weights,) = step.state["told"], step.state["weights"]
        weights[0] /= 2
        told[2] += weights[0]
        for given, w in zip(step.state["given"], step.params, strict=True):
            kernels_for(w).blend(given, w, float(weights[0]), 1.0)
