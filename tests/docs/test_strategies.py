"""docs/strategies.md: its names and numbers are those of the code, and what it shows works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import NAMES, named
from tests.docs.pages import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")


def test_the_table_has_every_strategy_with_what_is_usual() -> None:
    rows = re.findall(r"^\| `([a-z]+[^`]*)` \| `(\w+)", PAGE, re.MULTILINE)
    assert dict(rows) == {str(made().name): made.__name__ for made in NAMES.values()}


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
