"""Sums that go on while their workers do something else, within a host and between hosts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spotmpi.errors import PeersLost
from spotmpi.fabric.planes import travels
from spotmpi.fabric.planes.sum_thread import SumThread
from tests.fabric import test_rings
from tests.fabric.crew import (
    DATA,
    LIMIT,
    WORD,
    Worker,
    at_once,
    company,
    go_on,
    lose,
    no_memory_to_share,
    same,
)
from tests.fabric.crew import check as check_in_order
from tests.fabric.crew import expected as sums_in_order


@pytest.fixture(autouse=True)
def _short_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travels, "MESSAGE", 4096)


def on_one_host() -> tuple[list[Worker], Callable[[list[Worker], int], None]]:
    """Workers that have met, and what holds their rounds against what they must be."""
    return company(3), check_in_order


def on_three_hosts() -> tuple[list[Worker], Callable[[list[Worker], int], None]]:
    """The same between hosts."""
    return test_rings.company(1, 2, 1), test_rings.check


crews = pytest.mark.parametrize("crew", [on_one_host, on_three_hosts])


def threads() -> list[str]:
    """Those that sum."""
    return [one.name for one in threading.enumerate() if one.name == "spotmpi sums"]


def until(what: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + LIMIT
    while not what():
        assert time.monotonic() < end, "it never came"
        os.sched_yield()


def begin(worker: Worker, arrays: int = len(DATA)) -> None:
    """Hand over so many arrays of the next round, one by one."""
    worker.handles = []
    for part in worker.data.parts[:arrays]:
        worker.handles.append(worker.plane.start(part))
        worker.plane.proceed()


def begin_all(worker: Worker) -> None:
    """The whole round, with its control word: nothing is left to be said."""
    begin(worker)
    for part in worker.word.parts:
        worker.handles.append(worker.plane.start(part))
    worker.plane.proceed()


def end(worker: Worker) -> list[Any]:
    """The rest of it."""
    rest = [*worker.data.parts, *worker.word.parts][len(worker.handles) :]
    worker.handles += [worker.plane.start(part) for part in rest]
    worker.plane.wait(worker.handles)
    for arena in (worker.data, worker.word):
        arena.turn()
    return worker.record()


@crews
def test_what_is_there_is_summed_before_anybody_waits_for_it(crew: Any) -> None:
    workers, check = crew()
    check(workers, 0)
    for number in (1, 2):
        for worker in workers:
            worker.bring(number)
            for flat in worker.data.results:
                flat.fill(np.nan)
        at_once(workers, lambda worker: begin(worker, 1))
        until(lambda: all(np.isfinite(worker.data.results[0]).all() for worker in workers))
        assert len(threads()) == len(workers)
        found = at_once(workers, end)
        assert all(same(found[0], other) for other in found)
        assert not threads()
    check(workers, 3)


@crews
def test_some_hand_over_all_some_a_part_and_some_nothing(crew: Any) -> None:
    workers, check = crew()
    check(workers, 0)
    for worker in workers:
        worker.bring(1)

    def round_of(worker: Worker) -> list[Any]:
        begin(worker, [0, 2, len(DATA), 1][worker.me])
        return end(worker)

    found = at_once(workers, round_of)
    assert all(same(found[0], other) for other in found)
    check(workers, 2)


@crews
def test_when_all_have_said_all_nobody_waits_for_another_to_wait(crew: Any) -> None:
    """A worker goes on, and begins the next round, while others compute."""
    workers, check = crew()
    check(workers, 0)
    sums = sums_in_order if workers[0].post is None else test_rings.expected
    for worker in workers:
        worker.bring(1)
    at_once(workers, begin_all)
    for number in (1, 2, 3):
        for worker in workers:
            (found,) = at_once([worker], end)
            assert same(found, sums(workers, number))
            worker.bring(number + 1)
            begin_all(worker)
    for found in at_once(workers, end):
        assert same(found, sums(workers, 4))
    assert not threads()
    check(workers, 5)


@crews
def test_what_was_begun_is_given_up_though_nobody_is_lost(crew: Any) -> None:
    """A script that fails has its thread ended while the others compute."""
    workers, check = crew()
    check(workers, 0)
    worker = workers[0]
    worker.bring(1)
    begin(worker)
    assert threads()
    worker.plane.cancel(worker.handles)
    assert not threads()


@crews
@pytest.mark.parametrize("handed", [1, 2, len(DATA)])
def test_who_is_lost_with_half_of_it_handed_over_brings_nothing(crew: Any, handed: int) -> None:
    """The survivors bring nothing anew, and no thread touches their memory any more."""
    workers, check = crew()
    check(workers, 0)
    before = workers[1].record()
    for worker in workers:
        worker.bring(1)
    at_once(workers, lambda worker: begin(worker, handed if worker.me == 0 else len(DATA)))
    for worker in workers:
        worker.broken.set()

    # What is through may be through: the control word never is.
    for worker in workers[1:]:
        with pytest.raises(PeersLost):
            end(worker)
        worker.plane.cancel(worker.handles)
    workers[0].plane.cancel(workers[0].handles)
    assert not threads()
    assert same(workers[1].record(), before)
    post = workers[0].post
    lose(workers, 0)
    if post is not None:
        post.boxes.clear()
        post.__init__(len(workers))  # type: ignore[misc]
        for worker in workers:
            assert worker.line is not None
            worker.line.come_late()
    go_on(workers)
    # What was brought lies where it was.
    sums = (sums_in_order if post is None else test_rings.expected)(workers, 1)
    for found in at_once(workers, Worker.round):
        assert same(found[: len(DATA)], sums[: len(DATA)])
    check(workers, 2)


def test_without_threads_in_mpi_all_is_left_to_who_waits() -> None:
    workers = company(2)
    check_in_order(workers, 0)
    for worker in workers:
        worker.plane._ways = worker.plane._ways._replace(threads=False)  # type: ignore[attr-defined]
        worker.bring(1)
        begin(worker)
    assert not threads()
    found = at_once(workers, end)
    assert same(*found)


@crews
def test_after_a_change_of_the_members_the_first_round_is_begun_ahead_too(crew: Any) -> None:
    """It is yet to be seen whether all share their memory."""
    workers, check = crew()
    for worker in workers:
        worker.bring(0)
    at_once(workers, begin)
    until(lambda: all(worker.data.results[0].all() for worker in workers))
    assert len(threads()) == len(workers)
    found = at_once(workers, end)
    assert all(same(found[0], other) for other in found)
    check(workers, 1)


@crews
def test_what_not_all_share_is_left_to_who_waits(crew: Any) -> None:
    """Results do not change their place while scripts run."""
    workers, _ = crew()

    with no_memory_to_share():
        workers[1].furnish()
    for worker in workers:
        worker.bring(0)
    at_once(workers, begin)
    # On other hosts they wait for what this host says.
    until(lambda: len(threads()) == (0 if crew is on_one_host else len(workers) - 1))
    assert not any(worker.by_mpi_instead for worker in workers)
    assert all(worker.data.shared for worker in workers if worker is not workers[1])
    at_once(workers, end)
    assert all(len(worker.by_mpi_instead) == len(DATA) + len(WORD) for worker in workers)
    assert not any(getattr(worker.data, "shared", False) for worker in workers)


def test_what_the_thread_raises_is_raised_where_it_is_ended() -> None:
    def work(number: int) -> bool:
        raise ValueError(f"no {number}")

    beside = SumThread(work, "spotmpi sums")
    beside.give(7)
    beside.give(8)
    with pytest.raises(ValueError, match="no 7"):
        beside.end()
    assert not threads()
