"""What a worker was doing that died by a signal of its own: `faulthandler` writes it down."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

__all__ = ["SIGNALS", "in_mpi", "new_report", "read", "write_to"]

SIGNALS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
"""By which a process dies that does something wrong."""

_LONGEST = 6000
"""Bytes that are read of it, the first ones: each may take 6 in JSON."""

_CALLS = re.escape(str(Path(__file__).resolve().parents[2] / "fabric" / "mpi"))
_IN_MPI = re.compile(
    rf"^Current thread .*\n  File \"{_CALLS}/(?!half_made\.)\w+\.py\", line \d+ in ", re.MULTILINE
)
"""The innermost frame of the thread that crashed is in a module that calls MPI: what it called has
no frames. Not so in `half_made`, which writes to MPI's memory itself."""


def new_report() -> int:
    """A descriptor, for a worker to write to and for its parent to read."""
    return os.memfd_create("spotmpi-crash")


def write_to(report: int) -> None:
    """From now on a crash of this process is written there; one of its children's to its errors."""
    faulthandler.enable(report)
    os.register_at_fork(after_in_child=_usual)


def _usual() -> None:
    with suppress(Exception):  # the script may have closed its errors
        faulthandler.enable()


def read(report: int) -> str:
    """What is written there: stacks, the innermost frames first."""
    return os.pread(report, _LONGEST, 0).decode(errors="replace")


def in_mpi(written: str) -> bool:
    """Whether it was MPI that crashed, in a call of spotmpi's."""
    return _IN_MPI.search(written) is not None
