"""What only the fabric over MPI can get wrong: what MPI keeps, and what it does not grant."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.launch.start import installation, mpirun
from spotmpi.settings import Settings

SOAK = Path(__file__).with_name("soak.py")
LIMIT = 100


def over_mpi(folder: Path, workers: int, *program: str) -> str:
    """What these say under mpirun, which uses this folder; each must end well."""
    found = installation.search(os.environ).found
    assert found is not None, installation.NO_MPI
    done = subprocess.run(
        mpirun.command(found, workers, [sys.executable, *program]),
        env=mpirun.environment(found, workers, Settings(job_dir=folder), os.environ, cores=1),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_worker_does_not_grow_with_its_generations(tmp_path: Path) -> None:
    """10 KB for each, as long as communicators were not freed; over 180 generations."""
    grew = [float(kb) for kb in re.findall(r"GREW (\S+)", over_mpi(tmp_path, 4, str(SOAK), "200"))]
    assert len(grew) == 4
    assert max(grew) < 2, grew


ELSEWHERE = """
import os, sys
import numpy as np
from spotmpi.fabric import Reduce, Shape, Share, mpi, plane
from tests.boxed import BOXED, boxes, unbox
mpi.PLANE = getattr(plane, sys.argv[1])
fabric = mpi.MpiFabric()
with boxes():
    arena = fabric.arena([Shape("float32", 3, BOXED), Shape("float64", 70_000)])
    ours, hosts = arena.contributions
    BOXED.from_host(ours, np.full(3, 10.0**fabric.me, np.float32))
    hosts[...] = fabric.me
    fabric.perform(Reduce(arena.parts))
    print("SUM", *unbox(arena.results[0]).tolist(), arena.results[1].sum(), flush=True)
    BOXED.fill(arena.results[0], fabric.me)
    fabric.perform(Share(2, arena.results))
    print("SHARED", *unbox(arena.results[0]).tolist(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("plane", ["Plain", "Apart"])
def test_arrays_that_mpi_cannot_read_go_by_the_memory_of_the_host(
    plane: str, tmp_path: Path
) -> None:
    """A wheel's MPI knows nothing of devices, and would read whatever lies at their addresses."""
    said = over_mpi(tmp_path, 3, "-c", ELSEWHERE, plane)
    assert said.count("SUM 111.0 111.0 111.0 210000.0\n") == 3, said
    assert said.count("SHARED 2.0 2.0 2.0\n") == 3, said


def test_no_newcomer_is_brought_in_if_mpi_was_not_started_for_threads(tmp_path: Path) -> None:
    """The thread that spawns it would call MPI beside the others."""
    program = (
        "import mpi4py, os; mpi4py.rc.thread_level = 'funneled'\n"
        "from spotmpi.fabric.mpi import MpiFabric\n"
        "print(MpiFabric(('/bin/false',)).sponsor(7), flush=True); os._exit(0)"
    )
    assert "MPI was not started with MPI_THREAD_MULTIPLE" in over_mpi(tmp_path, 1, "-c", program)
