"""Steps of spotmpi and of bare loops, in turn, in one MPI job.

Run by mpirun (`overhead` does): ``python paired.py FOLDER PARAMS TURNS``. Every rank holds both: a
Trainer, and the bare loop that does the same work with none of its promises, out of place and in
place. The Trainer is given a gradient, and one that lies in `trainer.gradients` already. A turn is
a block of steps of each, in an order that is drawn anew, each block between two barriers. The first
rank writes FOLDER/turns.json: lists of seconds per step, turn by turn.
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


def main(folder: Path, params: int, turns: int) -> None:
    """One rank of the job, to its end."""
    weights = [np.zeros(params, np.float32)]
    gradient = [np.full(params, 1e-3, np.float32)]
    optimizer = Momentum(lr=_RATE, beta=_BETA)
    with spotmpi.Trainer(weights, optimizer=optimizer, strategy=SSGD()) as trainer:
        # Only now: entering has initialised MPI as spotmpi needs it.
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        workers = comm.Get_size()
        flat, total = (np.zeros(params, np.float32) for _ in range(2))
        outside, inside = (np.zeros((2, params), np.float32) for _ in range(2))

        def bare() -> None:
            cpu.pack(flat, gradient, 1.0)
            comm.Allreduce(flat, total)
            cpu.momentum(outside[0], outside[1], total, _RATE, _BETA, 1.0 / workers)

        def in_place() -> None:
            cpu.pack(flat, gradient, 1.0)
            comm.Allreduce(MPI.IN_PLACE, flat)
            cpu.momentum(inside[0], inside[1], flat, _RATE, _BETA, 1.0 / workers)

        born = trainer.gradients
        born[0][:] = gradient[0]

        def ours() -> None:
            trainer.step(gradient, loss=0.0)

        def ours_born() -> None:
            trainer.step(born, loss=0.0)

        sides = {"bare": bare, "in_place": in_place, "spotmpi": ours, "born": ours_born}

        def block(step: Callable[[], None], steps: int) -> float:
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                step()
            comm.Barrier()
            return (time.perf_counter() - begin) / steps

        for step in sides.values():
            block(step, _WARM_UP)
        usual = np.array([block(bare, _WARM_UP)])
        comm.Bcast(usual, 0)
        count = min(_MOST, max(_FEWEST, round(_BLOCK / float(usual[0]))))
        order = random.Random(turns)  # the same on every rank
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(turns):
            for name in order.sample(list(sides), len(sides)):
                found[name].append(block(sides[name], count))
        # Equal work, equal results: else the comparison would be of different things.
        steps = _WARM_UP + turns * count
        _check(outside[0], steps + _WARM_UP)
        _check(inside[0], steps)
        _check(trainer.params[0], 2 * steps)
        if comm.Get_rank() == 0:
            (folder / "turns.json").write_text(json.dumps({"block": count, **found}))
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
