"""`spotmpi.bench.overhead`: that it would find an overhead, and that it runs. Never a timing."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import pytest

from spotmpi.bench import overhead
from spotmpi.bench.overhead import Overhead
from spotmpi.errors import UsageError


def noisy(excess: float, n: int = 60) -> list[tuple[float, float]]:
    """Pairs whose second is slower by ``excess``, under noise that hits both of a pair alike."""
    draw = random.Random(3)
    pairs = []
    for _ in range(n):
        bare = 0.010 * draw.uniform(1, 3)
        pairs.append((bare, bare * (1 + excess) * draw.uniform(0.98, 1.02)))
    return pairs


def overhead_of(params: int, pairs: list[tuple[float, float]]) -> Overhead:
    """Two workers', whose bare loop takes half as long in place, and spotmpi a quarter of that with
    gradients in place."""
    half = [bare / 2 for bare, _ in pairs]
    return Overhead(2, params, 10, pairs, half, [one / 4 for one in half])


def test_what_reducing_in_place_saves_is_told_apart() -> None:
    found = overhead_of(1_000_000, [(0.004, 0.003)] * 5)
    assert found.percent[0] == pytest.approx(-25)
    assert overhead.percent(found.pairs_in_place)[0] == pytest.approx(50)
    assert overhead.milliseconds(found.pairs_in_place)[0] == pytest.approx(1)
    assert overhead.percent(found.pairs_born)[0] == pytest.approx(-75)


def test_an_overhead_that_is_there_is_found() -> None:
    found = overhead_of(25_600_000, noisy(0.10))
    middle, lower, upper = found.percent
    assert 8 < lower <= middle <= upper < 12
    assert found.target == ("at most 3 %", False)


def test_no_overhead_is_not_found() -> None:
    found = overhead_of(25_600_000, noisy(0.0))
    _, lower, upper = found.percent
    assert lower < 0.5
    assert upper > -0.5
    assert found.target == ("at most 3 %", True)


def test_a_small_model_may_be_slower_by_a_constant() -> None:
    assert overhead_of(1_000_000, [(0.001, 0.0011)]).target == ("at most 3 % or 0.15 ms", True)
    assert overhead_of(1_000_000, [(0.001, 0.0012)]).target == ("at most 3 % or 0.15 ms", False)
    assert overhead_of(1000, [(0.001, 0.002)]).target is None


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    overhead.add_arguments(parser)
    return parser.parse_args(words)


def test_both_sides_run_in_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "overhead.json"
    options = ("--workers", "2", "--params", "1000", "--pairs", "4", "--json", str(file))
    assert overhead.main(arguments(*options)) == 0
    results = json.loads(file.read_text())
    (cell,) = results["cells"]
    assert (cell["workers"], cell["params"], len(cell["pairs"])) == (2, 1000, 4)
    assert all(bare > 0 and ours > 0 for bare, ours in cell["pairs"])
    assert len(cell["in_place"]) == len(cell["born"]) == 4
    assert results["failures"] == []
    assert results["machine"]["cores"] >= 1
    shown = capsys.readouterr().out
    assert "1 k" in shown
    assert "in place" in shown


def test_wrong_arguments_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        overhead.main(arguments("--workers", "0"))
    with pytest.raises(UsageError, match="no such folder"):
        overhead.main(arguments("--json", str(tmp_path / "none" / "x.json")))
