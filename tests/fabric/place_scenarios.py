"""The scenario of the contract in which each worker has an array of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from spotmpi.bench.measuring.sums import summed as sum_over_all
from spotmpi.fabric import Steps
from tests.fabric.contract import WORKERS, arena, scenario


@scenario(all=[[1000, 2000, 3000, 4000], [2000, 3000, 4000, 1000], 4444.0])
def what_each_brings_to_one_array_only_comes_to_all(me: int) -> Steps[Any]:
    """To another one in the second round, and to all in the third. To the rest it adds nothing,
    whatever is left there."""
    words = np.full(40_000, 7, np.uint32)
    one = arena(*[words] * WORKERS)
    found = []
    for turn in range(2):
        place = (me - turn) % WORKERS
        one.bring_only(place)
        one.contributions[place][...] = 1000 * (1 + me)
        yield from sum_over_all(one.parts)
        found.append([int(flat[0]) for flat in one.results])
        assert all((flat == flat[0]).all() for flat in one.results)
        one.turn()
    floats = arena(np.full(3, 4 * 10.0**me, np.float32))
    yield from sum_over_all(floats.parts)
    return [*found, float(floats.results[0][0])]
