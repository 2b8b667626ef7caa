"""`spotmpi.bench.stragglers`: what is said of its times, and that it runs. Never a timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench import stragglers
from spotmpi.bench.stragglers import Run


def steps(every: float, many: int = 40, pause: float = 0.0, after: int = 30) -> list[float]:
    """With a pause after one of them."""
    return [every * number + pause * (number > after) for number in range(1, many + 1)]


USUAL = {worker: steps(0.01) for worker in range(3)}
HELD_BACK = Run(
    USUAL,
    {worker: steps(0.05) for worker in range(3)},
    {0: steps(0.01, pause=0.5), 1: steps(0.01, pause=0.25), 2: steps(0.01, many=25)},
)
FREE = Run(USUAL, {0: steps(0.01), 1: steps(0.05, many=8), 2: steps(0.0125)}, HELD_BACK.death)


def test_what_the_others_keep_of_their_speed_and_how_long_they_stand_still() -> None:
    assert stragglers.speeds(HELD_BACK) == pytest.approx([0.2, 0.2])
    assert stragglers.speeds(FREE) == pytest.approx([1.0, 0.8])
    after, without = stragglers.gaps(HELD_BACK)
    assert after == pytest.approx(0.5)
    assert without == pytest.approx(0.0, abs=1e-9)


def test_the_page_says_whether_asynchrony_does_what_it_is_for() -> None:
    page = "\n".join(stragglers.page({"ssgd": [HELD_BACK], "adpsgd:control=4": [FREE, FREE]}))
    assert "0.20 (0.20 .. 0.20)      500.0 (500.0 .. 500.0)" in page
    assert "holds   adpsgd:control=4 keeps 0.90 of its speed: 0.90" in page
    page = "\n".join(stragglers.page({"adpsgd:control=4": [HELD_BACK]}))
    assert "MISSED  adpsgd:control=4 keeps 0.90 of its speed: 0.20" in page


@pytest.mark.matrix
def test_a_strategy_trains_undisturbed_with_a_slow_worker_and_with_a_death(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "stragglers.json"
    options = ["--workers", "3", "--params", "2000", "--steps", "48", "--ms", "2", "--turns", "1"]
    asked = [*options, "--strategies", "adpsgd:control=8", "--json", str(file)]
    assert cli.main(["bench", "stragglers", *asked]) == 0
    results = json.loads(file.read_text())
    (run,) = results["runs"]["adpsgd:control=8"]
    assert run.keys() == {"undisturbed", "slow", "death"}
    assert len(run["slow"]["1"]) < len(run["undisturbed"]["1"])
    assert run["death"]["2"][-1] < run["death"]["0"][-1]
    assert "adpsgd:control=8" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--workers", "2"], ["--steps", "8"], ["--turns", "0"]])
def test_what_measures_nothing_is_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "stragglers", *wrong]) != 0
    assert "--workers is 3 or more" in capsys.readouterr().err
