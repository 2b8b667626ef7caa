"""`spotmpi jobs`: all that run, a line each."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.launch.commands import client
from spotmpi.launch.head.fates import WorkerState
from spotmpi.launch.head.status_report import StatusReport

LOST = WorkerState("h2", "revoked", "SIGKILL")
TRAINING = WorkerState("h1", "training", "")


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of jobs that run; those with an even name answer."""
    running: list[Path] = []
    standing = StatusReport("train.py", ["--passes", "3"]).report("", [TRAINING, LOST], {}, {})
    monkeypatch.setattr(client, "running", lambda: running)
    monkeypatch.setattr(
        client,
        "reports",
        lambda folders: [
            replace(standing, job=one.name, seconds=3700.0, step=70, steps_in_all=90)
            for one in folders
            if int(one.name[-1]) % 2 == 0
        ],
    )
    return running


def test_without_a_job_it_says_so(jobs, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["jobs"]) == 0
    assert capsys.readouterr().out == "no job of yours runs on this host\n"
    assert cli.main(["jobs", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_each_job_has_a_line_also_one_that_does_not_answer(
    jobs, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs += [Path("spotmpi-00"), Path("spotmpi-01")]
    assert cli.main(["jobs"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "JOB         FOR        STEP      WORKERS  SCRIPT",
        "spotmpi-00  1 h 1 min  70 of 90  1        train.py --passes 3",
        "spotmpi-01  ?          ?         ?        (does not answer)",
    ]
    assert cli.main(["jobs", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["job"] == "spotmpi-00"


def test_on_a_terminal_no_line_is_wider_than_that(
    jobs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((40, 20)))
    jobs += [Path("spotmpi-00"), Path("spotmpi-02")]
    for command, width in (["jobs"], 40), (["status"], 38):
        assert cli.main(command) == 0
        said = capsys.readouterr().out.splitlines()[-2:]
        whole = "spotmpi-00  1 h 1 min  70 of 90  1        train.py --passes 3"
        assert said[0].strip() == whole[:width].strip()
        assert max(map(len, said)) == 40
