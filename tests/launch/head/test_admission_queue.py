"""Which newcomer is brought in next, and by whom."""

from __future__ import annotations

import random

import pytest

from spotmpi.launch.head.admission_queue import Growth


def come(growth: Growth, worker: int) -> None:
    """A newcomer comes so far that it waits."""
    growth.heard(worker, "waiting")


def training(*workers: int, most: int | None = None) -> Growth:
    growth = Growth(most)
    for worker in workers:
        growth.trains(worker)
    return growth


def test_newcomers_are_brought_in_one_at_a_time_as_they_came() -> None:
    growth = training(0, 1)
    assert growth.next() is None
    come(growth, 5)
    come(growth, 4)
    assert growth.next() == (0, 5)
    assert growth.next() == (0, 5)
    growth.heard(5, "admitted")
    assert growth.next() == (0, 4)


def test_without_anybody_that_trains_newcomers_wait() -> None:
    growth = Growth()
    come(growth, 5)
    assert growth.next() is None
    growth.trains(0)
    assert growth.next() == (0, 5)


def test_a_newcomer_that_learns_is_no_sponsor_until_it_trains() -> None:
    growth = training(0)
    come(growth, 5)
    growth.next()
    growth.heard(5, "admitted")
    come(growth, 6)
    assert growth.gone(0) == ()
    assert growth.next() is None
    growth.heard(5, "trains")
    assert growth.next() == (5, 6)


@pytest.mark.parametrize("event", ["gone", "leaves"])
def test_who_goes_or_is_to_go_takes_what_it_was_to_bring_in_along(event: str) -> None:
    growth = training(0, 1)
    come(growth, 5)
    come(growth, 6)
    growth.next()
    assert getattr(growth, event)(0) == (5,)
    assert growth.next() == (1, 6)


def test_the_end_of_a_newcomer_that_is_being_brought_in_makes_way_for_the_next() -> None:
    growth = training(0)
    come(growth, 5)
    come(growth, 6)
    growth.next()
    assert growth.gone(5) == ()
    assert growth.next() == (0, 6)


def test_one_that_ends_while_it_waits_is_not_brought_in() -> None:
    growth = training(0)
    come(growth, 5)
    growth.gone(5)
    assert growth.next() is None


def test_one_that_trains_and_goes_takes_nobody_along_but_its_own() -> None:
    growth = training(0, 1)
    come(growth, 5)
    growth.next()
    assert growth.gone(1) == ()
    assert growth.next() == (0, 5)


def test_a_newcomer_that_could_not_be_brought_in_is_named_once() -> None:
    growth = training(0)
    come(growth, 5)
    growth.next()
    assert growth.failed(6) == ()
    assert growth.failed(5) == (5,)
    assert growth.failed(5) == ()
    assert growth.next() is None


def test_what_a_sponsor_says_of_a_newcomer_that_is_in_comes_too_late() -> None:
    growth = training(0)
    come(growth, 5)
    growth.next()
    growth.heard(5, "admitted")
    assert growth.failed(5) == ()


def test_with_as_many_as_there_may_be_newcomers_are_spares_until_one_is_gone() -> None:
    growth = training(0, 1, most=3)
    for worker in (5, 6):
        come(growth, worker)
    assert growth.next() == (0, 5)
    growth.heard(5, "admitted")
    assert growth.next() is None
    growth.leaves(1)  # it trains until it is gone
    assert growth.next() is None
    growth.gone(1)
    assert growth.next() == (0, 6)


@pytest.mark.parametrize("seed", range(100))
def test_whatever_happens_a_pair_is_one_that_trains_and_one_that_waits(seed: int) -> None:
    """And nobody is forgotten: as long as somebody trains, all that wait are brought in."""
    chance, most = random.Random(seed), random.Random(seed).choice([None, 3, 6])
    growth = Growth(most)
    sponsors, waiting, learning, going = set(range(3)), set(), set(), set()
    for worker in sponsors:
        growth.trains(worker)
    number = 3
    for _ in range(200):
        pair = growth.next()
        inside = len(sponsors | learning | going)
        if pair is not None:
            assert pair[0] in sponsors
            assert pair[1] in waiting
        else:
            assert not waiting or not sponsors or (most is not None and inside >= most)
        match chance.choice(["waits", "waits", "admitted", "trains", "gone", "leaves", "gave_up"]):
            case "waits":
                come(growth, number)
                waiting.add(number)
                number += 1
            case "admitted" if pair is not None:
                growth.heard(pair[1], "admitted")
                waiting.discard(pair[1])
                learning.add(pair[1])
            case "trains" if learning:
                worker = learning.pop()
                growth.heard(worker, "trains")
                sponsors.add(worker)
            case "leaves" | "gone" as event if sponsors:
                worker = chance.choice([*sponsors, *waiting, *learning, *going])
                if event == "leaves" and worker not in sponsors:
                    continue
                dropped = getattr(growth, event)(worker)
                assert dropped == ((pair[1],) if pair is not None and worker == pair[0] else ())
                if event == "leaves":
                    going.add(worker)
                else:
                    going.discard(worker)
                for known in (sponsors, waiting, learning):
                    known.discard(worker)
                waiting.difference_update(dropped)
            case "gave_up" if pair is not None:
                assert growth.failed(pair[1]) == (pair[1],)
                waiting.discard(pair[1])
