"""docs/strategies.md: its names and numbers are those of the code, and what it shows works."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.bench.convergence import against, aims
from spotmpi.bench.stragglers import Run, gaps, speeds
from spotmpi.optimizers import SGD
from spotmpi.strategies import NAMES, named
from tests.docs.pages import ROOT, blocks

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")


def test_the_table_has_every_strategy_with_what_is_usual() -> None:
    rows = re.findall(r"^\| `([a-z]+[^`]*)` \| `(\w+)", PAGE, re.MULTILINE)
    assert dict(rows) == {str(made().name): made.__name__ for made in NAMES.values()}


def test_what_asynchrony_is_worth_is_what_was_measured() -> None:
    file = ROOT / "bench" / "results" / "stragglers.json"
    for name, runs in json.loads(file.read_text(encoding="utf-8"))["runs"].items():
        some = [
            Run(*({int(one): at for one, at in run[kind].items()} for kind in Run._fields))
            for run in runs
        ]
        kept = median(median(speeds(run)) for run in some)
        after, without = (1e3 * median(one) for one in zip(*map(gaps, some), strict=True))
        assert f"| `{name}` | {kept:.2f} | {after:.0f} ms | {without:.0f} ms |" in PAGE


def test_the_command_names_a_strategy() -> None:
    (given,) = re.findall(r"--strategy (\S+) train.py", PAGE)
    assert named(given).steps == 64


def test_the_operator_that_it_shows_does_what_it_says() -> None:
    code = blocks(PAGE, "python")[1]
    assert sum(bool(line) for line in code.splitlines()) <= 15
    found: dict[str, Any] = {}
    exec(code, found)  # noqa: S102 - the page's own
    with spotmpi.Trainer(
        [np.full(3, 2.0)], optimizer=SGD(lr=0.5), strategy=found["strategy"]
    ) as trainer:
        trainer.step([np.ones(3)])
        np.testing.assert_allclose(trainer.params[0], (2.0 - 0.5) * (1 - 0.1 * 0.5))


def measured() -> dict[tuple[str, str], Any]:
    """What the bench has found, by set and strategy."""
    files = sorted((ROOT / "bench" / "results").glob("convergence-*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert all(one["failures"] == [] for one in found)
    return {(cell["set"], cell["strategy"]): cell for one in found for cell in one["cells"]}


def spread(text: str) -> list[float]:
    """A median and the ends, as the table has them."""
    return [float(one) for one in re.findall(r"[-+]?\d+\.\d", text)]


def of(values: Sequence[float]) -> Any:
    """The same of samples, as near as the table says it."""
    return pytest.approx([median(values), min(values), max(values)], abs=0.0502)


def test_accuracies_are_those_measured() -> None:
    cells = measured()
    bases = {name: cell for (name, strategy), cell in cells.items() if strategy == "ssgd"}
    rows = re.findall(r"^\| (digits|teacher) \| `(.*?)` \| (.*) \|$", PAGE, re.MULTILINE)
    for name, strategy, rest in rows:
        rate, without, revoked, change, gap, near = rest.split(" | ")
        cell = cells.pop((name, strategy))
        assert float(rate) == cell["rate"]
        assert spread(without) == of([100 * one for one in cell["without"].values()])
        assert spread(revoked) == of([100 * one for one in cell["with"].values()])
        assert len(cell["with"]) == len(cell["without"]) == 5
        assert spread(change) == of(against(cell))
        assert spread(gap) == of(against(cell, bases[name]))
        holds = all(aim.holds for aim in aims([bases[name], cell]))
        assert (near == "yes") == holds, (name, strategy)
    assert cells == {}, "not on the page"


def test_what_the_page_says_of_revocations_was_measured() -> None:
    changes = {key: against(cell) for key, cell in measured().items()}
    assert "**Revocations cost no strategy a point**, in the median" in PAGE
    assert all(median(points) > -1 for points in changes.values())
    worst = min(changes, key=lambda key: min(changes[key]))
    assert worst == ("digits", "lookahead")
    assert f"Lookahead's on digits, {-min(changes[worst]):.1f} points" in PAGE
