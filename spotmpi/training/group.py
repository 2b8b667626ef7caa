"""`Group`: averages arrays in elastic rounds, for scripts that apply the result themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from spotmpi.arrays.backend import fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.operators import GradientAverage, Stage, Step
from spotmpi.strategies import Strategy
from spotmpi.training.elastic import Elastic
from spotmpi.training.model import Model
from spotmpi.training.state.rate import Rate
from spotmpi.training.state.training_state import TrainingState

__all__ = ["Group"]

P = TypeVar("P")


class Deliver(Stage):
    """Writes the average into an array of its own. The caller may read it until the next round."""

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Allocate the array for the average."""
        return {"average": State(layout.allocate(), Scope.LOCAL)}

    def run(self, step: Step) -> None:
        """Compute average = scale * sum."""
        assert step.update is not None
        for out, total in zip(step.state["average"], step.update, strict=True):
            kernels_for(out).scaled_sum(out, [total], [step.scale])


class _Unscaled:
    """Stands in for an optimizer, as a group has no learning rate."""

    lr = 1.0


class Group(Elastic[P]):
    """Averages arrays over the workers of the job, and goes on if any of them are lost.

    The script applies the averages itself.
    ``state``: list or dict of arrays (float32, float64) that all workers hold. All begin with those
        of the first worker, checkpoints hold them, and newcomers get them. The property `state` is
        the live copy. The script may change it: alike on all workers, and only with what rounds
        delivered.
    ``arrays``: arrays of the structure that is averaged, if it is another one.
    ``seed``: decides the order of samples.

    A context manager: entering the block starts MPI, unless the script runs alone. Leaving it ends
    the protection; the code after it is ordinary code. Both are collective.
    """

    def __init__(self, state: P, *, arrays: Any = None, seed: int = 0) -> None:
        strategy = Strategy(GradientAverage() >> Deliver())
        model = Model(state, arrays=state if arrays is None else arrays)
        rate = Rate(_Unscaled(), scale="none")
        super().__init__(TrainingState(model, [strategy], seed, rate, check_finite=False))
        self._flats = self._training.sync.state["average"]
        self._average = model.brought.views(self._flats)

    @property
    def state(self) -> P:
        """The live arrays that all workers hold, in the structure they were given in."""
        return self._training.model.params

    def average(self, arrays: Any) -> Any:
        """Average ``arrays`` over all workers, weighted by samples. Collective, blocking.

        The call is a round: it completes with the same bits on all workers, even if workers die
        meanwhile. In `batches` a worker counts by the samples that it was dealt; outside it counts
        as one. Returns arrays in the same structure, which the next round overwrites. They are zero
        if all workers that had samples are lost.
        """
        participant = self._connected("average()")
        self._check_batch("average")
        self._participant = self._run(participant.step(arrays, None))
        if not self._training.sync.moved:
            fill(self._flats, 0)
        return self._average
