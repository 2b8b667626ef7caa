"""``bench kernels``: that both sides compute the same, and that it runs. Never a timing."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from spotmpi import cli
from spotmpi.bench import kernels
from spotmpi.bench.kernels import Measured
from spotmpi.bench.measuring import gpu_cases
from spotmpi.kernels import cpu, gpu
from tests import fake_cupy


def test_every_kernel_of_this_host_is_measured() -> None:
    measured = {case.name.split(",")[0].split()[0] for case in kernels.cpu_cases(2048)}
    assert measured == {*cpu.__all__} - {"warm"}
    assert all(inspect.isfunction(getattr(cpu, name)) for name in measured)


def test_every_kernel_of_a_gpu_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a device that is none: CuPy's side does nothing there."""
    for name in ("ElementwiseKernel", "add", "copyto", "dot", "isfinite", "sum"):
        monkeypatch.setattr(fake_cupy, name, MagicMock(), raising=False)
    with fake_cupy.installed():
        measured = {case.name.split(",")[0].split()[0] for case in gpu_cases.kernel_cases(2048)}
        assert measured == {*gpu.__all__}
        assert cli.main(["bench", "kernels", "--gpu", "--params", "2048", "--turns", "2"]) == 0
    assert "CuPy" in capsys.readouterr().out


def test_a_gpu_that_is_not_there_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for bench in ("kernels", "step", "recovery"):
        assert cli.main(["bench", bench, "--gpu"]) == 2
        assert "CuPy finds no GPU" in capsys.readouterr().err


def test_a_row_says_how_many_times_faster_than_numpy_and_which_part_of_a_copy() -> None:
    sides = {"spotmpi": [0.002, 0.002], "numpy": [0.006, 0.006], "copy": [0.001, 0.001]}
    row = kernels.line(Measured("momentum", 1_000_000, 20_000_000, "numpy", sides))
    assert row.split() == [
        *("momentum", "1", "M", "|", "2.000", "6.000", "|"),
        *("3.00", "(3.00", "..", "3.00),", "50%"),
    ]


def test_kernels_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels.json"
    arguments = ["--params", "2048", "--turns", "2", "--json", str(file)]
    assert cli.main(["bench", "kernels", *arguments]) == 0
    found = json.loads(file.read_text())
    assert found["failures"] == []
    cells = {cell["kernel"]: cell for cell in found["cells"]}
    for cell in cells.values():
        for side in ("spotmpi", "numpy", "copy"):
            assert len(cell[f"{side}_s"]) == 2
            assert min(cell[f"{side}_s"]) > 0
    assert cells["scaled_sum of 8"]["bytes"] == 9 * 4 * 2048
    assert "momentum" in capsys.readouterr().out


def test_wrong_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "kernels", "--params", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
