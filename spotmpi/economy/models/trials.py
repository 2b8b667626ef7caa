"""A training that runs only until enough steps are known, in a job of its own.

``spotmpi run`` is started as a user would, and told to end as by Ctrl-C. Nothing is left of it,
however this process ends: SIGTERM, SIGHUP and Ctrl-C pass through; if it is killed, the kernel
tells the job to end, and the next job on the host removes the folder.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from spotmpi.economy.models.step_times import WARM_UP
from spotmpi.errors import SpotmpiError
from spotmpi.launch.start import temporary_job
from spotmpi.launch.wording import count
from spotmpi.trace import records

__all__ = ["TrialFailed", "follow", "trial"]

_STEP = b'{"event":"step"'
_LOOK_MS = 50
"""How often the trace is looked at."""
_AT_LEAST = 1.0
"""Seconds of steps."""
_TO_END = 10.0
"""Seconds that a job gets to end by itself, once it has been told to."""


class TrialFailed(SpotmpiError):
    """A training ended before enough steps were known."""


def trial(workers: int, script: Sequence[str], steps: int, limit: float) -> list[records.Record]:
    """The trace of a run of ``script`` (with its arguments) until ``steps`` steps are timed.

    They take at least a second together: of fast ones it takes more to know the usual. A script
    that finishes sooner is as good. Blocking. TrialFailed, with the job's last words, if it ends
    otherwise or takes more than ``limit`` seconds (infinity: however long it takes).
    """
    with temporary_job.private_folder(workers) as at:
        _run(workers, script, at, steps + WARM_UP, limit)
        return list(records.read(at / "trace"))


def _run(workers: int, script: Sequence[str], at: Path, steps: int, limit: float) -> None:
    command = [
        *(sys.executable, "-m", "spotmpi", "run", "-n", str(workers)),
        *("--trace", str(at / "trace"), *script),
    ]
    end = signal.SIGINT  # as a user would
    with temporary_job.started(command, os.environ, at, end=end, patience_s=_TO_END) as (
        process,
        output,
    ):
        done = follow(process, at / "trace", steps, limit)
        code = process.poll()
        if done >= steps or code == 0:
            return
        if code is None:
            what = f"its {limit:.0f} s were over"
        else:
            what = f"it ended with code {code}" if code >= 0 else f"signal {-code} killed it"
        raise TrialFailed(
            f"the run with {count(workers)} had done {done} of {steps} steps when {what}; its last "
            f"words:\n{temporary_job.last_words(output)}"
        )


def follow(process: subprocess.Popen[bytes], file: Path, steps: int, limit: float) -> int:
    """Wait until a job's trace has so many steps, and those that count take a second together.

    Returns how many there are: fewer, if the job has ended or ``limit`` seconds are over. Blocking.
    """
    now = time.monotonic()
    deadline, warm = now + limit, math.inf
    done, position, rest = 0, 0, b""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = False
        while (done < steps or now < warm + _AT_LEAST) and not ended and now < deadline:
            ended = bool(poll.poll(_LOOK_MS))
            now = time.monotonic()
            if not file.exists():
                continue
            with file.open("rb") as trace_file:
                trace_file.seek(position)
                new = trace_file.read()
            position += len(new)
            *lines, rest = (rest + new).split(b"\n")
            done += sum(line.startswith(_STEP) for line in lines)
            if done > WARM_UP:
                warm = min(warm, now)
        return done
    finally:
        os.close(descriptor)
