"""Operators of one model that the workers of a host share, without locks.

In the equations a is the model after the last round, and y_i is what worker i's own steps since
then have made of a.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from spotmpi.arrays.backend import HOST, Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import AddUp
from spotmpi.operators.models import OuterUpdate
from spotmpi.operators.operator import Asking, Kind, Meeting, Operator, Stage
from spotmpi.operators.step import Bring, Step

__all__ = ["MeanOfSteps", "SharedSteps"]

_ANCHOR, _OWN, _DONE, _BEGUN = "anchor", "own", "done", "begun"


class SharedSteps(Stage):
    """In each step a worker moves the model that the p workers of its host share. They all do so at
    the same time, without locks::

        y_i <- y_i - rate * g_i(w_i)
        w_i <- a + sum(y_j - a) / p              over all j of its host, as far as they have come

    The sum is in memory to which all these workers add. No worker waits for it. When two workers
    add to an element at the same moment, a change may be lost. A worker that dies leaves its
    changes there, perhaps half of the last one. Both last only until the next round, as each worker
    keeps its own y_i. A worker that shares memory with no other trains y_i.
    """

    moves: ClassVar[bool] = True
    works_on: ClassVar[Kind] = "gradients"
    asynchronous: ClassVar[bool] = True

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return this worker's state on the way to the next round. All of it is local."""
        found = {name: State(layout.allocate(), Scope.LOCAL) for name in (_OWN, _DONE)}
        # The number of that round plus one; 0: none has begun.
        found[_BEGUN] = State([HOST.zeros("float64", 1)], Scope.LOCAL, paged=False)
        return found

    def run(self, step: Step) -> Asking:
        """Move y_i, add its change to the sum, and go on with the sum."""
        now, state = step.now, step.state
        if not now.samples:
            return
        if step.optimizer is None:
            raise UsageError(f"{self} needs an optimizer, and a group has none: use a Trainer")
        (begun,) = state[_BEGUN]
        if begun[0] != now.round + 1:
            begun[0] = now.round + 1
            _assign(state[_OWN], state[_ANCHOR])
        step.own()
        assert step.update is not None
        known = step.update, step.memory, step.rate, step.scale
        step.optimizer.apply(step.layout, state[_OWN], *known)
        _difference(state[_DONE], state[_OWN], state[_ANCHOR])
        many = yield AddUp(state[_DONE], step.params, now.round, now.crew)
        if many == 1:
            _assign(step.params, state[_OWN])
            return
        for w, a in zip(step.params, state[_ANCHOR], strict=True):
            kernels_for(w).blend(w, a, 1.0, 1.0 / many)


class MeanOfSteps(Meeting):
    """All workers go on with the mean of their changes since the last round. It stands behind
    `SharedSteps`. p workers of all hosts have taken steps::

        a   <- a + sum(y_i - a) / p
        w_i <- a

    On one host this is the shared model, with the changes that were lost in it or were still to be
    added. On several hosts it is the mean of the hosts' models. Each step counts once and as much
    as any other, so each sample does too, even if some workers took more steps.
    """

    carries: ClassVar[Kind] = "models"
    needs: ClassVar[Sequence[type[Operator]]] = (SharedSteps,)
    centre: ClassVar[str] = _ANCHOR
    """a: all workers agree on it."""

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return a."""
        return {_ANCHOR: State(layout.allocate())}

    def contribute(self, step: Step) -> Bring:
        """Bring y_i - a."""

        def bring(flats: Sequence[Buffer]) -> None:
            if step.now.share:
                _difference(flats, step.state[_OWN], step.state[_ANCHOR])
            else:
                fill(flats, 0)

        return bring

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Go on with a. The shared sum is of no more use."""
        for a, total in zip(step.state[_ANCHOR], sums, strict=True):
            kernels_for(a).blend(a, total, 1.0 / step.active, 1.0)
        _assign(step.params, step.state[_ANCHOR])


SharedSteps.needs = MeanOfSteps, OuterUpdate  # both keep a


def _assign(flats: Sequence[Buffer], values: Sequence[Buffer]) -> None:
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], 1.0)


def _difference(flats: Sequence[Buffer], one: Sequence[Buffer], less: Sequence[Buffer]) -> None:
    """Set flats = one - less."""
    for flat, a, b in zip(flats, one, less, strict=True):
        kernels_for(flat).scaled_sum(flat, [a, b], [1.0, -1.0])
