"""The scenarios of the contract in which models are published and fetched."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from spotmpi.fabric import Fetch, Fetched, Publish, Revoke, Send, Steps, Work
from tests.fabric.contract import (
    ALL,
    LEAVE_3,
    WORKERS,
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

LATER = 200
"""Fetches in which what is not to come would have."""


def others_than(me: int) -> list[int]:
    """From the next one on."""
    return [(me + step) % WORKERS for step in range(1, WORKERS)]


def publish(me: int, number: int) -> Steps[None]:
    """A model that tells whose it is, and which."""
    value = 1000 * me + number
    yield Publish([np.full(3, value, np.float64), np.full(5_001, value, np.float32)])


def told(found: Fetched) -> int:
    """What it says, all of it."""
    first, second = found.model
    assert first.dtype == np.float64
    assert second.dtype == np.float32
    assert first.shape == (3,)
    assert second.shape == (5_001,)
    (value,) = {*first.tolist(), *second.tolist()}
    assert value == 1000 * found.worker + found.number, "not what was published under this number"
    return int(value)


def fetched(worker: int, unread: bool = False) -> Steps[Fetched]:
    """The next model that comes, of whoever it is; this one is named."""
    while True:
        found: Fetched | None = yield Fetch(worker, unread)
        if found is not None:
            told(found)
            return found
        yield Work(os.sched_yield)


def until(worker: int, number: int) -> Steps[int]:
    """That worker's model of this number, or a later one; earlier ones come in their order."""
    last: dict[int, int] = {}
    while last.get(worker, -1) < number:
        found = yield from fetched(worker)
        assert last.get(found.worker, 0) <= found.number, "a model that is older than another was"
        last[found.worker] = found.number
    return number


def nothing(worker: int, unread: bool = False) -> Steps[str]:
    """That its model does not come; another one's may, that was asked for before."""
    others = 0
    for _ in range(LATER):
        if (found := (yield Fetch(worker, unread))) is not None:
            told(found)
            assert found.worker != worker
            others += 1
        yield Work(os.sched_yield)
    assert others <= 1
    return "nothing"


def from_all(workers: list[int], number: int) -> Steps[list[int]]:
    """The last model of each of these."""
    found = []
    for worker in workers:
        found.append((yield from until(worker, number)))
    return found


@scenario(all=[0, 0, 0])
def a_model_that_is_published_is_fetched_by_all_others(me: int) -> Steps[Any]:
    """Whole."""
    yield from publish(me, 0)
    found = yield from from_all(others_than(me), 0)
    yield from ones()
    return found


@scenario(all=[40, 40, 40])
def a_later_model_takes_the_place_of_an_earlier_one(me: int) -> Steps[Any]:
    """And none comes after one that was published later."""
    last = dict.fromkeys(range(WORKERS), 0)
    for number in range(41):
        yield from publish(me, number)
        if (found := (yield Fetch((me + 1 + number % 3) % WORKERS))) is not None:
            assert told(found) >= 1000 * found.worker + last[found.worker]
            last[found.worker] = found.number
    found_last = yield from from_all(others_than(me), 40)
    yield from ones()
    return found_last


@scenario(all=[[0, "nothing", 0], [1, "nothing", 1]])
def an_unread_model_is_given_to_one_worker_only(me: int) -> Steps[Any]:
    """Each has that of the next one, and the two others have it no more. Who takes what others have
    had still gets it."""
    seen = []
    for number in range(2):
        yield from publish(me, number)
        yield from ones()
        while True:  # what was asked for before may come first
            found = yield from fetched((me + 1) % WORKERS, unread=True)
            if found.worker == (me + 1) % WORKERS:
                break
        yield from ones()
        for other in others_than(me):
            left = yield from nothing(other, unread=True)
        for _ in range(LATER):  # no ask is under way any more, which could have the next model
            yield Work(os.sched_yield)
        yield from ones()
        again = yield from until((me + 2) % WORKERS, number)
        yield from ones()
        seen.append([found.number, left, again])
    return seen


@scenario(all="as it was")
def what_was_fetched_stays_as_it_is_until_the_next_fetch(me: int) -> Steps[Any]:
    """Whatever its publisher, and the one who fetched it, do meanwhile."""
    yield from publish(me, 0)
    found = yield from fetched((me + 1) % WORKERS)
    before = told(found)
    yield from ones()
    for number in range(1, 6):
        yield from publish(me, number)
    yield from ones()
    assert told(found) == before
    yield from ones()
    return "as it was"


@scenario(w0="nothing", w1=1, w2=1, w3=1)
def nothing_is_fetched_of_who_has_published_nothing_nor_by_it(me: int) -> Steps[Any]:
    """Worker 0 does not."""
    if me:
        yield from publish(me, 0)
        yield from publish(me, 1)
    yield from ones()
    if me:
        assert (yield from nothing(0)) == "nothing"
        assert (yield from nothing(me)) == "nothing", "its own"
        assert (yield from nothing(17)) == "nothing", "a stranger's"
        seen = yield from until(me % 3 + 1, 1)
    else:
        seen = yield from nothing(1)
    yield from ones()
    return seen


@scenario(all=[[0, 0, 0], [True, [0, 1, 2, 3]], [1, 1, 1]])
def models_are_fetched_again_after_a_revocation_and_a_build(me: int) -> Steps[Any]:
    """In between there may be some or none."""
    yield from publish(me, 0)
    first = yield from from_all(others_than(me), 0)
    yield from attempt(ones())
    yield Revoke()
    for worker in range(WORKERS):
        if (found := (yield Fetch(worker))) is not None:
            told(found)
    yield from publish(me, 1)
    built = yield from build(ALL)
    while not built[0]:
        built = yield from build(ALL)
    again = yield from from_all(others_than(me), 1)
    yield from ones()
    return [first, built, again]


@scenario(all=["nothing", [1, 1], [True, [0, 2, 3]], [2, 2]], dead=[1])
def the_others_go_on_fetching_past_a_death_and_after_the_build(me: int) -> Steps[Any]:
    """Of the dead one nothing comes, once that is known. Nobody has revoked before the build."""
    yield from publish(me, 0)
    yield from until((me + 1) % WORKERS, 0)
    if me != 1:
        yield Fetch(1)  # what comes of it is there when worker 1 is not
        for _ in range(LATER):
            yield Work(os.sched_yield)
    if me == 0:
        yield Send(1, token(9))
    if me == 1:
        yield from heard(tokens=1)
        raise Die
    others = [worker for worker in (0, 2, 3) if worker != me]
    yield from heard(1)
    gone = yield from nothing(1)
    yield from publish(me, 1)
    before = yield from from_all(others, 1)
    for number in (7, 8):  # the second one comes when the first has been with all
        yield from ring(me, [0, 2, 3], number)
    yield Revoke()
    built = yield from build(ALL - {1})
    yield from publish(me, 2)
    after = yield from from_all(others, 2)
    yield from ones()
    return [gone, before, built, after]


@scenario(all=[[True, [0, 1, 2, 3]], [1, 1], "nothing"], dead=[3])
def of_who_has_left_nothing_is_fetched_any_more(me: int) -> Steps[Any]:
    """Of the others as ever."""
    yield from publish(me, 0)
    yield from ones()
    left = yield from build(ALL, LEAVE_3)
    if me == 3:
        raise Go
    yield from publish(me, 1)
    found = yield from from_all([(me + 1) % 3, (me + 2) % 3], 1)
    gone = yield from nothing(3)
    yield from ones()
    return [left, found, gone]
