"""`spotmpi.bench.step`: what is said of its times, and that it runs. Never a timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench import step
from spotmpi.bench.step import Measured
from tests import fake_cupy

SIDES = {
    "bare": [0.060, 0.080],
    "plane": [0.030, 0.040],
    "spotmpi": [0.0303, 0.0404],
    "plane born": [0.010, 0.020],
    "born": [0.015, 0.020],
}


def test_a_step_is_compared_with_the_bare_loop_and_with_its_own_plane() -> None:
    found = Measured(2, "25.6 M", 25_600_000, SIDES)
    assert found.safety.middle == pytest.approx(1)
    assert found.safety_born.middle == pytest.approx(25)
    faster, born = found.aims
    assert faster == ("2.6 times faster than the bare loop: 1.98", False)
    assert born == ("3.6 times faster than the bare loop, gradients in place: 4.00", True)


def test_aims_depend_on_the_size_and_on_the_workers() -> None:
    (faster,) = Measured(4, "1 M", 1_000_000, SIDES).aims
    assert faster.text.startswith("3.3 times")
    assert list(Measured(3, "1 M", 1_000_000, SIDES).aims) == []
    (safety,) = Measured(2, "resnet50", 25_583_592, SIDES).aims
    assert safety == ("safety costs at most 2 %: 1.00", True)


def test_all_sides_run_in_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.json"
    options = ["--workers", "2", "--params", "1000", "--turns", "3", "--json", str(file)]
    assert cli.main(["bench", "step", *options]) == 0
    results = json.loads(file.read_text())
    (cell,) = results["cells"]
    assert (cell["workers"], cell["what"], cell["params"]) == (2, "1 k", 1000)
    for side in ("bare", "plane", "plane_born", "spotmpi", "born"):
        assert len(cell[f"{side}_s"]) == 3
        assert min(cell[f"{side}_s"]) > 0
    assert results["failures"] == []
    assert "1 k" in capsys.readouterr().out


@pytest.mark.matrix
def test_all_sides_of_a_gpu_run_in_one_job(
    tmp_path: Path, fake_device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "step.json"
    options = ["--workers", "2", "--params", "1000", "--turns", "2", "--json", str(file)]
    with fake_cupy.installed():
        assert cli.main(["bench", "step", "--gpu", *options]) == 0
    results = json.loads(file.read_text())
    (cell,) = results["cells"]
    assert (cell["workers"], cell["params"]) == (2, 1000)
    for side in ("bare", "spotmpi", "born", "staged", "staged_born"):
        assert len(cell[f"{side}_s"]) == 2
    assert results["failures"] == []
    assert fake_device.exists()
    assert "born" in capsys.readouterr().out


def test_a_model_that_does_not_fit_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "step", "--workers", "1000", "--models", "vgg16"]) == 0
    assert "left out: 1000 workers, vgg16" in capsys.readouterr().out
    assert step.needed(1, 1_000_000) == 56_000_000


def test_wrong_arguments_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "step", "--workers", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
    assert cli.main(["bench", "step", "--json", str(tmp_path / "none" / "x.json")]) == 2
    assert "no such folder" in capsys.readouterr().err
