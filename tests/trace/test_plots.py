"""`spotmpi.trace.plots`: that it draws what a trace holds, and whatever a trace may hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image

from spotmpi.errors import TraceError
from spotmpi.trace import plots
from spotmpi.trace.records import Record

MACHINE = {"cpu": "a cpu", "cores": 2}


def step(number: int, workers: Sequence[int], seconds: float, loss: object) -> Record:
    return {"event": "step", "step": number, "workers": workers, "seconds": seconds, "loss": loss}


def trace(total_ms: float | None = 40.0, loss: object = None) -> list[Record]:
    """60 steps of 8 workers, of which three die in step 20 and one in step 22."""
    records: list[Record] = []
    alive = list(range(8))
    for number in range(60):
        for generation, (at, lost) in enumerate([(20, [0, 3, 5]), (22, [6])], start=1):
            if number != at:
                continue
            alive = [worker for worker in alive if worker not in lost]
            fields = {
                "generation": generation,
                "step": at,
                "total_ms": total_ms,
                "detect_ms": None if total_ms is None else 8.0,
                **dict.fromkeys(("revoke_ms", "reconcile_ms", "accept_ms", "restart_ms"), 2.0),
            }
            records += [{"event": "recovered", "worker": w, **fields} for w in alive]
            records.append({"event": "recovery", "lost": lost, **fields})
        value = math.exp(-number / 20) if loss is None else loss
        records.append(step(number, list(alive), 0.06 if number in (20, 22) else 0.005, value))
    return records


def drawn(path: Path) -> tuple[int, int]:
    """Width and height of the picture, which is not empty."""
    pixels = image.imread(path)
    assert pixels.std() > 0.05
    return pixels.shape[1], pixels.shape[0]


def test_a_run_with_recoveries_is_drawn(tmp_path: Path) -> None:
    plots.draw(trace(), tmp_path / "run.png")
    width, height = drawn(tmp_path / "run.png")
    assert (width, height) == (1500, 1425)


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(trace(total_ms=None), id="deaths unknown"),
        pytest.param(trace(loss=None), id="a loss that is no number"),
        pytest.param(trace(loss=-1.0), id="a negative loss"),
        pytest.param([step(0, [0], 0.01, 1.0)], id="one step alone"),
        pytest.param([step(n, [0], 0.01, 0.0) for n in (5, 6)], id="resumed"),
    ],
)
def test_whatever_a_trace_holds_is_drawn(records: list[Record], tmp_path: Path) -> None:
    if records[0]["step"] == 5:
        records = [{"event": "resume", "step": 5}, *records]
    plots.draw(records, tmp_path / "run.png")
    drawn(tmp_path / "run.png")


@pytest.mark.parametrize("numbers", [(0, 2), ()], ids=["a gap", "no step"])
def test_a_trace_that_does_not_tell_a_run_is_not_drawn(
    numbers: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(TraceError):
        plots.draw([step(n, [0], 0.01, 1.0) for n in numbers], tmp_path / "run.png")
    assert list(tmp_path.iterdir()) == []


def cell(workers: int, params: int, lost: int, n: int) -> dict[str, Any]:
    def samples(base: float) -> list[dict[str, float]]:
        return [{"total": base + 3 * i} for i in range(n)]

    sides = {"spotmpi": samples(40.0 + lost), "floor": samples(35.0)}
    return {"workers": workers, "params": params, "lost": lost, **sides}


def test_boxes_are_drawn_with_a_panel_for_each_size(tmp_path: Path) -> None:
    cells = [cell(w, 1_000_000, lost, 8) for w in (16, 32) for lost in (1, 2, 3)]
    results = {"machine": MACHINE, "versions": {"Open MPI": "5"}, "date": "2026-01-01T00:00"}
    plots.draw_boxes({**results, "cells": cells}, tmp_path / "one.png")
    cells.append(cell(4, 25_600_000, 1, 1))
    plots.draw_boxes({**results, "cells": cells}, tmp_path / "two.png")
    one, two = drawn(tmp_path / "one.png"), drawn(tmp_path / "two.png")
    assert one[0] == two[0]
    assert one[1] < two[1]


def test_cells_without_samples_are_left_out(tmp_path: Path) -> None:
    results = {"machine": MACHINE, "versions": {"Open MPI": "5"}, "date": "2026-01-01T00:00"}
    empty = {**cell(16, 1_000_000, 1, 0)}
    plots.draw_boxes({**results, "cells": [empty]}, tmp_path / "none.png")
    assert (tmp_path / "none.png").exists()
