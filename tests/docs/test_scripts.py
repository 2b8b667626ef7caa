"""What docs/scripts.md shows runs, and its table says what the samples in bench/results say."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from spotmpi.bench import growing
from spotmpi.bench.measuring.figures import middle_and_ends
from tests.docs.pages import DOCS, ROOT, blocks, table

BEFORE = """
from dataclasses import dataclass
import numpy as np
import spotmpi
from spotmpi.optimizers import Momentum

x, y = np.ones((100, 2)), np.zeros(100)
w0 = w1 = w2 = np.ones((2, 2))
b0 = b1 = np.zeros(2)
size = []


def gradient(params, x, y):
    size.append(len(x))
    return 1.0, {"w": np.ones(2)}

"""
ENTER = 'trainer = spotmpi.Trainer({"w": w0[0]}, optimizer=Momentum(lr=0.05)).__enter__()\n'


def shown(title: str, tmp_path: Path, before: str = BEFORE) -> dict[str, object]:
    """What the block of a section of the page leaves, run as a script."""
    page = (DOCS / "scripts.md").read_text(encoding="utf-8")
    (block,) = blocks(page.partition(f"\n## {title}\n")[2].partition("\n## ")[0], "python")
    (tmp_path / "shown.py").write_text(before + block)
    return runpy.run_path(str(tmp_path / "shown.py"))


@pytest.mark.usefixtures("alone")
def test_micro_batches_are_given_as_shown(tmp_path: Path) -> None:
    left = shown("Micro-batches", tmp_path, BEFORE + ENTER)
    assert left["size"] == [16, 16, 16, 16, 16, 16, 4]
    assert left["trainer"].steps == 2  # type: ignore[attr-defined]


@pytest.mark.usefixtures("alone")
def test_a_loop_over_passes_is_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = shown("A loop over passes", tmp_path, BEFORE + ENTER)
    assert left["trainer"].steps == 40  # type: ignore[attr-defined]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"pass {number}" for number in range(10)]
    assert {line.split(",")[0].split()[-1] for line in lines} == {"1.0000"}


@pytest.mark.usefixtures("alone")
def test_nested_parameters_are_as_shown(tmp_path: Path) -> None:
    left = shown("Nested parameters", tmp_path)
    layer = left["trainer"].params["encoder"][1]  # type: ignore[attr-defined]
    assert type(layer) is left["Layer"]
    np.testing.assert_array_equal(layer.weight, np.ones((2, 2)))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the tests themselves run under MPI."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)


def test_trainings_that_grow_are_as_accurate_as_measured() -> None:
    page = (DOCS / "scripts.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "bench" / "results" / "growing.json").read_text(encoding="utf-8"))
    assert measured["failures"] == []
    assert all(aim.holds for aim in growing.aims(measured["cells"]))
    said = {name: cells for name, *cells in table(page, "Learning rate", 1)}
    for cell in measured["cells"]:
        assert said.pop(cell["set"]) == [
            *(middle_and_ends([100 * one for one in cell[way].values()]) for way in growing.WAYS),
            *(
                middle_and_ends(growing.difference(cell, way, "one"), "+")
                for way in ("naive", "adaptive")
            ),
        ]
    assert said == {}, "not measured"
