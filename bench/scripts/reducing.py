"""Sums of arrays between hosts, by MPI_Allreduce and by spotmpi in turn, in one job.

A script for ``spotmpi run`` (`allreduce` runs it): ``reducing.py FILE TURNS FORMATS BYTES...``. The
first worker writes FILE: for each size and side the seconds of each turn, on the slowest worker.
FORMATS, with commas between them, are those in which sums are narrowed as well, each a side; or a
dash.
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
from spotmpi.arrays.narrowing import Narrowing
from spotmpi.fabric import Reduce, Shape
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

_WARM_UP = 1


Side = tuple[Callable[[], Any], Any, float]
"""What it does, where the sum is then, and how far that may be off."""


def main(file: Path, turns: int, formats: list[str], sizes: list[int]) -> None:
    """One worker of the job, to its end."""
    with spotmpi.Trainer([np.zeros(1)], optimizer=SGD(lr=0.1), strategy=SSGD()):
        # Only now: entering has initialised MPI as spotmpi needs it.
        from spotmpi.fabric.mpi import MpiFabric
        from spotmpi.fabric.mpi_calls import MPI

        fabric, comm, took = MpiFabric(), MPI.COMM_WORLD, np.zeros(1)
        found: dict[int, dict[str, list[float]]] = {}
        order = random.Random(turns)  # the same on every worker
        for size in sizes:
            inside = brought(fabric.me, size // 4)
            expected = sum(brought(one, size // 4) for one in range(comm.Get_size()))
            everything = partial(comm.Allreduce, MPI.IN_PLACE, inside)
            sides: dict[str, Side] = {"mpi": (everything, inside, 1e-5)}
            for form in (None, *formats):
                name = "spotmpi" if form is None else form
                sides[name] = spotmpi_side(fabric, size, form)
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for turn in range(_WARM_UP + turns):
                for name in order.sample(list(sides), len(sides)):
                    add_up, result, off = sides[name]
                    inside[:] = brought(fabric.me, size // 4)
                    comm.Barrier()
                    begin = time.perf_counter()
                    add_up()
                    took[0] = time.perf_counter() - begin
                    comm.Allreduce(MPI.IN_PLACE, took, MPI.MAX)
                    if turn >= _WARM_UP:
                        seconds[name].append(float(took[0]))
                    if np.abs(result - expected).max() > off * np.abs(expected).max():
                        raise SystemExit(f"{name}: the sum of {size} bytes is wrong")
            found[size] = seconds
        if comm.Get_rank() == 0:
            file.write_text(json.dumps(found))


def spotmpi_side(fabric: Any, size: int, form: str | None) -> Side:
    """A round of one array, narrowed like this; what is kept of each is never added."""
    narrowing = None
    if form is not None:
        zeros = np.zeros(size // 4, np.float32)
        narrowing = Narrowing(form, zeros, np.zeros_like(zeros))
    arena = fabric.arena([Shape("float32", size // 4, narrowing=narrowing)], f"{size} {form}")
    arena.contributions[0][:] = brought(fabric.me, size // 4)
    off = {None: 1e-5, "bf16": 2.0**-7, "fp16": 2.0**-10, "int8": 1 / 60}[form]
    return partial(fabric.perform, Reduce(arena.parts)), arena.results[0], off


def brought(worker: int, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Numbers of several magnitudes, of the same sign."""
    pattern = np.random.default_rng(1).lognormal(size=4099).astype(np.float32)
    return np.resize(pattern, size) * np.float32(1 + worker)


if __name__ == "__main__":
    narrow = [form for form in sys.argv[3].split(",") if form != "-"]
    main(Path(sys.argv[1]), int(sys.argv[2]), narrow, [int(size) for size in sys.argv[4:]])
