"""What README.md says is so: its example runs, its tables are the code's, its names exist."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.launch import run

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    return README.partition(f"\n{title}\n")[2].partition("\n#")[0]


def table(title: str) -> dict[str, str]:
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section(title), re.MULTILINE)
    return {left.strip("`"): right for left, right in rows if not left.startswith("---")}


def learned(said: str) -> list[float]:
    return [float(number) for number in said.partition("[")[2].partition("]")[0].split()]


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
    assert "recovered from the loss of workers 0, 2 at step 4" in done.stderr
    assert train.with_name("run.jsonl").is_file()


def test_its_exit_codes_are_those_of_the_command() -> None:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    assert parser.epilog is not None
    told = dict(re.findall(r"^  (\d+) +(.+)$", parser.epilog, re.MULTILINE))
    page = {code: row.replace("`", "") for code, row in table("## Commands").items()}
    assert {code: row for code, row in page.items() if code.isdigit()} == told
    assert told.keys() == set("0 1 2 69 71 75 130".split())


def test_its_commands_are_those_that_exist() -> None:
    page = {row.split()[1] for row in table("## Commands") if row.startswith("spotmpi ")}
    shown = re.findall(r"^  (\w+)  ", cli._help(), re.MULTILINE)
    assert page == set(shown)


@pytest.mark.parametrize("extra", ["demo", "test"])
def test_ci_finds_the_command_that_installs(extra: str) -> None:
    pattern = re.search(r"s/(\^.*?)/\\1/p", (ROOT / ".ci" / "run").read_text())
    assert pattern is not None, ".ci/run reads the commands with sed -n s/../../p"
    # from sed's basic regular expressions, in a shell's double quotes, to Python's
    basic = pattern[1].replace("$1", extra)
    extended = basic.replace(r"\(", "(").replace(r"\)", ")")
    assert len(re.findall(extended, README, re.MULTILINE)) == 1


def test_its_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_functions_that_it_walks_through_exist() -> None:
    classes = {
        "Apply": "operators",
        "Dealer": "sampler",
        "Driver": "driver",
        "Fabric": "fabric",
        "GradientAverage": "operators",
        "Journal": "journal",
        "Layout": "buffers",
        "Ledger": "ledger",
        "Member": "member",
        "Momentum": "optimizers",
        "MpiFabric": "fabric.mpi",
        "Recovery": "recovery",
        "Replica": "replica",
        "Sampler": "sampler",
        "Trainer": "trainer",
    }
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", section("## How it works") + walks()))
    assert {owner for owner, _ in named} == set(classes)
    for owner, function in named:
        if owner == "MpiFabric":  # importing it would start MPI
            source = (ROOT / "spotmpi" / "fabric" / "mpi.py").read_text()
            assert f"    def {function}(" in source, function
            continue
        found = getattr(import_module(f"spotmpi.{classes[owner]}"), owner)
        assert hasattr(found, function), f"{owner}.{function}"


def test_the_files_that_it_walks_through_exist() -> None:
    files = re.findall(r"[\w/]+\.py\b", walks().replace("\\", ""))
    assert len(set(files)) > 10
    lost = [f for f in files if not any((ROOT / place / f).is_file() for place in (".", "spotmpi"))]
    assert lost == []


def walks() -> str:
    return section("### One step, through the code") + section("### One recovery, through the code")
