"""Elastic rounds over arrays, without an optimizer: for scripts that apply results themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from spotmpi.arrays.backend import kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.operators import GradientAverage, Operator, Run, Step
from spotmpi.strategies import Strategy
from spotmpi.training.elastic import Elastic
from spotmpi.training.replica import Replica
from spotmpi.training.training_state import Rate, TrainingState

__all__ = ["Group"]

P = TypeVar("P")


class Deliver(Operator):
    """The average, into an array of its own: the caller's to look at until the next round."""

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Room for it."""
        return {"average": State(layout.allocate(), Scope.LOCAL)}

    def run(self, step: Step) -> Run:
        """average = scale * sum"""
        assert step.update is not None
        for out, total in zip(step.state["average"], step.update, strict=True):
            kernels_for(out).scaled_sum(out, [total], [step.scale])
        yield from ()


class _Unscaled:
    """There is no learning rate."""

    lr = 1.0


class Group(Elastic[P]):
    """Workers that average arrays, whoever of them is revoked; what comes of it is the caller's.

    ``state``: list or dict of arrays (float32, float64) that all workers hold, as `Trainer` has
    parameters: the first worker's count, a checkpoint holds them, and a worker that joins is given
    them. `state` is the live copy, and the caller's to change: alike on all workers, with nothing
    but what rounds delivered. ``arrays``: of the structure that is averaged, if it is another.
    ``seed`` decides the order of samples.

    A context manager: entering starts MPI if there is one and is collective, leaving is collective
    too and ends what spotmpi protects; what stands after the block is ordinary code.
    """

    def __init__(self, state: P, *, arrays: Any = None, seed: int = 0) -> None:
        strategy = Strategy(GradientAverage() >> Deliver())
        replica = Replica(state, None, strategy, state if arrays is None else arrays)
        super().__init__(TrainingState(replica, seed, Rate(_Unscaled(), scale="none"), False))
        self._average = replica.state("average")

    @property
    def state(self) -> P:
        """What all workers hold: live arrays, in the structure they were given in."""
        return self._training.replica.params

    def average(self, arrays: Any) -> Any:
        """The average of ``arrays`` over all workers, weighted by samples. Collective, blocking.

        A round: it comes to an end, with the same bits on all workers, whoever dies meanwhile. In
        `batches` a worker counts as the samples that it was dealt, outside of them as one. Returns
        arrays in the same structure, which the next round writes anew. If nobody brought anything,
        as all whose samples they were are lost, they are zero.
        """
        self._take_step(arrays, None)
        if not self._training.replica.moved:
            self._training.replica.clear("average")
        return self._average
