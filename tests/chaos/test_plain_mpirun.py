"""Plain mpirun, without a launcher: a mistake must end the job there as well."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.launch import processes
from spotmpi.launch.start import installation
from tests.running import Running

HERE = Path(__file__).parent
SHM = Path("/dev/shm")

OPTIONS = (
    *("--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm", "-n", "3"),
    *("--mca", "coll", "^han,cuda", "--bind-to", "none"),
)


def plain() -> installation.Installation:
    """The MPI to use."""
    found = installation.search(os.environ).found
    assert found is not None
    return found


@pytest.mark.parametrize("mistake", ["raise", "shape", "exit", "break"])
def test_a_mistake_of_one_worker_ends_the_job(mistake, tmp_path) -> None:
    """Nobody waits for the worker that failed, and nobody takes it for revoked."""
    found = plain()
    done = subprocess.run(
        [found.mpirun, *OPTIONS, sys.executable, HERE / "mistakes.py", mistake],
        env={**os.environ, "OPAL_PREFIX": str(found.prefix)},
        timeout=60,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode != 0, done.stdout + done.stderr
    assert "worker 1" in done.stderr
    assert "Traceback" in done.stderr


ENDLESS = """
import numpy as np, spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
with spotmpi.Trainer([np.zeros(4)], optimizer=SGD(lr=1.0), strategy=SSGD()) as trainer:
    print("trains", flush=True)
    while True:
        trainer.step([np.ones(4)])
"""


@pytest.mark.parametrize("started", [True, False], ids=["mpi starts first", "as spotmpi starts it"])
def test_a_job_whose_processes_are_all_killed_leaves_nothing_in_shared_memory(
    started: bool, tmp_path: Path
) -> None:
    """Not even mpirun is left to clear up."""
    (tmp_path / "script.py").write_text(("from mpi4py import MPI\n" if started else "") + ENDLESS)
    found, before = plain(), set(SHM.iterdir())
    running = Running(
        [str(found.mpirun), *OPTIONS, sys.executable, "script.py"],
        tmp_path,
        environ={
            **os.environ,
            "OPAL_PREFIX": str(found.prefix),
            "PRTE_MCA_prte_tmpdir_base": str(tmp_path),
        },
    )
    try:
        running.until("^trains", times=3)
        job = [running.pid, *processes.descendants(running.pid)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in job:
                os.kill(pid, number)
        running.wait()
    finally:
        running.close()
    assert set(SHM.iterdir()) == before
