"""Strategies that spotmpi does not ship, for tests: one with a round every third step, and one
that remembers something of each worker's own. And what parameters they must end with."""

import math
from collections.abc import Iterable

import numpy as np

from spotmpi.arrays.backend import backend_of, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.operators import (
    Apply,
    Clip,
    Every,
    GradientAverage,
    GradientSum,
    Narrow,
    Operator,
)
from spotmpi.strategies import SSGD, Strategy
from spotmpi.trace.replay import Rests, bucket_mb_of, summed


def local(layout):
    """Zeros that belong to their worker."""
    return State(layout.allocate(), Scope.LOCAL)


def bringing(brought):
    """Brings copies of these."""

    def bring(flats):
        for flat, mine in zip(flats, brought, strict=True):
            kernels_for(flat).pack(flat, [mine], 1.0)

    return bring


class Accumulate(Operator):
    """The sum of the gradients since the last round."""

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
        yield from ()


class Clear(Operator):
    """The round is over: begin to accumulate anew."""

    def run(self, step):
        """Zeros."""
        fill(step.state["sum"], 0)
        yield from ()


COARSE = 64


def coarse(flat, error):
    """``flat`` in few bits; what is lost by it replaces ``error``, which is added before."""
    whole = flat + error
    kept = np.floor(whole * COARSE) / COARSE
    error[...] = whole - kept
    return kept


class Coarse(Operator):
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
        yield from ()


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


def clipping_now_and_then():
    """Every gradient, and the average of those of several steps."""
    average = GradientAverage() >> Clip(0.25) >> Apply() >> Clear()
    return Strategy(Clip(0.5) >> Accumulate() >> Every(3, average))


def clipping_narrowly():
    """What is clipped is narrowed."""
    return Narrow("int8") >> clipping()


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


OWN, AVERAGE = 0.5, 0.25


def times(flats, scale, norm):
    """What they are to be multiplied with, if they are as long as that after ``scale``."""
    length = scale * math.sqrt(sum(kernels_for(flat).sum_of_squares(flat) for flat in flats))
    return min(1.0, norm / length) if length else 1.0


STRATEGIES = {
    "SSGD": SSGD,
    "accumulating": accumulating,
    "coarsely": coarsely,
    "narrowly": narrowly,
    "clipping": clipping,
    "clipping now and then": clipping_now_and_then,
    "clipping narrowly": clipping_narrowly,
    "summing": summing,
    "clipping and summing now and then": summing_now_and_then,
    "clipping and summing narrowly": summing_narrowly,
}
SUMMED = ["summing", "clipping and summing narrowly"]
"""Gradients as they are."""
NOW_AND_THEN = [name for name in STRATEGIES if name.endswith(("accumulating", "now and then"))]
"""Those with a round every third step."""


def truth(name: str, records: Iterable[dict], params, gradient, optimizer):
    """The parameters that a trace must lead to, computed again in one process, worker by worker.

    ``records``: of a whole trace, whose resumes make all workers forget what was their own.
    """
    records = list(records)
    layout = Layout.of(params, bucket_mb_of(records))
    flats = layout.allocate()
    layout.pack(params, flats, 1.0)
    current = layout.views(flats)
    memory = optimizer.remember(layout)
    errors: dict[int, list] = {}
    rests = Rests()
    rounds: list[list[dict]] = []
    for record in records:
        if record["event"] == "resume":
            rounds = [steps for steps in rounds if steps and steps[0]["step"] < record["step"]]
            rounds.append([])
        elif record["event"] == "step":
            if rounds and rounds[-1] and rounds[-1][-1]["round"] == record["round"]:
                rounds[-1].append(record)
            else:
                rounds.append([record])
    for steps in rounds:
        if not steps:
            errors, rests = {}, Rests()
            continue
        brought: dict[int, list] = {}
        shares: dict[int, int] = {}
        for record in steps:
            for part in record["contributions"]:
                mine = brought.setdefault(part["worker"], layout.allocate())
                if part["weight"]:
                    one = layout.allocate()
                    own, cut = gradient(current, np.asarray(part["samples"])), 1.0
                    if name.startswith("clipping"):
                        layout.pack(own, one, 1.0)
                        cut = times(one, 1.0, OWN)
                    factor = part["weight"] * cut
                    if name in SUMMED:
                        factor /= part["weight"]
                    layout.pack(own, one, factor)
                    for flat, more in zip(mine, one, strict=True):
                        flat += more
                shares[part["worker"]] = shares.get(part["worker"], 0) + part["weight"]
        weight = sum(shares.values())
        if name == "clipping and summing now and then":
            for worker, mine in brought.items():
                for flat in mine if shares[worker] else ():
                    flat *= flat.dtype.type(1.0 / shares[worker])
        if name == "coarsely":
            for worker, mine in brought.items():
                own = errors.setdefault(worker, layout.allocate())
                for flat, error in zip(mine, own, strict=True):
                    flat[...] = coarse(flat, error)
        if weight:
            total = summed(brought, steps[-1], rests)
            scale = 1.0 if "summing" in name else 1.0 / weight
            if name.startswith("clipping") and name != "clipping and summing now and then":
                scale *= times(total, scale, AVERAGE)
            optimizer.apply(layout, flats, total, memory, float(steps[0]["rate"]), scale)
    return current
