"""`spotmpi.bench.switches`: what is said of its times, and that it runs. Never a timing."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench import switches
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.switches import Told, Turn

NAMES = ["ssgd", "localsgd:h=2", "ssgd"]
EVERY = 8


def told(late: float = 0.0, at: int = 9, asks: bool = True, before: int = 0) -> Told:
    """Steps of 10 ms, and of 20 ms where localsgd has a round; the one at this place takes longer.
    The changes come one step, and one round, after they are asked for; or so many steps sooner."""
    took = [0.01] * 9 + [0.01, 0.02] * 5 + [0.01] * 8
    took[at] += late
    over = list(itertools.accumulate(took))
    changed = [8 - before, 18 - before]
    asked = [over[8 - 1] + 0.001, over[18 - 2] + 0.001] if asks else []
    return Told(over, [*range(1, len(over) + 1)], changed, asked)


def test_a_change_costs_what_its_longest_step_takes_beyond_those_of_usual_rounds() -> None:
    one = switches.turn({0: told(), 1: told(late=0.05, asks=False)}, NAMES, EVERY)
    assert one.changes == pytest.approx([60.0, 20.0])
    assert one.calm[1] == pytest.approx([20.0, 20.0])
    assert [len(rounds) for rounds in one.calm] == [6, 2, 6]
    assert switches.usual(NAMES, one) == pytest.approx({"ssgd": 10.0, "localsgd:h=2": 20.0})
    (there, back) = switches.costs(NAMES, one)
    assert (there[0], back[0]) == (("ssgd", "localsgd:h=2"), ("localsgd:h=2", "ssgd"))
    assert there[1] == pytest.approx((40.0, 0.0))
    assert back[1] == pytest.approx((0.0, 0.0))


@pytest.mark.parametrize(("at", "change", "calm"), [(12, 70.0, 20.0), (13, 20.0, 60.0)])
def test_a_change_is_over_with_the_second_round(at: int, change: float, calm: float) -> None:
    one = switches.turn({0: told(), 1: told(late=0.05, at=at)}, NAMES, EVERY)
    assert one.changes == pytest.approx([change, 20.0])
    assert one.calm[1] == pytest.approx([calm, 20.0])


def test_workers_that_change_after_different_steps_are_no_measurement() -> None:
    with pytest.raises(JobFailed, match="not all workers changed after the same steps"):
        switches.turn({0: told(), 1: told(before=1)}, NAMES, EVERY)
    with pytest.raises(JobFailed, match="not all workers changed"):
        switches.turn({0: told()}, [*NAMES, "sma"], EVERY)


def test_the_page_says_which_changes_cost_more_than_a_step() -> None:
    turns = [Turn([32.0, 20.0], [[10.0, 11.0, 10.0], [20.0, 24.0, 20.0], [10.0]])] * 3
    page = "\n".join(switches.page(NAMES, turns, ms=10.0))
    assert "localsgd:h=2                           20.0 (20.0 .. 20.0) ms" in page
    assert (
        "MISSED  ssgd -> localsgd:h=2 costs a step at most: 1.20 steps, 12.0 (12.0 .. 12.0) ms; "
        "calm 4.0 (4.0 .. 4.0) ms"
    ) in page
    assert "holds   localsgd:h=2 -> ssgd costs a step at most: 0.00 steps" in page


@pytest.mark.matrix
def test_a_training_goes_from_one_strategy_to_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "switches.json"
    names = ["ssgd", "adpsgd:control=4", "diloco:h=4,fragments=2,delay=1", "ssgd"]
    options = ["--workers", "2", "--params", "8000", "--every", "16", "--ms", "2", "--turns", "1"]
    asked = [*options, "--strategies", *names, "--json", str(file)]
    assert cli.main(["bench", "switches", *asked]) == 0
    results = json.loads(file.read_text())
    assert results["strategies"] == names
    (one,) = results["turns"]
    assert all(longest >= 2.0 for longest in one["changes"])
    assert [len(rounds) for rounds in one["calm"]] == [14, 2, 6, 14]
    assert f" {' -> '.join(names[:2])} costs a step at most: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (["--workers", "1"], "--workers is 2 or more"),
        (["--strategies", "sma"], "--strategies are two or more"),
        (["--strategies", "sma", "sma:pull=0.9"], "each differs from the one before"),
        (["--every", "24"], r"--every is 24, expected 32 or more"),
        (["--every", "36"], r"a multiple of \[1, 4, 8\]"),
    ],
)
def test_what_measures_nothing_is_refused(
    wrong: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "switches", *wrong]) != 0
    assert re.search(why, capsys.readouterr().err)
