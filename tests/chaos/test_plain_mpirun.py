"""Plain mpirun, without a launcher: a mistake must end the job there as well."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotmpi.launch.start import installation

HERE = Path(__file__).parent


@pytest.mark.parametrize("mistake", ["raise", "shape", "exit", "break"])
def test_a_mistake_of_one_worker_ends_the_job(mistake, tmp_path) -> None:
    """Nobody waits for the worker that failed, and nobody takes it for revoked."""
    found = installation.search(os.environ).found
    assert found is not None
    done = subprocess.run(
        [
            found.mpirun,
            *("--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm", "-n", "3"),
            *("--mca", "coll", "^han,cuda", "--bind-to", "none"),
            *(sys.executable, HERE / "mistakes.py", mistake),
        ],
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
