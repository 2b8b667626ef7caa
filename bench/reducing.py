"""Sums of arrays between hosts, by MPI_Allreduce and by spotmpi in turn, in one job.

A script for ``spotmpi run`` (`allreduce` runs it): ``reducing.py FILE TURNS BYTES...``. The first
worker writes FILE: for each size and side the seconds of each turn, on the slowest worker.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import spotmpi
from spotmpi.fabric import Reduce, Shape
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

_WARM_UP = 1


def main(file: Path, turns: int, sizes: list[int]) -> None:
    """One worker of the job, to its end."""
    with spotmpi.Trainer([np.zeros(1)], optimizer=SGD(lr=0.1), strategy=SSGD()):
        # Only now: entering has initialised MPI as spotmpi needs it.
        from spotmpi.fabric.mpi import MpiFabric
        from spotmpi.fabric.mpi_calls import MPI

        fabric, comm, took = MpiFabric(), MPI.COMM_WORLD, np.zeros(1)
        found: dict[int, dict[str, list[float]]] = {}
        order = random.Random(turns)  # the same on every worker
        for size in sizes:
            arena = fabric.arena([Shape("float32", size // 4)], f"{size} bytes")
            inside = np.zeros(size // 4, np.float32)
            brought, result = arena.contributions[0], arena.results[0]
            brought[:] = 1 + fabric.me
            sides: dict[str, Callable[[], Any]] = {
                "mpi": partial(comm.Allreduce, MPI.IN_PLACE, inside),
                "spotmpi": partial(fabric.perform, Reduce(arena.parts)),
            }
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(_WARM_UP + turns):
                for name in order.sample(list(sides), len(sides)):
                    inside[:] = 1 + fabric.me
                    comm.Barrier()
                    begin = time.perf_counter()
                    sides[name]()
                    took[0] = time.perf_counter() - begin
                    comm.Allreduce(MPI.IN_PLACE, took, MPI.MAX)
                    if turn >= _WARM_UP:
                        seconds[name].append(float(took[0]))
                    expected = comm.Get_size() * (comm.Get_size() + 1) // 2
                    if not ((inside if name == "mpi" else result) == expected).all():
                        raise SystemExit(f"{name}: the sum of {size} bytes is wrong")
            found[size] = seconds
        if comm.Get_rank() == 0:
            file.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(size) for size in sys.argv[3:]])
