"""The scenarios of the contract in which workers add up sums without locks. They do so in turn:
what becomes of it where two add at the same moment nobody promises."""

from __future__ import annotations

from typing import Any

import numpy as np

from spotmpi.fabric import AddUp, Revoke, Send, Steps
from tests.fabric.contract import (
    ALL,
    LEAVE_3,
    WORKERS,
    Die,
    Go,
    build,
    heard,
    ones,
    scenario,
    token,
)


def add(value: float, number: int, among: list[int]) -> Steps[tuple[int, float | None]]:
    """That is this worker's part from now on, in all elements; of how many the sum is, and what."""
    part = [np.full(3, value), np.full(5_001, value, np.float32)]
    total = [np.full(3, -1.0), np.full(5_001, -1.0, np.float32)]
    many = yield AddUp(part, total, number, among)
    (found,) = {*total[0].tolist(), *total[1].tolist()}
    return many, found


def near(me: int, members: list[int]) -> Steps[list[int]]:
    """Those of them that share memory with this worker, and itself. All ask that."""
    found = []
    for one in members:
        many, _ = yield from add(0.0, 0, [me, one] if one != me else [me])
        if one == me or many == 2:
            found.append(one)
    yield from ones()
    return found


def in_turn(
    me: int, members: list[int], value: float, number: int
) -> Steps[tuple[int, float | None]]:
    """All add; what this one finds."""
    for one in members:
        if one == me:
            seen = yield from add(value, number, members)
        yield from ones()
    return seen


def right(us: list[int], before: dict[int, float], after: dict[int, float], me: int) -> Any:
    """What `me` finds, if those who come before it in turn have put in the one already, and the
    others still have the other."""
    if us == [me]:
        return 1, -1.0
    return len(us), float(sum(after[one] if one <= me else before[one] for one in us))


@scenario(all="right")
def what_workers_add_up_has_the_last_part_of_each_once(me: int) -> Steps[Any]:
    """Of those that share memory; in the next round there is nothing of it."""
    members = [*range(WORKERS)]
    us = yield from near(me, members)
    nothing = dict.fromkeys(members, 0.0)
    first = {one: 10.0**one for one in members}
    second = {one: 3.0 + one for one in members}
    for number in range(3):
        for before, after in ((nothing, first), (first, first), (first, second)):
            seen = yield from in_turn(me, members, after[me], number)
            assert seen == right(us, before, after, me)
    return "right"


@scenario(all=[[True, [0, 2, 3]], "right"], dead=[1])
def what_a_dead_worker_has_added_is_there_until_the_round(me: int) -> Steps[Any]:
    """Though all that it had is gone."""
    members = [*range(WORKERS)]
    us = yield from near(me, members)
    parts = {one: 10.0**one for one in members}
    for one in (1, 0, 2, 3):
        if one == me:
            yield from add(parts[me], 0, members)
        yield from ones()
    if me == 1:
        yield from heard(tokens=3)
        raise Die
    yield Send(1, token(me))
    yield from heard(1)
    yield Revoke()
    built = yield from build(ALL - {1})
    while not built[0]:
        built = yield from build(ALL - {1})
    members.remove(1)
    living = [one for one in us if one != 1]
    shares = len(living) > 1
    seen = yield from in_turn(me, members, parts[me], 0)
    assert seen == ((len(living), sum(parts[one] for one in us)) if shares else (1, -1.0))
    seen = yield from in_turn(me, members, parts[me], 1)
    assert seen == right(living, dict.fromkeys(members, 0.0), parts, me)
    return [built, "right"]


@scenario(all=[[True, [0, 1, 2, 3]], "right"], dead=[3])
def who_has_left_adds_nothing_up_any_more(me: int) -> Steps[Any]:
    """The others go on."""
    members = [*range(WORKERS)]
    us = yield from near(me, members)
    yield from in_turn(me, members, 1.0, 0)
    left = yield from build(ALL, LEAVE_3)
    if me == 3:
        raise Go
    members.remove(3)
    here = [one for one in us if one != 3]
    parts, nothing = dict.fromkeys(members, 2.0), dict.fromkeys(members, 0.0)
    assert (yield from in_turn(me, members, 2.0, 1)) == right(here, nothing, parts, me)
    return [left, "right"]
