"""The gradient noise scale that a policy sees is that of the gradients."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spotmpi.arrays.backend import HOST
from spotmpi.training.gradients.gradient_lengths import GradientLengths
from tests.training.noisy import DEVIATION, EACH

SCRIPT = Path(__file__).with_name("noisy.py")


@pytest.mark.parametrize(
    ("size", "strategy", "pieces"),
    [
        (50_000, "ssgd", 0),
        (50_000, "lookahead", 0),
        (500, "ssgd", 0),
        (50_000, "lookahead", 3),
        (900, "ssgd", 3),
    ],
)
@pytest.mark.first("900-ssgd-3")
def test_a_policy_sees_it(size: int, strategy: str, pieces: int, run_spotmpi) -> None:
    # Sums go right into the next state, or lie in an arena, or arrive where the gradient was, which
    # may come in pieces. The worker that dies takes along a part of one sum: that counts for
    # nothing.
    how = [str(size), "100", strategy, str(pieces)]
    done = run_spotmpi(["run", "-n", "3", "--revoke", "1@31", SCRIPT, *how])
    assert done.returncode == 0, done.stderr
    found = re.findall(r"NOISE (\S+) (\d+)", done.stdout)
    assert found[0][0] == "None"  # it is told a survey later
    assert len(found) >= 6
    assert float(found[-1][0]) == pytest.approx(DEVIATION**2 / EACH**2, rel=0.25)


@pytest.mark.matrix
def test_where_models_differ_nothing_is_known_of_it(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "2", SCRIPT, "500", "70", "localsgd:h=4"])
    assert done.returncode == 0, done.stderr
    assert {one for one, _ in re.findall(r"NOISE (\S+) (\d+)", done.stdout)} == {"None"}


def test_slices_are_measured_as_they_are_summed_and_anew_if_that_is_done_again() -> None:
    size = 70_000
    mine, yours = HOST.zeros("float32", size), HOST.zeros("float32", size)
    mine[...], yours[...] = 0.5, 2.0
    moved: list[slice] = []
    measured = GradientLengths()
    move = measured.beside(lambda part, _inputs, _weights: moved.append(part))
    for _ in range(2):
        measured.begin()
        for part in (slice(0, 66_000), slice(66_000, size)):
            move(part, [mine[part], yours[part]], [1.0, 3.0])
        move(slice(0, 0), [], [])  # nobody brought anything to it
    measured.bring([mine], 4.0)
    measured.end(4.0, 8.0)
    assert len(moved) == 6
    assert measured.known == (
        4,
        pytest.approx(size * 0.25),
        8,
        pytest.approx(size * 6.5**2 / 64),
        size,
    )
