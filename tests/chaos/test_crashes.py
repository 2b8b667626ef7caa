"""A worker that MPI crashes is lost as one that is killed; one that its script crashes is a bug."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("crashes.py")


@pytest.mark.promise("a crash inside MPI")
def test_a_crash_inside_mpi_costs_its_worker_and_shows_where_it_was(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", SCRIPT, "mpi"])
    assert done.returncode == 0, done.stderr
    assert {line.split()[2] for line in done.stdout.splitlines()} == {"0", "2"}
    said = done.stderr
    assert "MPI crashed on worker 1 on localhost:\nFatal Python error: Segmentation fault" in said
    assert "crashes.py" in said
    assert "worker 1 on localhost was revoked (SIGSEGV in MPI); 2 of 3 workers remain" in said


def test_if_who_comes_for_it_crashes_there_as_well_it_is_a_bug(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", "--replace", SCRIPT, "again"])
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("MPI crashed on worker") == 1
    assert "worker 3 on localhost died by SIGSEGV, which is a crash" in done.stderr


def test_a_crash_of_the_script_is_a_bug(run_spotmpi) -> None:
    done = run_spotmpi(["run", "-n", "3", SCRIPT, "script"])
    assert done.returncode == 1, done.stderr
    assert "MPI crashed" not in done.stderr
    assert done.stderr.count("Fatal Python error: Segmentation fault") == 1
