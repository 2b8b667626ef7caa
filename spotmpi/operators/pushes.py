"""Operators that give models away in one direction, together with the weights of these models."""

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
"""The weight at which a worker stops giving. A worker loses weight as long as nothing arrives. A
very small weight would be lost in the rounding of the sums that it is added to."""


class PushSum(Operator):
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

    A worker gives nothing while its weight is 1/16 or less.
    """

    @property
    def paced(self) -> bool:
        """True: workers need not keep step."""
        return True

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

    def run(self, step: Step) -> Run:
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
        if weights[0] > _LEAST:
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
