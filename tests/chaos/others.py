"""Strategies that spotmpi does not ship, for tests: with a round every third step, with something
that each worker remembers of its own, with a model that goes from one to all."""

import numpy as np

from spotmpi.arrays.backend import backend_of, fill, kernels_for
from spotmpi.arrays.registry import Scope, State
from spotmpi.operators import (
    Apply,
    Broadcast,
    Clip,
    Every,
    GradientAverage,
    GradientSum,
    Narrow,
    Stage,
)
from spotmpi.strategies import SSGD, Strategy


def local(layout):
    """Zeros that belong to their worker."""
    return State(layout.allocate(), Scope.LOCAL)


def bringing(brought):
    """Brings copies of these."""

    def bring(flats):
        for flat, mine in zip(flats, brought, strict=True):
            kernels_for(flat).pack(flat, [mine], 1.0)

    return bring


class Accumulate(Stage):
    """The sum of the gradients since the last round."""

    accumulates = True

    def init(self, layout):
        """The sum, and room for one gradient."""
        return {"sum": local(layout), "room": local(layout)}

    def run(self, step):
        """Add this step's."""
        totals, room = step.state["sum"], step.state["room"]
        step.bring(room)
        for total, flat in zip(totals, room, strict=True):
            kernels_for(total).accumulate(total, flat)
        step.bring = bringing(totals)


class Clear(Stage):
    """The round is over: begin to accumulate again."""

    def run(self, step):
        """Zeros."""
        fill(step.state["sum"], 0)


COARSE = 64


def coarse(flat, error):
    """``flat`` in few bits; what is lost by it replaces ``error``, which is added before."""
    whole = flat + error
    kept = np.floor(whole * COARSE) / COARSE
    error[...] = whole - kept
    return kept


class Coarse(Stage):
    """Contributions of few bits; what a worker loses by it, it brings with its next one."""

    def init(self, layout):
        """What was lost, and what is brought."""
        return {"error": local(layout), "kept": local(layout)}

    def run(self, step):
        """Once for each step, whatever becomes of its round."""
        kept = step.state["kept"]
        step.bring(kept)
        for flat, error in zip(kept, step.state["error"], strict=True):
            backend = backend_of(flat)
            lost = backend.to_host(error)
            backend.from_host(flat, coarse(backend.to_host(flat), lost))
            backend.from_host(error, lost)
        step.bring = bringing(kept)


def accumulating():
    """A round every third step."""
    return Strategy(Accumulate() >> Every(3, GradientAverage() >> Apply() >> Clear()))


def coarsely():
    """LOCAL state."""
    return Strategy(Coarse() >> GradientAverage() >> Apply())


def narrowly():
    """LOCAL state that the data plane writes."""
    return Narrow("int8") >> SSGD()


def clipping():
    """This worker's own gradient, and the average; both are cut in most steps."""
    return Strategy(Clip(0.5) >> GradientAverage() >> Clip(0.25) >> Apply())


def clipping_before():
    """What each worker cuts is summed right into the next state."""
    return Strategy(Clip(0.5) >> GradientAverage() >> Apply())


def clipping_now_and_then():
    """Every gradient, and the average of those of several steps."""
    average = GradientAverage() >> Clip(0.25) >> Apply() >> Clear()
    return Strategy(Clip(0.5) >> Accumulate() >> Every(3, average))


def summing():
    """Every worker counts once."""
    return Strategy(GradientSum() >> Apply())


def summing_now_and_then():
    """The mean of several steps' gradients of each worker."""
    total = GradientSum() >> Apply() >> Clear()
    return Strategy(Clip(0.5) >> Accumulate() >> Every(3, total))


def summing_narrowly():
    """What is cut before the round is summed as it is, and what comes of it is cut again."""
    return Narrow("int8") >> Strategy(Clip(0.5) >> GradientSum() >> Clip(0.25) >> Apply())


def broadcasting():
    """All go on with the model of one."""
    return Strategy(Apply() >> Every(3, Broadcast()))


def broadcasting_narrowly():
    """In every step."""
    return Narrow("int8") >> Strategy(Apply() >> Broadcast())


STRATEGIES = {
    "accumulating": accumulating,
    "coarsely": coarsely,
    "narrowly": narrowly,
    "clipping": clipping,
    "clipping before": clipping_before,
    "clipping now and then": clipping_now_and_then,
    "summing": summing,
    "clipping and summing now and then": summing_now_and_then,
    "clipping and summing narrowly": summing_narrowly,
    "broadcast": broadcasting,
    "broadcast, narrowed": broadcasting_narrowly,
}
