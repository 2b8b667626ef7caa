"""What docs/tutorial.md tells people to type works, and shows what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.running import Running

PAGE = (DOCS / "tutorial.md").read_text(encoding="utf-8")
LIMIT = 100
"""Seconds for what one block of the page says."""


def section(number: int) -> str:
    """One numbered section of the page."""
    return PAGE.partition(f"\n## {number}. ")[2].partition("\n## ")[0]


def pattern(line: str) -> str:
    """The shown line, whatever the job's name, its fractions and the numbers found are."""
    loose = re.sub(r"spotmpi\\-[0-9a-f]{12}", r"spotmpi-[0-9a-f]{12}", re.escape(line))
    loose = re.sub(r"\d+\\\.\d+", r"[\\d.]+", loose)
    return re.sub(r"found\\ .*", r"found \\[ *-?0\\.[ \\d.]+\\]", loose)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with the page's script in it."""
    (script,) = blocks(section(2), "python")
    (tmp_path / "train.py").write_text(script)
    return tmp_path


def typed(number: int, folder: Path) -> None:
    """Type what a section says, and look for what it shows."""
    for name, script in zip(["check.py"], blocks(section(number), "python"), strict=False):
        (folder / name).write_text(script)
    for commands, shown in zip(
        blocks(section(number), "bash"), blocks(section(number), "text"), strict=True
    ):
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["timeout", "--kill-after=5", str(LIMIT), "bash", "-ec", commands],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        missing = [
            line
            for line in shown.splitlines()
            if not re.search(f"^{pattern(line)}", done.stdout, re.M)
        ]
        assert missing == [], done.stdout


@pytest.mark.matrix
def test_the_script_runs_alone_and_on_four_workers(folder: Path) -> None:
    typed(3, folder)


@pytest.mark.matrix
def test_workers_are_lost_and_the_trace_proves_what_happened(folder: Path) -> None:
    typed(4, folder)
    typed(5, folder)
    (also,) = blocks((DOCS / "traces.md").read_text(encoding="utf-8"), "python")
    done = subprocess.run(
        [sys.executable, "-c", also],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1 recoveries\n"), done.stderr


@pytest.mark.matrix
def test_a_job_stops_with_too_few_workers_and_resumes(folder: Path) -> None:
    typed(6, folder)


@pytest.mark.matrix
def test_a_running_job_is_looked_at_and_stopped(folder: Path, run_spotmpi) -> None:
    start, ask = blocks(section(7), "bash")
    command = [sys.executable, "-m", *start.split()]
    with closing(Running(command, folder)) as job:
        job.until("step 100: loss")
        for line in ask.splitlines():
            _, *arguments = line.split()
            done = run_spotmpi(arguments)
            assert done.returncode == 0, done.stderr
        assert job.wait() == 75
