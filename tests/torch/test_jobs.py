"""The scripts of jobs/pytorch, which know nothing of spotmpi, lose their first worker."""

from __future__ import annotations

import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from tests.launch.conftest import start  # noqa: F401

JOBS = Path(__file__).parents[2] / "jobs" / "pytorch"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "begun", "last"),
    [
        ("train_ddp", "batch 10:", "it has not seen"),
        ("train_accelerate", "rank 0: .* epoch 1", "epoch 4"),
        ("train_lightning", "rank 0: .* epoch 1", "epoch 4"),
        ("train_transformers", "rank 0: .* epoch 1", "epoch 4"),
    ],
)
def test_it_goes_on(
    start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    begun: str,
    last: str,
) -> None:
    package = name.partition("_")[2]
    if package != "ddp" and not find_spec(package):
        pytest.skip(f"no {package}: python -m pip install {package}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    script = JOBS / f"{name}.py"
    running = start("run", "-n", 3, script, *(("--epochs", 1) if package == "ddp" else ()))
    running.until(begun)
    (first,) = (
        wrapper
        for wrapper in running.wrappers
        if b"OMPI_COMM_WORLD_RANK=0" in Path(f"/proc/{wrapper}/environ").read_bytes().split(b"\0")
    )
    os.kill(first, signal.SIGKILL)
    assert running.wait() == 0, running.output
    assert "2 workers finished, 1 was revoked" in running.output
    said = re.findall(rf"rank (\d): ([\d.]+) .*{last}", running.output)
    assert {rank for rank, _ in said} == {"1", "2"}, running.output
    assert len({found for _, found in said}) == 1, running.output


@pytest.mark.matrix
@pytest.mark.parametrize("lost", [0, 1])
def test_a_newcomer_joins_a_script_for_lightning(
    start,  # noqa: F811
    tmp_path: Path,
    lost: int,
) -> None:
    """In place of the first worker, too, where it has a rank beyond the size."""
    if not find_spec("lightning"):
        pytest.skip("no lightning: python -m pip install lightning")
    text = (JOBS / "train_lightning.py").read_text()
    assert "EPOCHS, BATCH, RATE = 4, 16" in text
    (tmp_path / "long.py").write_text(text.replace("RATE = 4, 16", "RATE = 1000, 16"))
    running = start("run", "-n", 2, "--replace", "--revoke", f"{lost}@30", "long.py")
    running.until("worker 2 .* has joined")
    line = r"^\[{}\] rank {}: {} of all rows are right, epoch {}$"
    rank = 2 if lost == 0 else 1
    *_, last = running.until(line.format(2, rank, r"([\d.]+)", r"(\d+)"), times=3)
    other = 1 - lost
    running.until(line.format(other, other, *last.groups()))
