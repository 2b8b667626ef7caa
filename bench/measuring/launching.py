"""Starting what is measured: one job at a time, with a time limit, and nothing left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from spotmpi.bench.measuring.events import JobFailed
from spotmpi.errors import UsageError
from spotmpi.exit_codes import EXIT_NOT_FINITE
from spotmpi.launch.commands import client
from spotmpi.launch.processes import cores
from spotmpi.launch.start import mpirun, temporary_job
from spotmpi.launch.start.installation import NO_MPI, Installation, search
from spotmpi.settings import Settings

__all__ = ["NOBODY_SILENT", "by_mpirun", "by_spotmpi", "job_of", "times_of"]

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
NOBODY_SILENT = ("--detect-ms", "600000")
"""For jobs whose hosts live until they are killed: none counts as lost, however busy a bench keeps
the cores."""
_TO_END = 5.0
"""Seconds that a job gets to end by itself, once it has been told to."""


def by_mpirun(workers: int, program: Sequence[str], at: Path, limit: float) -> None:
    """Run a Python program by plain mpirun, set up as ``spotmpi run`` does it. Blocking.

    ``at``: the job's `private_folder`. Raises JobFailed, also after ``limit`` seconds.
    """
    mpi = _installation()
    command = [
        str(mpi.mpirun),
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        *("--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"),
        *("--prtemca", "ras", "^slurm,pbs,tm,lsf,gridengine", "--prtemca", "plm", "ssh"),
        *("--host", f"localhost:{workers}", "-n", str(workers)),
        *(sys.executable, *program),
    ]
    settings = Settings(job_dir=at)
    # mpirun's code says nothing after a death: what the program wrote down must tell.
    _run(command, mpirun.environment(mpi, workers, settings, os.environ, cores()), at, limit)


def times_of(workers: int, script: str, arguments: Sequence[str], limit: float) -> Any:
    """What ``script`` of this folder has written, as JSON, to the file that is its first argument:
    a job of so many workers on this host. Raises JobFailed; leaves nothing behind."""
    with temporary_job.private_folder(workers) as folder:
        file = folder / "times.json"
        by_mpirun(workers, [str(SCRIPTS / script), str(file), *arguments], folder, limit)
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise JobFailed("the job ended without a result") from error


def by_spotmpi(workers: int, program: Sequence[str], trace: Path, at: Path, limit: float) -> None:
    """Run a training by ``spotmpi run``. Blocking; raises JobFailed unless survivors finished.

    One that diverges is a result, too.
    """
    start = [sys.executable, "-m", "spotmpi", "run", "-n", str(workers), "--trace", str(trace)]
    _run([*start, *program], os.environ, at, limit, (0, EXIT_NOT_FINITE))


def job_of(launcher: subprocess.Popen[bytes]) -> str:
    """The name of its job, which need not be the only one on this host. JobFailed if there is
    none."""
    for one in client.reports(client.running()):
        if one.launcher == launcher.pid:
            return one.job
    raise JobFailed(f"process {launcher.pid} runs no job")


def _run(
    command: Sequence[str],
    environ: Mapping[str, str],
    at: Path,
    limit: float,
    codes: Collection[int] = (),
) -> None:
    """``codes``: those that are right; none: any."""
    end = signal.SIGTERM
    with temporary_job.started(command, environ, at, end=end, patience_s=_TO_END) as (
        process,
        output,
    ):
        try:
            got = process.wait(limit)
        except subprocess.TimeoutExpired:
            said = temporary_job.last_words(output)
            raise JobFailed(f"still running after {limit:.0f} s; its last words:\n{said}") from None
        if codes and got not in codes:
            said = temporary_job.last_words(output)
            raise JobFailed(f"ended with code {got}; its last words:\n{said}")


@lru_cache
def _installation() -> Installation:
    found = search(os.environ).found
    if found is None:
        raise UsageError(NO_MPI)
    return found
