"""Operators of one model that the workers of a host share, without locks.

In the equations a is the model after the last round, and y_i what a worker has made of a by its own
steps since then.
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
    """In each step a worker moves the model that it shares with the others of its host, who do the
    same at the same time, without locks; they are p::

        y_i <- y_i - rate * g_i(w_i)
        w_i <- a + sum(y_j - a) / p              of all j of its host, as far as they have come

    The sum lies in memory that all of them add to. Nobody waits for that. What is lost of it there,
    when two add to an element at the same moment, and what a worker leaves in it that dies, also in
    the middle, is there until the round and no longer: y_i is each worker's own. Who shares memory
    with nobody trains y_i.
    """

    @property
    def moves(self) -> bool:
        """It does."""
        return True

    @property
    def paced(self) -> bool:
        """Workers need not keep step."""
        return True

    @property
    def needs_behind(self) -> Sequence[type[Operator]]:
        """What keeps a."""
        return MeanOfSteps, OuterUpdate

    def init(self, layout: Layout) -> Mapping[str, State]:
        """All of it is of this worker and of the round to come."""
        found = {name: State(layout.allocate(), Scope.LOCAL) for name in (_OWN, _DONE)}
        # The number of that round, and one more.
        found[_BEGUN] = State([HOST.zeros("float64", 1)], Scope.LOCAL, paged=False)
        return found

    def run(self, step: Step) -> Run:
        """In the order: move, add, go on with the sum."""
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
    """All workers go on with the mean of what they have done: behind `SharedSteps`, where p workers
    of all hosts have taken steps::

        a   <- a + sum(y_i - a) / p
        w_i <- a

    On one host that is the model that they share, but for what was lost in it and with what was
    still to be added; on several it is the mean of the hosts' models. Each step counts once and as
    much as any other, so also each sample, whoever has taken more of them.
    """

    @property
    def collective(self) -> bool:
        """It has a round."""
        return True

    @property
    def carries(self) -> Literal["models"]:
        """What was done to them."""
        return "models"

    @property
    def needs_before(self) -> Sequence[type[Operator]]:
        """What keeps y_i."""
        return (SharedSteps,)

    @property
    def centre(self) -> str:
        """It is a that all agree on."""
        return _ANCHOR

    def init(self, layout: Layout) -> Mapping[str, State]:
        """a."""
        return {_ANCHOR: State(layout.allocate())}

    def run(self, step: Step) -> Run:
        """What was added up on the way is of no more use."""

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
    """flats = one - less"""
    for flat, a, b in zip(flats, one, less, strict=True):
        kernels_for(flat).scaled_sum(flat, [a, b], [1.0, -1.0])
