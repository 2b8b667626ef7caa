"""Workers are lost while a job starts: it starts again, or goes on without them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("starts.py")


@pytest.mark.promise("deaths while a job starts")
@pytest.mark.first("1,2-init", "0-handshake")
@pytest.mark.parametrize("stage", ["import", "init", "handshake"])
@pytest.mark.parametrize("dying", ["0", "1,2"])
def test_before_all_are_ready_it_starts_again(run_spotmpi, stage: str, dying: str) -> None:
    done = run_spotmpi(["run", "-n", "3", "--name", "starts", SCRIPT, stage, dying])
    assert done.returncode == 0, done.stderr
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"0", "1", "2"}
    lost, again, *rest = done.stderr.splitlines()
    assert re.search(r"worker [012] on \S+ was lost \(SIGKILL\) before all workers were", lost)
    assert again == "spotmpi: starting again: no worker had taken a step"
    assert rest[-1] == "spotmpi: job spotmpi-starts: 3 workers on 1 host train"


@pytest.mark.parametrize("stage", ["ready", "underway"])
@pytest.mark.parametrize("dying", ["0", "1,2"])
def test_once_all_are_ready_the_others_go_on(run_spotmpi, stage: str, dying: str) -> None:
    done = run_spotmpi(["run", "-n", "3", SCRIPT, stage, dying])
    assert done.returncode == 0, done.stderr
    if "starting again" in done.stderr:  # one that dies as it says so may be the first to
        assert stage == "ready"
        return
    dead = set(dying.split(","))
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"0", "1", "2"} - dead
    assert done.stderr.count("was revoked (SIGKILL)") == len(dead)


def test_a_job_that_is_kept_alive_starts_again_as_it_does_when_all_are_lost(run_spotmpi) -> None:
    options = ["--keep-alive", "--checkpoint", "kept"]
    done = run_spotmpi(["run", "-n", "3", *options, SCRIPT, "init", "1,2"])
    assert done.returncode == 0, done.stderr
    assert "starting again, from the beginning: it has no checkpoint" in done.stderr
    assert len(done.stdout.splitlines()) == 3
