"""Steps of ResNet-50's size whose gradients travel after the backward pass, or during it.

A script for ``spotmpi run`` (`overlap` runs it): ``backward.py FILE TURNS BUCKET_MB SECONDS
KIND...``. A backward pass takes SECONDS, and each array's part of them is that of its layer's
multiplications. It leaves the cores alone, as that of a GPU does (``idle``), or computes on one
(``busy``). The first worker writes FILE: for each kind and side the seconds of each turn, on the
slowest worker.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import spotmpi
from spotmpi.bench.measuring import turns
from spotmpi.bench.measuring.models import resnet50
from spotmpi.kernels import cpu
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

_SIDE = 96
"""Of the matrices that a busy pass multiplies."""
_CALIBRATION = 1.0
"""Seconds for which all workers count how many they can."""


class Backward:
    """A pass that only costs time."""

    def __init__(self, seconds: float, multiplications: float | None) -> None:
        """``multiplications`` of matrices are what it takes; None: it sleeps."""
        arrays = resnet50()
        work = sum(array.work for array in arrays)
        self._shares = [array.work / work for array in arrays]
        self._seconds, self._multiplications = seconds, multiplications

    def arrays(self) -> Iterator[int]:
        """The last one first, each when it is there."""
        begin, done = time.perf_counter(), 0.0
        matrix = np.full((_SIDE, _SIDE), 1e-2, np.float32)
        out = np.empty_like(matrix)
        for index in reversed(range(len(self._shares))):
            before, done = done, done + self._shares[index]
            if self._multiplications is None:
                time.sleep(max(0.0, begin + done * self._seconds - time.perf_counter()))
            else:
                whole = int(done * self._multiplications) - int(before * self._multiplications)
                for _ in range(whole):
                    np.dot(matrix, matrix, out=out)
            yield index


def main(file: Path, count: int, bucket_mb: float, seconds: float, kinds: list[str]) -> None:
    """One worker of the job, to its end."""
    params = [np.zeros(array.shape, np.float32) for array in resnet50()]
    with spotmpi.Trainer(
        params, optimizer=Momentum(lr=1e-4), strategy=SSGD(), bucket_mb=bucket_mb
    ) as trainer:
        # Only now: entering has initialised MPI as spotmpi needs it.
        from spotmpi.fabric.mpi.calls import MPI

        comm, clock = MPI.COMM_WORLD, turns.together(MPI.COMM_WORLD)
        grads = [np.full(array.shape, 1e-3, np.float32) for array in resnet50()]
        found: dict[str, dict[str, list[float]]] = {}
        size = sum(array.size for array in params)
        flat, velocity, sums = (np.zeros(size, np.float32) for _ in range(3))

        def through(passing: Backward) -> None:
            for _ in passing.arrays():
                pass

        def alone(passing: Backward) -> None:
            through(passing)
            cpu.momentum(flat, velocity, sums, 1e-4, 0.9, 1.0)

        def after(passing: Backward) -> None:
            through(passing)
            trainer.step(grads)

        def during(passing: Backward) -> None:
            for index in passing.arrays():
                trainer.ready(index, grads[index])
            trainer.step()

        sides: dict[str, Callable[[Backward], Any]] = {
            "alone": alone,
            "after": after,
            "during": during,
        }
        trainer.step(grads)
        for kind in kinds:
            comm.Barrier()
            passing = Backward(seconds, _multiplications(seconds) if kind == "busy" else None)
            bound = {name: partial(side, passing) for name, side in sides.items()}
            for side in bound.values():
                clock(side, 1)
            found[kind] = turns.take(clock, count, bound, dict.fromkeys(bound, 1))
        if trainer.leader:
            file.write_text(json.dumps(found))


def _multiplications(seconds: float) -> float:
    """So many one worker can do in so many seconds, while the others do as many."""
    matrix = np.full((_SIDE, _SIDE), 1e-2, np.float32)
    out, count, begin = np.empty_like(matrix), 0, time.perf_counter()
    while time.perf_counter() < begin + _CALIBRATION:
        np.dot(matrix, matrix, out=out)
        count += 1
    return count * seconds / _CALIBRATION


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
