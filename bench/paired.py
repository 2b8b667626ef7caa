"""Steps of spotmpi and of a bare loop, in turn, in one MPI job.

Run by mpirun (`overhead` does): ``python paired.py FOLDER PARAMS PAIRS``. Every rank holds both: a
Trainer, and the bare loop that does the same work with none of its promises. A pair is a block of
steps of each, in an order that is drawn anew, each block between two barriers. The first rank
writes FOLDER/pairs.json: a list of [bare, spotmpi], seconds per step.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import spotmpi
from spotmpi.kernels import cpu
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

_BLOCK = 0.1
"""Seconds that a block takes, about: many small steps, or a few large ones."""
_FEWEST, _MOST = 3, 100
_WARM_UP = 3
_RATE, _BETA = 0.05, 0.9


def main(folder: Path, params: int, pairs: int) -> None:
    """One rank of the job, to its end."""
    weights = [np.zeros(params, np.float32)]
    gradient = [np.full(params, 1e-3, np.float32)]
    optimizer = Momentum(lr=_RATE, beta=_BETA)
    with spotmpi.Trainer(weights, optimizer=optimizer, strategy=SSGD()) as trainer:
        # Only now: entering has initialised MPI as spotmpi needs it.
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        workers = comm.Get_size()
        flat, total, own, velocity = (np.zeros(params, np.float32) for _ in range(4))

        def bare() -> None:
            cpu.pack(flat, gradient, 1.0)
            comm.Allreduce(flat, total)
            cpu.momentum(own, velocity, total, _RATE, _BETA, 1.0 / workers)

        def ours() -> None:
            trainer.step(gradient, loss=0.0)

        def block(step: Callable[[], None], steps: int) -> float:
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            comm.Barrier()
            return (time.perf_counter() - begin) / steps

        for step in (bare, ours):
            block(step, _WARM_UP)
        steps = np.array([block(bare, _WARM_UP) * 1e9], np.int64)
        comm.Bcast(steps, 0)
        count = min(_MOST, max(_FEWEST, round(_BLOCK * 1e9 / int(steps[0]))))
        order = random.Random(pairs)  # the same on every rank
        found = []
        for _ in range(pairs):
            if order.random() < 0.5:
                first = block(bare, count)
                found.append((first, block(ours, count)))
            else:
                first = block(ours, count)
                found.append((block(bare, count), first))
        # Equal work, equal results: else the comparison would be of two different things.
        steps_ours = _WARM_UP + pairs * count
        steps_bare = 2 * _WARM_UP + pairs * count
        _check(own, steps_bare)
        _check(trainer.params[0], steps_ours)
        if comm.Get_rank() == 0:
            (folder / "pairs.json").write_text(json.dumps({"block": count, "pairs": found}))
        comm.Barrier()
    os._exit(0)


def _check(params: npt.NDArray[np.float32], steps: int) -> None:
    w = v = np.float32(0)
    for _ in range(steps):
        v = np.float32(_BETA) * v + np.float32(1e-3)
        w = w - np.float32(_RATE) * v
    if not np.allclose(params, w, rtol=1e-2):
        raise SystemExit(f"after {steps} steps the parameters are {params[:3]}..., not {w}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
