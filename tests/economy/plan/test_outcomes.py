"""What many runs say, with the error that chance leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.economy.market.lifetimes import Exponential
from spotmpi.economy.plan.events import Runtime, Staff, Training
from spotmpi.economy.plan.outcomes import campaign, estimate, quantile, share

RUNTIME = Runtime("free", 0, 0, False, False, 60, math.inf, 0)
STAFF = Staff("worker", 4, 1.0, Exponential(2000.0), 0.0, 200.0)
PLAN = Training([STAFF], lambda counts: sum(counts) / 4000, "second")


def covered(interval: str, true: float, size: int = 200, samples: int = 400) -> float:
    """How often the 95 % interval of a sample holds the true figure."""
    chance = np.random.default_rng(0)
    hits = 0
    for _ in range(samples):
        sample = chance.exponential(1.0, size)
        if interval == "mean":
            figure = estimate(sample)
        elif interval == "share":
            found = share(int((sample > 1).sum()), size)
            hits += found.low <= true <= found.high
            continue
        else:
            figure = quantile(sample, float(interval))
        hits += figure.low <= true <= figure.high
    return hits / samples


@pytest.mark.parametrize(
    ("interval", "true"),
    [("mean", 1.0), ("0.5", math.log(2)), ("0.95", math.log(20)), ("share", math.exp(-1))],
)
def test_intervals_hold_what_they_promise(interval: str, true: float) -> None:
    assert 0.92 <= covered(interval, true) <= 0.99
    assert covered(interval, true * 1.5) < 0.5, "the check can fail"


def test_a_share_lies_within_its_interval() -> None:
    for runs in (1, 3, 7, 100, 1000):
        for count in (0, 1, runs - 1, runs):
            found = share(count, runs)
            assert 0 <= found.low <= found.value <= found.high <= 1


def test_a_small_sample_does_not_claim_to_know() -> None:
    assert quantile(np.array([1.0, 2.0, 3.0]), 0.95).high == math.inf
    assert estimate(np.array([1.0])).high == math.inf


def test_a_run_depends_on_its_seed_and_number_only() -> None:
    long, short = campaign(PLAN, RUNTIME, 20, 7), campaign(PLAN, RUNTIME, 5, 7)
    assert list(long.seconds[:5]) == list(short.seconds)
    assert list(campaign(PLAN, RUNTIME, 5, 8).seconds) != list(short.seconds)
    assert len(set(long.seconds)) > 3


def test_runs_that_never_end_are_no_sample_of_time() -> None:
    lonely = Staff("worker", 1, 1.0, Exponential(8000.0), 0.0, math.inf)
    lived = campaign(Training([lonely], PLAN.speed, "second"), RUNTIME, 200, 1)
    assert lived.ended.low < math.exp(-4000 / 8000) < lived.ended.high
    assert lived.ended.value == len(lived.seconds) / 200
    assert lived.within(1e9).value == lived.ended.value


def test_a_quantile_beside_an_infinite_one_is_a_number() -> None:
    """p50 of three, one of which never ended, is the slower of the other two."""
    assert quantile(np.array([1.0, 2.0, math.inf]), 0.5).value == 2.0
    assert quantile(np.array([1.0, 2.0, 5.0, math.inf]), 0.5).value == 3.5


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_are_those_of_numpy(sample: list[float], part: float) -> None:
    expected = float(np.quantile(np.array(sample), part))
    assert quantile(np.array(sample), part).value == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_quantiles_are_of_all_runs_and_may_be_never() -> None:
    lonely = Staff("worker", 1, 1.0, Exponential(8000.0), 0.0, math.inf)
    lived = campaign(Training([lonely], PLAN.speed, "second"), RUNTIME, 200, 1)
    half, most = lived.seconds_below(0.5), lived.seconds_below(0.95)
    assert half is not None
    assert half.value == pytest.approx(4000)  # 61 % end, all of them undisturbed
    assert most is None
    assert lived.dollars_below(0.5) is not None
    assert lived.dollars_below(lived.ended.value + 0.01) is None
    ended = campaign(PLAN, RUNTIME, 50, 1)
    assert ended.seconds_below(0.95) == quantile(ended.seconds, 0.95)


def test_progress_is_told() -> None:
    said: list[int] = []
    campaign(PLAN, RUNTIME, 3, 0, said.append)
    assert said == [1, 2, 3]
