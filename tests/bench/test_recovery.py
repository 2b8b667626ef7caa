"""`spotmpi.bench.recovery`, small: that what it says happened did happen. Never a timing."""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

import pytest

from spotmpi.bench import recovery
from spotmpi.bench.measuring import launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.scripts import floor
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job
from tests import fake_cupy


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    recovery.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.matrix
@pytest.mark.parametrize("script", [(), ("--ddp",)])
def test_both_sides_lose_workers_and_recover(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    script: tuple[str, ...],
) -> None:
    if script:
        pytest.importorskip("torch", reason="no torch: python -m pip install torch")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    file, plot = tmp_path / "recovery.json", tmp_path / "recovery.png"
    size = ("--workers", "5", "--params", "1000", "--lost", "1", "--runs", "1", *script)
    assert recovery.main(arguments(*size, "--json", str(file), "--plot", str(plot))) == 0
    results = json.loads(file.read_text())
    assert results["failures"] == []
    (cell,) = results["cells"]
    for side in ("spotmpi", "floor"):
        # Two recoveries in the one job, of 5 workers and of the 4 that were left.
        assert [sample["workers"] for sample in cell[side]] == [5, 4]
        for sample in cell[side]:
            assert 0 < sample["dying"] < 60_000
            assert 0 < sample["total"] < 60_000
            assert sum(sample["phases"].values()) == pytest.approx(sample["total"], abs=0.01)
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr()
    assert "Where the last survivor's time goes" in shown.out
    assert "floor" in shown.out


@pytest.mark.matrix
def test_workers_with_a_device_are_lost_and_recover(tmp_path: Path, fake_device: Path) -> None:
    file = tmp_path / "recovery.json"
    size = ("--workers", "4", "--params", "1000", "--lost", "1", "--runs", "1")
    with fake_cupy.installed():
        assert recovery.main(arguments("--gpu", *size, "--json", str(file))) == 0
    results = json.loads(file.read_text())
    assert results["failures"] == []
    (cell,) = results["cells"]
    assert [len(cell[side]) for side in ("spotmpi", "floor")] == [1, 1]
    assert fake_device.exists()


def test_the_floor_holds_nothing_of_spotmpi() -> None:
    tree = ast.parse(Path(floor.__file__).read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported
    assert not any(str(name).startswith("spotmpi") for name in imported)


@pytest.mark.matrix
def test_a_job_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "forever.py"
    script.write_text("import os, signal\nprint('here I stay', flush=True)\nsignal.pause()\n")
    said = r"still running after 20 s; its last words:\nhere I stay"
    with temporary_job.private_folder(2) as folder, pytest.raises(JobFailed, match=said):
        launching.by_mpirun(2, [str(script)], folder, 20)
    assert not folder.exists()


def test_a_training_that_fails_is_no_sample(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("raise SystemExit('a mistake')\n")
    said = r"(?s)ended with code 1;.*a mistake"
    with temporary_job.private_folder(2) as folder, pytest.raises(JobFailed, match=said):
        launching.by_spotmpi(2, [str(script)], tmp_path / "trace", folder, 60)


@pytest.mark.matrix
def test_a_training_that_diverges_is_a_sample(tmp_path: Path) -> None:
    script = tmp_path / "far.py"
    script.write_text(
        "import numpy as np, spotmpi\n"
        "from spotmpi.optimizers import SGD\n"
        "with spotmpi.Trainer([np.ones(2)], optimizer=SGD(lr=1)) as trainer:\n"
        "    trainer.step([np.full(2, np.inf)])\n"
    )
    with temporary_job.private_folder(2) as folder:
        launching.by_spotmpi(2, [str(script)], tmp_path / "trace", folder, 60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workers", "0"), "at least 1"),
        (("--runs", "0"), "at least 1"),
        (("--ddp", "--gpu"), "in memory of the host"),
        (("--ddp", "--hosts", "3"), "--hosts goes with"),
        (("--workers", "2", "--lost", "2"), "one must be left"),
        (("--workers", "4", "--json", "/nowhere/x.json"), "no folder /nowhere"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        recovery.main(arguments(*words))


def test_what_does_not_fit_into_memory_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "free_memory", lambda: 1 << 20)
    assert recovery.main(arguments("--workers", "2", "--lost", "1")) == 0
    assert "left out: 2 workers with 1 M floats need" in capsys.readouterr().err
