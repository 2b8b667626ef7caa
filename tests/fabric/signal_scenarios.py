"""The scenarios of the contract in which workers tell each other marks."""

from __future__ import annotations

import os
from typing import Any

from spotmpi.fabric import MARK, Revoke, Send, Signal, Signals, Steps, Work
from tests.fabric.contract import (
    ALL,
    LEAVE_3,
    Die,
    Go,
    attempt,
    build,
    heard,
    ones,
    ring,
    scenario,
    token,
)


def tell(me: int, number: int) -> Steps[None]:
    """A mark that says whose it is, and which: as long as one may be."""
    yield Signal(bytes([me, number]) * (MARK // 2))


def seen(me: int, *workers: int) -> Steps[dict[int, int]]:
    """The number of the last mark of each of these; nobody else is there."""
    marks = yield Signals()
    assert set(marks) == {*workers} - {me}
    found = {}
    for worker, mark in marks.items():
        if mark is not None:
            assert mark == bytes([worker, mark[1]]) * (MARK // 2), "not what was told"
            found[worker] = mark[1]
    return found


def until(me: int, number: int, *workers: int) -> Steps[int]:
    """All of these have told that; earlier marks come in their order."""
    last: dict[int, int] = {}
    while set(last.values()) != {number} or set(last) != {*workers} - {me}:
        found = yield from seen(me, *workers)
        assert all(found.get(worker, -1) >= known for worker, known in last.items())
        last = found
        yield Work(os.sched_yield)
    return number


@scenario(all=[{}, 1])
def a_mark_comes_to_all_others(me: int) -> Steps[Any]:
    """None before it was told."""
    nothing = yield from seen(me, *ALL)
    yield from ones()
    yield from tell(me, 1)
    found = yield from until(me, 1, *ALL)
    yield from ones()
    return [nothing, found]


@scenario(all=40)
def a_later_mark_takes_the_place_of_an_earlier_one(me: int) -> Steps[Any]:
    """Whether anybody has looked meanwhile or not."""
    for number in range(1, 41):
        yield from tell(me, number)
        if number % (me + 2) == 0:
            yield from seen(me, *ALL)
    found = yield from until(me, 40, *ALL)
    yield from ones()
    return found


@scenario(w0=1, w1="told", w2=1, w3="told")
def nobody_waits_for_who_does_not_look(me: int) -> Steps[Any]:
    """Workers 1 and 3 only tell; all go on."""
    yield from tell(me, 1)
    if me % 2:
        for _ in range(20):
            yield from tell(me, 1)
    found = "told" if me % 2 else (yield from until(me, 1, *ALL))
    yield from ones()
    return found


@scenario(all=[1, [True, [0, 1, 2, 3]], 2])
def marks_come_again_after_a_revocation_and_a_build(me: int) -> Steps[Any]:
    """The control path is not revoked; a build that fails makes it anew."""
    yield from tell(me, 1)
    first = yield from until(me, 1, *ALL)
    yield from attempt(ones())
    yield Revoke()
    yield from tell(me, 1)
    yield from build(None)
    built = yield from build(ALL)
    yield from tell(me, 2)
    again = yield from until(me, 2, *ALL)
    yield from ones()
    return [first, built, again]


@scenario(all=[2, [True, [0, 2, 3]], 3], dead=[1])
def the_others_hear_each_other_past_a_death_and_after_the_build(me: int) -> Steps[Any]:
    """The dead one is not among them, once that is known."""
    yield from tell(me, 1)
    yield from until(me, 1, *ALL)
    yield from ring(me, [0, 1, 2, 3], 9)  # all have heard, when that has been round
    if me == 0:
        yield Send(1, token(10))
    if me == 1:
        yield from heard(tokens=1)
        raise Die
    yield from heard(1)
    yield from tell(me, 2)
    before = yield from until(me, 2, 0, 2, 3)
    for number in (7, 8):  # the second one comes when the first has been with all
        yield from ring(me, [0, 2, 3], number)
    yield Revoke()
    built = yield from build(ALL - {1})
    yield from tell(me, 3)
    after = yield from until(me, 3, 0, 2, 3)
    yield from ones()
    return [before, built, after]


@scenario(all=[[True, [0, 1, 2, 3]], 2], dead=[3])
def who_has_left_is_not_among_those_who_are_heard(me: int) -> Steps[Any]:
    """Nor told anything."""
    yield from tell(me, 1)
    yield from ones()
    left = yield from build(ALL, LEAVE_3)
    if me == 3:
        raise Go
    yield from tell(me, 2)
    found = yield from until(me, 2, 0, 1, 2)
    yield from ones()
    return [left, found]
