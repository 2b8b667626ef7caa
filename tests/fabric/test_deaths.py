"""MPI believes a death that only the launcher knows of, once it knows who that is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotmpi.launch.start import installation, mpirun
from spotmpi.launcher_channel import BOARDS, Name, publish_death
from spotmpi.settings import Settings
from tests.running import Running

SCRIPT = Path(__file__).with_name("bereaved.py")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Two workers that train, and one that is stopped."""
    found = installation.search(os.environ).found
    assert found is not None, installation.NO_MPI
    for board in BOARDS:
        (tmp_path / board).touch()
    command = mpirun.command(found, 3, [sys.executable, str(SCRIPT), str(tmp_path)])
    environ = mpirun.environment(found, 3, Settings(job_dir=tmp_path), os.environ, cores=3)
    one = Running(command, tmp_path, environ=environ)
    yield one
    one.close()


@pytest.mark.parametrize("early", [True, False])
def test_a_death_that_mpi_does_not_see_is_told_by_the_launcher(
    running: Running, tmp_path: Path, early: bool
) -> None:
    """``early``: it is told before MPI knows that worker, as far as these know."""
    names = running.until(r"^NAME 2 (\S+) (\d+) (\d+)")
    name = Name(names[0][1].encode(), int(names[0][2]))
    if early:
        publish_death(tmp_path, 2, name, [0, 1])
    (tmp_path / "go").touch()
    running.until("^TURNS [01]", times=2)
    if not early:
        publish_death(tmp_path, 2, name, [0, 1])
    running.until("^LEFT [01] 2", times=2)
    os.kill(int(names[0][3]), signal.SIGKILL)
    running.wait()
