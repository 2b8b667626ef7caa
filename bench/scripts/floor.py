"""The floor under every recovery: bare ULFM, with nothing that a training would need.

Run by mpirun, by nobody else (`recovery` does): ``python floor.py FOLDER PARAMS STEPS SCHEDULE``.
A loop of MPI_Allreduce over PARAMS float32. Victims kill themselves in it; the survivors revoke the
communicator, shrink it and do one all-reduce. No membership, no repair, no optimizer, and on
purpose no line of spotmpi: only the standard library, NumPy and mpi4py.

SCHEDULE says who dies when, as in ``2,5@10:0.25;7@20:0.9``: workers 2 and 5 in the all-reduce of
step 10, after a quarter of the time that one usually takes, and worker 7 in that of step 20.

What happened is appended to FOLDER/records, a JSON object a line as in spotmpi's traces:
``signal`` (a victim is about to kill itself), ``recovered`` (by each survivor; ``at`` is the moment
at which it had the result of that all-reduce) and, when all is over, ``steps``: the seconds that
each of a survivor's all-reduces took.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

_FIRST_GUESS = 0.002
"""Seconds that the all-reduce may take, before one has been seen."""


class Records:
    """Appends to a file that several processes write to. A line is one write(2)."""

    def __init__(self, folder: Path, me: int) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(folder / "records", flags, 0o600)
        self._me = me

    def write(self, event: str, at: float, **fields: Any) -> None:
        """One record of worker ``me``."""
        record = {"event": event, "at": at, "worker": self._me, **fields}
        line = json.dumps(record, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")


class Killer:
    """This worker's own end. On both sides of the bench workers die by it, and so in one way.

    Whoever is to die says so through the pipe FOLDER/victims, and goes on when the bench (`deaths`)
    watches its process: it has opened FOLDER/watched-WORKER.
    """

    def __init__(self, schedule: str, me: int, folder: Path) -> None:
        self._fractions = {
            int(step): float(fraction)
            for event in filter(None, schedule.split(";"))
            for victims, _, moment in [event.partition("@")]
            for step, _, fraction in [moment.partition(":")]
            if str(me) in victims.split(",")
        }
        self._records = Records(folder, me)
        self._armed = False
        self._usual = _FIRST_GUESS
        if self._fractions:
            with open(folder / "victims", "wb", buffering=0) as pipe:
                watched = folder / f"watched-{me}"
                os.mkfifo(watched, 0o600)
                pipe.write(f"{me} {os.getpid()}\n".encode())
            os.close(os.open(watched, os.O_RDONLY))

    def arm(self, steps: range) -> None:
        """About to enter the all-reduce of these ``steps``: if one is its last, start the clock."""
        last = next((step for step in steps if step in self._fractions), None)
        if last is None:
            return
        self._armed = True
        timer = threading.Timer(self._fractions[last] * self._usual, self._die)
        timer.daemon = True
        timer.start()

    def hold(self) -> None:
        """Nobody waits for the end: the bare loop has no control word that could be held back."""

    def reduced(self, seconds: float) -> None:
        """An all-reduce is through; whoever is to die in it does not go on."""
        if self._armed:
            self._die()
        self._usual = seconds

    def _die(self) -> None:
        self._records.write("signal", time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, params: int, steps: int, schedule: str) -> None:
    """One rank of the job, to its end."""
    import mpi4py

    mpi4py.rc.finalize = False  # it can hang after a failure

    import numpy as np
    from mpi4py import MPI

    failures = {MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED}
    clock = time.monotonic
    comm = MPI.COMM_WORLD.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    records = Records(folder, comm.Get_rank())
    killer = Killer(schedule, comm.Get_rank(), folder)
    mine, total = np.ones(params, np.float32), np.empty(params, np.float32)
    where, furthest = np.zeros(1, np.int64), np.zeros(1, np.int64)
    seconds: dict[int, float] = {}
    step = 0
    while step < steps:
        killer.arm(range(step, step + 1))
        entered = clock()
        moments: list[float] = []
        while True:
            try:
                comm.Allreduce(mine, total)
                now = clock()
                if moments:
                    # Some may have been a step ahead. Beyond what is measured.
                    where[0] = step
                    comm.Allreduce(where, furthest, MPI.MAX)
                    step = int(furthest[0])
                break
            except MPI.Exception as error:
                if error.Get_error_class() not in failures:
                    raise
                moments = [clock()]
                comm.Revoke()
                moments.append(clock())
                comm = MPI.Intracomm(comm.Shrink())
                comm.Set_errhandler(MPI.ERRORS_RETURN)
                moments.append(clock())
        if moments:
            names = ("detect", "revoke", "shrink", "reduce")
            spans = zip(names, [entered, *moments], [*moments, now], strict=True)
            records.write(
                "recovered", now, step=step, **{f"{n}_ms": 1e3 * (b - a) for n, a, b in spans}
            )
        killer.reduced(now - entered)
        seconds[step] = now - entered
        step += 1
    records.write("steps", clock(), seconds=seconds)
    comm.Barrier()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
