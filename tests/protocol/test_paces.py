"""Workers take as many steps as they can in the time in which the others take theirs."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from spotmpi.protocol.paces import WIDTH, Pace, all_of, furthest, paces, read, write
from spotmpi.protocol.sampler import Sampler


def table(*known: Pace) -> np.ndarray:
    total = np.zeros(8 * WIDTH)
    for place, one in enumerate(known):
        own = np.ones(8 * WIDTH)
        write(own, place, one)
        total += own
    return total


def pace(worker: int, taken: int, seconds: float) -> Pace:
    return Pace(worker, taken, taken, 3 * taken, seconds)


def test_the_sum_of_all_tables_says_what_each_worker_has_told() -> None:
    known = [Pace(0, 8, 8, 24, 0.25), Pace(7, 9, 2, 5, 1e-3)]
    total = table(*known)
    nothing = np.ones(8 * WIDTH)
    write(nothing, -1, None)
    assert read(total + nothing) == known
    assert read(np.zeros(8 * WIDTH)) == []


def test_who_is_five_times_slower_takes_a_fifth() -> None:
    known = [pace(one, 10, 50.0 if one == 2 else 10.0) for one in range(4)]
    found = paces([0, 1, 2, 3], known, 16)
    assert sum(found) == 64
    assert found[2] in (4, 5, 6)
    assert max(found) - min(found[0], found[1], found[3]) <= 1


def test_who_seems_much_faster_gets_twice_as_many_and_then_twice_as_many_again() -> None:
    """It may have been alone in not being slowed down, for a moment."""
    workers, fast, dealt = [0, 1, 2, 3], 2, [16] * 4
    for most in (32, 49, 49):  # twelve times as fast as each of three others: 49 of 64 steps
        known = [
            Pace(one, dealt[one], dealt[one], 1, dealt[one] * (1.0 if one == fast else 12.0))
            for one in workers
        ]
        dealt = paces(workers, known, 16)
        assert sum(dealt) == 64
        assert dealt[fast] == most
    newcomer = [pace(0, 16, 10.0), pace(1, 16, 10.0), Pace(9, 0, 5, 5, 1e-3)]
    assert paces([0, 1, 9], newcomer, 16) == [8, 8, 32]
    two_fast = [pace(one, 16, seconds) for one, seconds in enumerate([1e-3, 2e-3, 2.0, 6.0, 6.0])]
    assert paces(range(5), two_fast, 16) == [32, 32, 9, 4, 3], "the others share the rest by speed"


def test_who_is_not_known_is_taken_for_one_in_the_middle() -> None:
    known = [pace(0, 10, 10.0), pace(1, 10, 20.0), pace(2, 10, 40.0), Pace(3, 9, 0, 0, 1.0)]
    assert paces([4], known, 5) == [5]
    one, two, unknown = paces([0, 2, 9], known, 100)
    assert one > unknown > two
    assert paces([5, 6], [], 3) == [3, 3]


@given(
    seconds=st.lists(st.floats(0, 1e6), min_size=1, max_size=9),
    taken=st.integers(0, 50),
    steps=st.integers(1, 40),
)
def test_everybody_takes_a_step_and_all_take_as_many_as_if_they_were_alike(
    seconds: list[float], taken: int, steps: int
) -> None:
    known = [pace(worker, taken, one) for worker, one in enumerate(seconds)]
    found = paces(range(len(seconds)), known, steps)
    assert min(found) >= 1
    assert max(found) <= 2 * max(steps, taken)
    assert sum(found) == steps * len(seconds)


def test_steps_that_were_left_out_count_in_proportion() -> None:
    assert all_of(8, [Pace(0, 8, 8, 1, 1.0), Pace(1, 8, 8, 1, 1.0)]) == 8
    assert all_of(8, [Pace(0, 12, 6, 1, 1.0), Pace(1, 4, 2, 1, 1.0)]) == 4
    assert all_of(8, [Pace(0, 50, 1, 1, 1.0), Pace(1, 50, 0, 0, 1.0)]) == 1
    assert all_of(8, []) == 8


def test_where_nobody_waits_for_the_last_one_steps_count_as_the_first_one_takes_them() -> None:
    assert furthest(8, [Pace(0, 8, 8, 1, 1.0), Pace(1, 8, 1, 1, 1.0)]) == 8
    assert furthest(8, [Pace(0, 12, 6, 1, 1.0), Pace(1, 4, 1, 1, 1.0)]) == 4
    assert furthest(8, [Pace(0, 50, 1, 1, 1.0), Pace(1, 0, 0, 0, 1.0)]) == 1
    assert furthest(8, []) == 8


@given(
    n=st.integers(0, 90),
    batch_size=st.integers(1, 9),
    steps=st.integers(1, 5),
    fates=st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers())),
)
def test_each_sample_counts_once_whoever_takes_how_many_steps(
    n: int, batch_size: int, steps: int, fates: list[tuple[list[int], int]]
) -> None:
    """Some are lost, and some take fewer steps than they were dealt."""
    sampler, workers = Sampler(n, batch_size, 2, [3]), [0, 1, 2, 3]
    counted: list[Counter[int]] = [Counter(), Counter()]
    while True:
        weights, fate = fates.pop() if fates else ([1, 2, 3, 4], 0)
        lease = sampler.deal(workers, steps, weights)
        if lease is None:
            break
        batches = [
            [lease.batch(one, step) for step in range(lease.steps_for(one))] for one in workers
        ]
        assert max(len(batch) for own in batches for batch in own) <= batch_size
        assert sum(len(batch) for own in batches for batch in own) == len(lease.samples)
        short = fate % 5
        taken = [len(own) - (slot == short and len(own) > 1) for slot, own in enumerate(batches)]
        lease = sampler.end(taken)
        assert lease is not None
        there = [one for one in workers if one != fate // 5 % 5]
        for one in there:
            used = [*np.concatenate(batches[one][: taken[one]])]
            assert used == lease.of(one).tolist()
            parts = [lease.part(one, step, 3) for step in range(3)]
            assert np.concatenate(parts).tolist() == used
            counted[lease.pass_number].update(used)
        assert lease.weigh(there) == (
            sum(len(lease.of(one)) for one in there),
            sum(bool(len(lease.of(one))) for one in there),
        )
        sampler.count(there)
    assert counted == [Counter(range(n))] * 2
