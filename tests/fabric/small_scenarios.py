"""Scenarios of the contract in which small arrays are summed after a large one: then workers of one
host need no MPI for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spotmpi.bench.measuring.sums import summed as sum_over_all
from spotmpi.fabric import Revoke, Steps
from tests.fabric.contract import (
    ALL,
    LEAVE_3,
    WORKERS,
    Die,
    Go,
    arena,
    attempt,
    build,
    ones,
    scenario,
    summed,
)


def right(me: int, members: Sequence[int], times: int) -> Steps[str]:
    """Small sums, one right after the other, of other numbers and other sizes each."""
    for number in range(times):
        counted = np.arange(1.0 + number % 50)
        one = arena(counted * 10.0**me + number)
        yield from sum_over_all(one.parts)
        total = counted * sum(10.0**one for one in members) + number * len(members)
        assert (one.results[0] == total).all(), (number, one.results[0])
    return "right"


@scenario(all=[1111.0, "right", 1111.0, "right"])
def small_sums_follow_a_large_one(me: int) -> Steps[Any]:
    """And another large one."""
    found: list[Any] = []
    for _ in range(2):
        found.append((yield from summed(me)))
        found.append((yield from right(me, range(WORKERS), 100)))
    return found


def until_a_death(me: int) -> Steps[None]:
    """Small sums after a large one; worker 1 dies before the last. The others may still be in the
    one before then."""
    yield from summed(me)
    yield from right(me, range(WORKERS), 7)
    if me == 1:
        raise Die
    yield from ones()


@scenario(all=["lost", [True, [0, 2, 3]], "right", 1101.0, "right"], dead=[1])
def who_dies_while_the_others_wait_in_a_small_sum_ends_it(me: int) -> Steps[Any]:
    """Whoever is told revokes. The others go on, with small sums before a large one and after."""
    said = yield from attempt(until_a_death(me))
    yield Revoke()
    built = yield from build(ALL - {1})
    while not built[0]:
        built = yield from build(ALL - {1})
    first = yield from right(me, [0, 2, 3], 7)
    large = yield from summed(me)
    return [said, built, first, large, (yield from right(me, [0, 2, 3], 50))]


@scenario(all=["right", [True, [0, 1, 2, 3]], "right", 111.0, "right"], dead=[3])
def who_leaves_after_small_sums_is_missed_by_nobody(me: int) -> Steps[Any]:
    """They end for all before the build."""
    yield from summed(me)
    before = yield from right(me, range(WORKERS), 50)
    left = yield from build(ALL, LEAVE_3)
    if me == 3:
        raise Go
    first = yield from right(me, [0, 1, 2], 7)
    large = yield from summed(me)
    return [before, left, first, large, (yield from right(me, [0, 1, 2], 50))]
