"""What README.md says is so: its example runs, and its commands are what CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def learned(said: str) -> list[float]:
    return [float(number) for number in said.rpartition("[")[2].partition("]")[0].split()]


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """The example, as the file that the page calls it."""
    (example,) = blocks("python")
    script = tmp_path / "train.py"
    script.write_text(example)
    return script


def test_the_example_runs_alone(train: Path) -> None:
    done = subprocess.run(
        [sys.executable, train], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("1280 steps, workers (0,): [")
    assert learned(done.stdout) == pytest.approx(range(8), abs=0.3)


def test_the_example_runs_as_rehearsed_on_the_page(train: Path, run_spotmpi) -> None:
    (command,) = (
        line for block in blocks("bash") for line in block.splitlines() if "--trace" in line
    )
    name, *arguments = command.split()
    assert name == "spotmpi"
    done = run_spotmpi(arguments, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "steps, workers (1, 3): [" in done.stdout
    assert learned(done.stdout) == pytest.approx(range(8), abs=0.3)
    assert "recovered from the loss of workers 0, 2 at step 40" in done.stderr
    assert train.with_name("run.jsonl").is_file()


def test_the_line_that_keeps_the_training_can_be_repeated(train: Path, run_spotmpi) -> None:
    """And what it leaves is the trained model."""
    (command,) = (
        line for block in blocks("bash") for line in block.splitlines() if "--resume" in line
    )
    name, *arguments = command.split()
    assert name == "spotmpi"
    assert run_spotmpi(arguments, timeout=120).returncode == 0
    again = run_spotmpi(arguments, timeout=60)
    assert again.returncode == 0
    assert "the training is complete: 320 steps" in again.stderr
    (load,) = re.findall(r"`(spotmpi\.load\(.*?)`", README)
    code = f"import spotmpi; print({load}['w'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=train.parent, capture_output=True, text=True, check=True
    )
    assert learned(done.stdout) == pytest.approx(range(8), abs=0.3)


def test_what_it_is_for_and_what_not_stands_in_its_second_sentence() -> None:
    first, second, *_ = README.partition("\n\n")[2].split(". ")
    assert first.startswith("spotmpi trains")
    assert second.replace("\n", " ").startswith("It trains NumPy models and [PyTorch modules]")
    assert " not for " in second.replace("\n", " ")


@pytest.mark.parametrize("extra", ["demo", "test"])
def test_ci_finds_the_command_that_installs(extra: str) -> None:
    pattern = re.search(r"s/(\^.*?)/\\1/p", (ROOT / ".ci" / "environment").read_text())
    assert pattern is not None, ".ci/environment reads the commands with sed -n s/../../p"
    # from sed's basic regular expressions, in a shell's double quotes, to Python's
    basic = pattern[1].replace("$1", extra)
    extended = basic.replace(r"\(", "(").replace(r"\)", ")")
    assert len(re.findall(extended, README, re.MULTILINE)) == 1


def test_it_can_be_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= 120


def test_it_leads_to_each_page_about_what_spotmpi_does() -> None:
    linked = set(re.findall(r"\]\(docs/([^)#]+)", README))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert sorted(pages - linked) == []
