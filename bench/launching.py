"""Starting what is measured: one job at a time, with a time limit, and nothing left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import IO

from spotmpi.bench.events import JobFailed
from spotmpi.errors import UsageError
from spotmpi.launch import folder, mpirun, processes
from spotmpi.launch.doctor import cores
from spotmpi.launch.installation import NO_MPI, Installation, search
from spotmpi.settings import Settings

__all__ = ["by_mpirun", "by_spotmpi", "ended_by_signals", "private_folder"]

HERE = Path(__file__).resolve().parent
_ROOT = Path(sys.modules["spotmpi"].__path__[0]).parent
_MARK = "BENCH_FOLDER"
_TO_END = 5.0
"""Seconds that a job gets to end by itself, once it has been told to."""
_SHOWN = 1500


@contextmanager
def private_folder(workers: int) -> Iterator[Path]:
    """A folder in shared memory for the files of one job; it is gone afterwards."""
    _, path, lock = folder.create(workers)
    try:
        yield path
    finally:
        folder.remove(path)
        os.close(lock)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP pass through all ``finally``, as Ctrl-C does. Main thread only."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    _run(command, mpirun.environment(mpi, workers, settings, os.environ, cores()), at, limit, None)


def by_spotmpi(workers: int, program: Sequence[str], trace: Path, at: Path, limit: float) -> None:
    """Run a training by ``spotmpi run``. Blocking; raises JobFailed unless survivors finished."""
    start = [sys.executable, "-m", "spotmpi", "run", "-n", str(workers), "--trace", str(trace)]
    _run([*start, *program], os.environ, at, limit, 0)


def _run(
    command: Sequence[str], environ: Mapping[str, str], at: Path, limit: float, code: int | None
) -> None:
    # A checkout that nobody installed must be found from any folder.
    path = os.pathsep.join(filter(None, [str(_ROOT), environ.get("PYTHONPATH")]))
    bench = os.getpid()
    with tempfile.TemporaryFile(dir=at) as output:
        process = subprocess.Popen(
            command,
            env={**environ, "PYTHONPATH": path, _MARK: str(at)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: processes.die_with_parent(bench, signal.SIGTERM),
        )
        try:
            got = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise JobFailed(f"still running after {limit:.0f} s{_last_words(output)}") from None
        finally:
            _end(process, at)
        if code is not None and got != code:
            raise JobFailed(f"ended with code {got}{_last_words(output)}")


def _last_words(output: IO[bytes]) -> str:
    descriptor = output.fileno()
    size = os.fstat(descriptor).st_size
    said = os.pread(descriptor, _SHOWN, max(0, size - _SHOWN)).decode(errors="replace").strip()
    return f"; its last words:\n{said}" if said else ""


def _end(process: subprocess.Popen[bytes], at: Path) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    processes.sweep(f"{_MARK}={at}", _TO_END)


@lru_cache
def _installation() -> Installation:
    found = search(os.environ).found
    if found is None:
        raise UsageError(NO_MPI)
    return found
