"""The scripts of jobs/pytorch, which know nothing of spotmpi, lose their first worker."""

from __future__ import annotations

import os
import re
import signal
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from tests.launch.conftest import start  # noqa: F401

JOBS = Path(__file__).parents[2] / "jobs" / "pytorch"


@pytest.mark.parametrize(
    ("name", "arguments", "begun", "last"),
    [
        ("train_ddp", "--epochs 1", "batch 10:", "it has not seen"),
        ("train_resnet", "--epochs 2 --images 960", "batch 5:", "epoch 1"),
        ("train_accelerate", "", "rank 0: .* epoch 1", "epoch 4"),
        ("train_lightning", "", "rank 0: .* epoch 1", "epoch 4"),
        ("train_transformers", "", "rank 0: .* epoch 1", "epoch 4"),
    ],
    ids=lambda one: one.removeprefix("train_"),
)
@pytest.mark.first("accelerate--rank 0: .* epoch 1-epoch 4")
def test_it_goes_on(
    start,  # noqa: F811
    tmp_path: Path,
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
    if package in SAVED:
        best = max(re.findall(r"rank [12]: ([\d.]+) ", running.output))
        said_of = best if package == "lightning" else said[0][1]
        right = SAVED[package](tmp_path / "kept")
        # (After a loss the script tests some rows twice.)
        assert float(said_of) == pytest.approx(right, abs=0.01)
        assert "rank 0 is gone: from now on rank 1 saves what" in running.output


def of_rows(state: Any) -> float:
    """Return how many rows of Accelerate's and Lightning's scripts a network gets right."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(2048, 20)
    layers = torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3)
    module = torch.nn.Sequential(*layers)
    module.load_state_dict({name.removeprefix("layers."): one for name, one in state.items()})
    with torch.no_grad():
        return float((module(x).argmax(1) == x[:, :3].argmax(1)).float().mean())


def of_accelerate(kept: Path) -> float:
    """Return how many rows the network that it has saved gets right."""
    from safetensors.torch import load_file

    return of_rows(load_file(kept / "model.safetensors"))


def of_lightning(kept: Path) -> float:
    """Return how many rows the best network gets right."""
    import torch

    (best,) = kept.glob("*.ckpt")
    return of_rows(torch.load(best, weights_only=True)["state_dict"])


def of_transformers(kept: Path) -> float:
    """Return how many rows the network of its last checkpoint gets right."""
    import torch
    from transformers import BertForSequenceClassification

    last = max(kept.glob("checkpoint-*"), key=lambda one: int(one.name.partition("-")[2]))
    for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json"):
        assert (last / name).exists()
    torch.manual_seed(0)
    rows = run_path(str(JOBS / "train_transformers.py"))["Rows"]()
    model = BertForSequenceClassification.from_pretrained(last).eval()
    with torch.no_grad():
        guessed = model(input_ids=rows.x).logits.argmax(1)
    return float((guessed == rows.y).float().mean())


SAVED = {"accelerate": of_accelerate, "lightning": of_lightning, "transformers": of_transformers}
"""How much of what it has learned a model gets right that a script has saved, by package."""


EPOCHS = {
    "accelerate": "EPOCHS, BATCH, RATE = {}, 16",
    "lightning": "EPOCHS, BATCH, RATE = {}, 16",
    "transformers": "num_train_epochs={},",
}
"""How a script says how many epochs it trains."""


LIGHTNING_STEPS = 64
"""Of an epoch of its script, on two workers."""


@pytest.fixture
def long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a script that trains for many epochs, of a package's."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def made(package: str, many: int) -> Path:
        if not find_spec(package):
            pytest.skip(f"no {package}: python -m pip install {package}")
        text = (JOBS / f"train_{package}.py").read_text()
        assert EPOCHS[package].format(4) in text
        script = tmp_path / "long.py"
        script.write_text(text.replace(EPOCHS[package].format(4), EPOCHS[package].format(many)))
        return script

    return made


@pytest.mark.matrix
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("package", [*EPOCHS])
def test_a_newcomer_joins(start, long: Any, package: str, lost: int) -> None:  # noqa: F811
    """In place of the first worker, too, where it has a rank beyond the size."""
    script = long(package, 1000)
    running = start("run", "-n", 2, "--replace", "--revoke", f"{lost}@30", script)
    line = r"^\[{}\] rank {}: {} of all rows are right, epoch {}$"
    newcomers = line.format(2, 2 if lost == 0 else 1, r"([\d.]+)", r"(\d+)")
    # (What it has said in its rehearsal may come late.)
    between = r"\n(?:.*\n)*?"
    pattern = between.join(["worker 2 .* has joined.*", newcomers, newcomers])
    (found,) = running.until(pattern)
    other = 1 - lost
    running.until(line.format(other, other, *found.groups()[2:]))


@pytest.mark.matrix
def test_a_newcomer_joins_within_the_only_epoch(start, long: Any) -> None:  # noqa: F811
    """Of a Trainer that accumulates gradients, and tests after each hundredth step."""
    script = long("transformers", 1)
    text = script.read_text()
    for old, new in [
        ("ROWS = 50, 8, 1024", "ROWS = 50, 8, 1 << 20"),
        ('eval_strategy="epoch"', 'eval_strategy="steps", eval_steps=100'),
        ('save_strategy="epoch"', 'save_strategy="no", gradient_accumulation_steps=2'),
        ("eval_dataset=rows", "eval_dataset=torch.utils.data.Subset(rows, range(256))"),
        ("epoch {round(state.epoch)}", "step {state.global_step}"),
    ]:
        assert old in text
        text = text.replace(old, new)
    script.write_text(text)
    running = start("run", "-n", 2, "--replace", "--revoke", "1@30", script)
    running.until("worker 2 .* has joined")
    line = r"^\[{}\] rank {}: {} of all rows are right, step {}$"
    for said in running.until(line.format(2, 1, r"([\d.]+)", r"(\d+)"), 2):
        running.until(line.format(0, 0, *said.groups()))


@pytest.mark.matrix
@pytest.mark.parametrize("package", [*EPOCHS])
def test_a_job_that_was_stopped_goes_on(
    start,  # noqa: F811
    tmp_path: Path,
    long: Any,
    package: str,
) -> None:
    how = "run", "-n", 2, "--checkpoint", "kept"
    first = start(*how, script := long(package, 12))
    first.until("rank 0: .* epoch 3$")
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait() == 75, first.output
    again = start(*how, "--resume", script)
    assert again.wait() == 0, again.output
    line = r"rank {}: ([\d.]+) .* epoch (\d+)$"
    said, others = (re.findall(line.format(rank), again.output, re.MULTILINE) for rank in range(2))
    assert said == others, again.output
    # (Of epochs that were over Lightning says nothing, and the Trainer knows that they are.)
    over = {"accelerate": [1, 2, 3], "lightning": [], "transformers": [3, 3, 3]}[package]
    (step,) = re.findall(r"checkpoint of step (\d+) written", first.output)
    # (Lightning tests after as many batches as an epoch has: fewer were left of the fourth one.)
    untested = package == "lightning" and int(step) > 3 * LIGHTNING_STEPS
    assert [int(number) for _, number in said] == [*over, *range(4 + untested, 13)]
    if package == "lightning":  # it goes on from the best one so far, which has its place
        assert [one.name for one in (tmp_path / "kept").glob("*.ckpt")] == ["best.ckpt"]
    # In the rehearsal it has the model of the checkpoint before each pass, and after it.
    assert len({right for right, _ in said[: len(over)]}) <= 1
    assert float(said[len(over)][0]) > 0.7


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
