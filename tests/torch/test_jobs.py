"""The scripts of jobs/pytorch, which know nothing of spotmpi, lose their first worker."""

from __future__ import annotations

import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path

import pytest

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from tests.launch.conftest import start  # noqa: F401

JOBS = Path(__file__).parents[2] / "jobs" / "pytorch"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "arguments", "begun", "last"),
    [
        ("train_ddp", "--epochs 1", "batch 10:", "it has not seen"),
        ("train_resnet", "--epochs 2 --images 960", "batch 5:", "epoch 1"),
        ("train_accelerate", "", "rank 0: .* epoch 1", "epoch 4"),
        ("train_lightning", "", "rank 0: .* epoch 1", "epoch 4"),
        ("train_transformers", "", "rank 0: .* epoch 1", "epoch 4"),
    ],
)
def test_it_goes_on(
    start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    arguments: str,
    begun: str,
    last: str,
) -> None:
    package = name.partition("_")[2]
    if package not in ("ddp", "resnet") and not find_spec(package):
        pytest.skip(f"no {package}: python -m pip install {package}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    script = JOBS / f"{name}.py"
    running = start("run", "-n", 3, script, *arguments.split())
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


def test_images_are_read_in_the_form_of_cifar_10(tmp_path: Path) -> None:
    resnet = run_path(str(JOBS / "train_resnet.py"))
    for number in range(2):
        rows = [bytes([number + 3]) + bytes(range(256)) * 12, bytes([9]) + bytes(3072)]
        (tmp_path / f"data_batch_{number}.bin").write_bytes(b"".join(rows))
    x, y = resnet["read"](sorted(tmp_path.glob("data_batch_*.bin")))
    assert y.tolist() == [3, 9, 4, 9]
    assert x.shape == (4, 3, 32, 32)
    assert x[2, 0, 0].tolist() == list(range(32))  # red, the first row
    assert x[2, 1, 7, 31] == 255
    assert not x[3].any()
