"""`spotmpi.bench.measuring.figures`: that differences which are there are found, and no others."""

from __future__ import annotations

import random

import pytest

from spotmpi.bench.measuring import figures
from spotmpi.bench.measuring.figures import Aim


def noisy(excess: float, turns: int = 60) -> dict[str, list[float]]:
    """Two sides, of which one is slower by ``excess``, under noise that meets both of a turn."""
    draw = random.Random(3)
    sides: dict[str, list[float]] = {"bare": [], "spotmpi": []}
    for _ in range(turns):
        bare = 0.010 * draw.uniform(1, 3)
        sides["bare"].append(bare)
        sides["spotmpi"].append(bare * (1 + excess) * draw.uniform(0.98, 1.02))
    return sides


def test_an_excess_that_is_there_is_found() -> None:
    middle, lower, upper = figures.percent(noisy(0.10), "spotmpi", "bare")
    assert 8 < lower <= middle <= upper < 12


def test_no_excess_is_not_found() -> None:
    _, lower, upper = figures.percent(noisy(0.0), "spotmpi", "bare")
    assert lower < 0.5
    assert upper > -0.5


def test_how_many_times_faster_is_the_median_of_the_turns() -> None:
    sides = {"mpi": [3.0, 4.0, 50.0], "spotmpi": [1.0, 2.0, 10.0]}
    assert figures.times(sides, "mpi", "spotmpi") == (3.0, 2.0, 5.0)
    assert figures.times(sides, "mpi", "spotmpi").say() == "3.00 (2.00 .. 5.00)"


def test_sides_that_have_not_the_same_turns_are_not_compared() -> None:
    with pytest.raises(ValueError, match="shorter"):
        figures.times({"mpi": [1.0, 2.0], "spotmpi": [1.0]}, "mpi", "spotmpi")


def test_sizes_are_said_as_one_says_them() -> None:
    assert [figures.size(n) for n in (10, 1000, 1_000_000, 25_600_000)] == [
        "10",
        "1 k",
        "1 M",
        "25.6 M",
    ]


def test_an_aim_says_whether_it_holds() -> None:
    assert str(Aim("fast", True)).split() == ["holds", "fast"]
    assert str(Aim("fast", False)).split() == ["MISSED", "fast"]
