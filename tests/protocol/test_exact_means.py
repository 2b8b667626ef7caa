"""Means are exact, whatever the numbers are and whatever carries them."""

from __future__ import annotations

import math
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from spotmpi.protocol.control_word import MOST_WORKERS
from spotmpi.protocol.exact_means import WORDS, decode, encode

FINITE = st.floats(allow_nan=False, allow_infinity=False)
LARGEST, SMALLEST = np.finfo(np.float64).max, np.finfo(np.float64).smallest_subnormal


def mean(numbers: list[float]) -> float:
    """As workers compute it, each with one of these numbers."""
    total = np.zeros(WORDS)
    for number in numbers:
        total += encode(np.array([number]))
    return decode(total, len(numbers))[0]


@given(st.lists(FINITE, min_size=1, max_size=12))
@example([LARGEST] * 7)
@example([SMALLEST, 0.0, -0.0, LARGEST, -LARGEST])
def test_a_mean_is_rounded_once(numbers: list[float]) -> None:
    assert mean(numbers) == float(sum(map(Fraction, numbers)) / len(numbers))


@given(FINITE, st.integers(1, MOST_WORKERS))
@example(16777217.0, 7)
@example(1e300, MOST_WORKERS)
@example(LARGEST, MOST_WORKERS)
@example(SMALLEST, MOST_WORKERS)
@example(-0.1, 3)
def test_the_mean_of_equal_numbers_is_that_number(number: float, workers: int) -> None:
    many = workers * encode(np.array([number]))
    assert abs(many).max() < 2**53  # below it float64 holds every whole number
    assert decode(many, workers) == [number]


def test_what_is_not_finite_makes_the_mean_so() -> None:
    assert mean([1.0, math.inf]) == math.inf
    assert mean([-math.inf, 3.0]) == -math.inf
    assert math.isnan(mean([math.inf, -math.inf]))
    assert math.isnan(mean([math.nan, math.inf, 1.0]))


def test_numbers_do_not_disturb_each_other() -> None:
    numbers = np.array([0.1, 1e300, -3.0, np.inf, 5e-324])
    np.testing.assert_array_equal(decode(encode(numbers) * 3, 3), numbers)


@pytest.mark.parametrize("many", [0, 1, 1000])
def test_any_number_of_numbers_may_be_carried(many: int) -> None:
    numbers = np.random.default_rng(many).standard_normal(many)
    np.testing.assert_array_equal(decode(encode(numbers), 1), numbers)
