"""`spotmpi.bench.growing`, small: that what it says happened did happen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.bench import growing
from spotmpi.bench.measuring.events import JobFailed

CELL = {
    "set": "digits",
    "one": {"1": 0.97, "2": 0.96, "3": 0.95},
    "naive": {"1": 0.95, "2": 0.94, "3": 0.94},
    "adaptive": {"1": 0.965, "2": 0.97, "3": 0.92},
}


def test_ways_are_compared_seed_by_seed() -> None:
    assert growing.difference(CELL, "naive", "one") == pytest.approx([-2, -2, -1])
    near, better = growing.aims([CELL])
    assert near.holds
    assert "-0.5 points against one (-3.0 .. +1.0), aim -1.0" in str(near)
    assert better.holds
    worse = {**CELL, "adaptive": {"1": 0.94, "2": 0.93, "3": 0.92}}
    assert [aim.holds for aim in growing.aims([worse])] == [False, False]


def steps(*sizes: int) -> list[dict[str, Any]]:
    """As many samples as workers in each, all of one pass."""
    found: list[dict[str, Any]] = []
    at = 0
    for number, size in enumerate(sizes):
        contributions = [
            {"worker": one, "step": number, "weight": 1, "samples": [at + one]}
            for one in range(size)
        ]
        at += size
        found.append(
            {
                "event": "step",
                "step": number,
                "generation": size,
                "workers": [*range(size)],
                "contributions": contributions,
            }
        )
    return found


def test_one_must_have_come_after_the_other_and_all_samples_count_once() -> None:
    assert growing.check(steps(1, 1, 2, 3, 3, 4), 14, 1) == [2, 3, 5]
    for some, samples, why in (
        (steps(1, 2, 3, 3), 9, "was to have 1 to 4 workers, and had {1, 2, 3}"),
        (steps(1, 3, 4), 8, "had {1, 3, 4}"),
        (steps(1, 2, 3, 2, 3, 4), 15, "had {1, 2, 3, 4}"),
        (steps(1, 2, 3, 4), 12, "not every sample counted once"),
    ):
        with pytest.raises(JobFailed, match=why):
            growing.check(some, samples, 1)


@pytest.mark.matrix
def test_a_training_grows_from_one_worker_to_four(run_spotmpi, tmp_path: Path) -> None:
    file = tmp_path / "growing.json"
    words = ["--sets", "digits", "--seeds", "2", "--rates", "0.05", "--passes", "4"]
    done = run_spotmpi(["bench", "growing", *words, "--json", file], timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(file.read_text())
    assert results["failures"] == []
    (cell,) = results["cells"]
    for way in growing.WAYS:
        assert 0.8 < cell[way]["2"] < 1
    for way in ("naive", "adaptive"):
        first, second, third = cell["came"][way]["2"]
        # The first quarter of the samples are a whole pass of one worker.
        assert 1437 // 12 <= first < second < third
    assert "points against one" in done.stdout
