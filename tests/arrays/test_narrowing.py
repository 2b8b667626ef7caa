"""What workers keep of narrowed sums: nothing is lost, whoever narrows what, and how often."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spotmpi.arrays.narrowing import FORMATS, Narrowing, narrowed_sum

SIZE = 5000


def new(form: str = "int8") -> Narrowing:
    """Of a worker that has kept nothing."""
    return Narrowing(form, np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32))


def brought(me: int, number: int) -> np.ndarray:
    return np.random.default_rng([me, number]).standard_normal(SIZE).astype(np.float32)


@pytest.mark.parametrize("form", FORMATS)
def test_all_results_and_all_that_is_kept_are_all_that_was_brought(form: str) -> None:
    """Sums are given up and tried again, by others, who narrow other parts of it."""
    draw = random.Random(form)
    kept = {worker: new(form) for worker in range(6)}
    results, everything = np.zeros(SIZE), np.zeros(SIZE)
    for number in range(25):
        attempts = draw.choice((1, 1, 2, 3))
        for attempt in range(attempts):
            there = sorted(draw.sample(range(6), draw.randint(2, 6)))
            split = draw.randint(1, len(there) - 1)
            hosts = [there[:split], there[split:]]
            each = {one: brought(one, number) for one in there}
            if attempt + 1 < attempts:
                narrowed_sum(each, hosts, {one: kept[one] for one in there})
                for one in there:  # what is given up leaves anything there
                    for part in kept[one].parts:
                        kept[one].following[part] = np.nan
        if draw.random() < 0.2:  # not narrowed at all
            for one in there:
                kept[one].begin([])
                kept[one].turn()
            continue
        results += narrowed_sum(each, hosts, {one: kept[one] for one in there})
        everything += np.sum([each[one] for one in there], axis=0, dtype=np.float64)
        for one in there:
            kept[one].turn()
    rests = np.sum([one.rest for one in kept.values()], axis=0, dtype=np.float64)
    assert np.isfinite(rests).all()
    assert np.abs(results + rests - everything).max() < 1e-3
    assert np.abs(results - everything).max() < 1.0


def test_what_is_kept_elsewhere_stays_when_a_worker_narrows_another_part() -> None:
    one = new()
    one.begin([slice(0, 100)])
    one.following[:100] = 1
    one.turn()
    one.begin([slice(50, 200)])
    one.following[50:200] = 2
    one.turn()
    assert (one.rest[:50] == 1).all()
    assert (one.rest[50:200] == 2).all()
    one.begin([])
    assert (one.rest == one.following).all()


def test_what_is_given_up_is_not_kept() -> None:
    one = new()
    one.begin([slice(0, 100)])
    one.following[:100] = np.nan
    one.begin([slice(20, 30)])
    one.following[20:30] = 7
    one.turn()
    assert one.rest[20:30].tolist() == [7] * 10
    assert one.rest.sum() == 70
