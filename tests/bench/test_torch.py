"""`spotmpi bench torch`: what is said of its times, and that it runs. Never a timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench.pytorch import steps as bench
from spotmpi.bench.pytorch.steps import Measured
from spotmpi.bench.scripts import gloo

SIDES = {"alone": [0.02, 0.03], "spotmpi": [0.04, 0.05], "gloo": [0.05, 0.06]}


def test_a_step_is_compared_with_gloo_s() -> None:
    row, aim = bench.lines(Measured(2, 1_000_000, "ddp", SIDES))
    assert str(row).split()[:7] == ["2", "1", "M", "|", "25.00", "45.00", "55.00"]
    assert aim == ("at most 1 of a step of gloo's DDP: 0.82", True)
    (_, aim) = bench.lines(Measured(2, 25_600_000, "ddp", SIDES))
    assert aim == ("at most 0.6 of a step of gloo's DDP: 0.82", False)
    (_, aim) = bench.lines(Measured(2, 25_600_000, "hsdp", SIDES))
    assert aim == ("at most 1 of the same step over gloo: 0.82", True)


def test_without_torch_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: False)
    assert cli.main(["bench", "torch"]) == 2
    assert "spotmpi[torch]" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: True)
    monkeypatch.setattr(gloo, "sees_devices", lambda: False)
    assert cli.main(["bench", "torch", "--gpu"]) == 2
    assert "torch finds no GPU" in capsys.readouterr().err


def test_ways_for_memory_of_the_host_are_refused_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: True)
    for way in ("overlap", "fsdp", "hsdp"):
        assert cli.main(["bench", "torch", "--gpu", "--by", way]) == 2
        assert f"--by {way} is for modules in memory of the host" in capsys.readouterr().err


def test_two_replicas_of_three_workers_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: True)
    assert cli.main(["bench", "torch", "--by", "hsdp", "--workers", "4", "3"]) == 2
    assert "even numbers of workers" in capsys.readouterr().err


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["optimizer", "overlap", "ddp", "fsdp", "hsdp"])
def test_all_sides_run_in_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    pytest.importorskip("torch", reason="no torch: python -m pip install torch")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    file = tmp_path / "torch.json"
    options = ["--workers", "2", "--params", "2000", "--turns", "2", "--json", str(file)]
    assert cli.main(["bench", "torch", *options, "--by", way]) == 0
    found = json.loads(file.read_text())
    (cell,) = found["cells"]
    assert (cell["workers"], cell["params"], found["failures"]) == (2, 2000, [])
    assert all(len(cell[f"{side}_s"]) == 2 and min(cell[f"{side}_s"]) > 0 for side in SIDES)
