"""A job inside a command of ours: started as a user would, in a folder of its own, nothing left.

For benches and profiles, which start many. However the command ends nothing stays behind: SIGTERM,
SIGHUP and Ctrl-C pass through its ``finally`` (`ended_by_signals`); if it is killed, the kernel
tells the job to end, and the next job on the host removes the folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from spotmpi import job_folder
from spotmpi.launch import processes

__all__ = ["ended_by_signals", "environment", "last_words", "private_folder", "started"]

_ROOT = Path(sys.modules["spotmpi"].__path__[0]).parent
_MARK = "INNER_JOB_FOLDER"
_SHOWN = 1500


@contextmanager
def private_folder(workers: int) -> Iterator[Path]:
    """A folder in shared memory for the files of one job; it is gone afterwards."""
    _, path, lock = job_folder.create(workers)
    try:
        yield path
    finally:
        job_folder.remove(path)
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


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """``environ``, changed so that programs of Python find this spotmpi from any folder: neither
    none, where a checkout is not installed, nor another one that is."""
    path = os.pathsep.join(filter(None, [str(_ROOT), environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path}


@contextmanager
def started(
    command: Sequence[str],
    environ: Mapping[str, str],
    at: Path,
    *,
    end: signal.Signals,
    patience_s: float,
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A job and what it says, on both its streams.

    ``at``: a folder of its own, as `private_folder` gives. At the end it is sent ``end`` if it
    still runs, killed ``patience_s`` seconds later, and all that it has started with it.
    """
    me = os.getpid()

    def prepare() -> None:
        # Ignored in what a shell's script starts with &; the job would then not end by it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        processes.die_with_parent(me, signal.SIGTERM)

    with tempfile.TemporaryFile(dir=at) as output:
        process = subprocess.Popen(
            command,
            env={**environment(environ), _MARK: str(at)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=prepare,
        )
        try:
            yield process, output
        finally:
            if process.poll() is None:
                process.send_signal(end)
                try:
                    process.wait(patience_s)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            processes.sweep(f"{_MARK}={at}", patience_s)


def last_words(output: IO[bytes]) -> str:
    """The end of what a job has said."""
    descriptor = output.fileno()
    size = os.fstat(descriptor).st_size
    said = os.pread(descriptor, _SHOWN, max(0, size - _SHOWN)).decode(errors="replace").strip()
    return said or "(none)"
