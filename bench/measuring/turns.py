"""Taking times in turn, so that what disturbs the machine meets all sides alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["Clock", "Step", "alone", "block", "compare", "take", "together"]

_WARM_UP = 2
"""Steps that say how long one usually takes."""

Step = Callable[[], object]

Clock = Callable[[Step, int], float]
"""Seconds of one step, of so many in a row."""


def alone(step: Step, steps: int) -> float:
    """The clock of a process that nobody waits for."""
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps


def together(comm: Any) -> Clock:
    """The clock of all workers of ``comm``, which is MPI's own: what the slowest takes, from when
    all are there. Collective."""

    def clock(step: Step, steps: int) -> float:
        comm.Barrier()
        took, of_all = np.array([alone(step, steps)]), np.empty(comm.Get_size())
        comm.Allgather(took, of_all)
        return float(of_all.max())

    return clock


def block(clock: Clock, step: Step, seconds: float, most: int) -> int:
    """How many steps take about so many seconds, 1 to ``most``."""
    clock(step, 1)  # which loads what it needs
    return min(most, max(1, round(seconds / clock(step, _WARM_UP))))


def take(
    clock: Clock, turns: int, sides: Mapping[str, Step], steps: Mapping[str, int]
) -> dict[str, list[float]]:
    """Of each side the seconds of a step, turn by turn.

    Each turn has a block of so many ``steps`` of each side, in an order that is drawn anew, the
    same in all processes.
    """
    order = random.Random(turns)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name in order.sample(list(sides), len(sides)):
            found[name].append(clock(sides[name], steps[name]))
    return found


def compare(
    clock: Clock, turns: int, sides: Mapping[str, Step], seconds: float, most: int
) -> dict[str, list[float]]:
    """The same, in blocks of about this many seconds, 1 to ``most`` steps."""
    steps = {name: block(clock, step, seconds, most) for name, step in sides.items()}
    return take(clock, turns, sides, steps)
