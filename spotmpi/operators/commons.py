"""Operators of one model that the workers of a host share, without locks.

In the equations a is the model after the last round, and y_i is what worker i's own steps since
then have made of a.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from spotmpi.arrays.backend import HOST, Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import AddUp
from spotmpi.operators.averages import OuterUpdate
from spotmpi.operators.stages import Operator
from spotmpi.operators.step import Contribute, Run, Step

__all__ = ["MeanOfSteps", "SharedSteps"]

_ANCHOR, _OWN, _DONE, _BEGUN = "anchor", "own", "done", "begun"


class SharedSteps(Operator):
    """In each step a worker moves the model that the p workers of its host share. They all do so at
    the same time, without locks::

        y_i <- y_i - rate * g_i(w_i)
        w_i <- a + sum(y_j - a) / p              over all j of its host, as far as they have come

    The sum is in memory to which all these workers add. No worker waits for it. When two workers
    add to an element at the same moment, a change may be lost. A worker that dies leaves its
    changes there, perhaps half of the last one. Both last only until the next round, as each worker
    keeps its own y_i. A worker that shares memory with no other trains y_i.
    """

    @property
    def moves(self) -> bool:
        """True: it changes the parameters."""
        return True

    @property
    def paced(self) -> bool:
        """True: workers need not keep step."""
        return True

    @property
    def needs_behind(self) -> Sequence[type[Operator]]:
        """Operators that keep a: one of them must follow."""
        return MeanOfSteps, OuterUpdate

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return this worker's state on the way to the next round. All of it is local."""
        found = {name: State(layout.allocate(), Scope.LOCAL) for name in (_OWN, _DONE)}
        # The number of that round plus one; 0: none has begun.
        found[_BEGUN] = State([HOST.zeros("float64", 1)], Scope.LOCAL, paged=False)
        return found

    def run(self, step: Step) -> Run:
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


class MeanOfSteps(Operator):
    """All workers go on with the mean of their changes since the last round. It stands behind
    `SharedSteps`. p workers of all hosts have taken steps::

        a   <- a + sum(y_i - a) / p
        w_i <- a

    On one host this is the shared model, with the changes that were lost in it or were still to be
    added. On several hosts it is the mean of the hosts' models. Each step counts once and as much
    as any other, so each sample does too, even if some workers took more steps.
    """

    @property
    def collective(self) -> bool:
        """True: it has a round."""
        return True

    @property
    def carries(self) -> Literal["models"]:
        """The kind of arrays that its round carries: changes of models."""
        return "models"

    @property
    def needs_before(self) -> Sequence[type[Operator]]:
        """The operator that keeps y_i: it must stand before this one."""
        return (SharedSteps,)

    @property
    def centre(self) -> str:
        """The name of a, on which all workers agree."""
        return _ANCHOR

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return a."""
        return {_ANCHOR: State(layout.allocate())}

    def run(self, step: Step) -> Run:
        """Sum y_i - a in the round, and go on with a. The shared sum is of no more use."""

        def bring(flats: Sequence[Buffer]) -> None:
            if step.now.share:
                _difference(flats, step.state[_OWN], step.state[_ANCHOR])
            else:
                fill(flats, 0)

        sums = yield Contribute(bring)
        for a, total in zip(step.state[_ANCHOR], sums, strict=True):
            kernels_for(a).blend(a, total, 1.0 / step.active, 1.0)
        _assign(step.params, step.state[_ANCHOR])


def _assign(flats: Sequence[Buffer], values: Sequence[Buffer]) -> None:
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], 1.0)


def _difference(flats: Sequence[Buffer], one: Sequence[Buffer], less: Sequence[Buffer]) -> None:
    """Set flats = one - less."""
    for flat, a, b in zip(flats, one, less, strict=True):
        kernels_for(flat).scaled_sum(flat, [a, b], [1.0, -1.0])
