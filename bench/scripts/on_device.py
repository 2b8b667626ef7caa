"""Steps of spotmpi on arrays of a GPU, and of bare loops, in turn, in one MPI job.

Run by mpirun (`step --gpu` does): ``python on_device.py FILE TURNS PARAMS``. Every rank trains so
many float32 by Momentum, on CuPy's current device:

- ``bare``: packs its gradient, copies it to pinned memory, has MPI sum it there in place, copies it
  back and updates: what a plain loop does over an MPI without CUDA;
- ``gloo``: has PyTorch's gloo sum it, where torch sees the device, and updates;
- ``spotmpi``: a Trainer; ``born`` is given gradients that were computed where they are summed;
- ``staged``, ``staged born``: the same where workers cannot open each other's memory on the device.

The first rank writes FILE: of each side the seconds of a step, turn by turn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

import spotmpi
from spotmpi.bench.measuring import turns
from spotmpi.bench.scripts import gloo
from spotmpi.bench.scripts.stepping import BETA, BLOCK, GRADIENT, MOST, RATE, check
from spotmpi.kernels import gpu
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD
from spotmpi.training.process import this_process


class Loop:
    """A replica that is updated by what ``total`` makes of its gradient, in place."""

    def __init__(self, cupy: Any, size: int, workers: int, total: Callable[[Any], object]) -> None:
        self.params, self._velocity, self._sum = (cupy.zeros(size, "float32") for _ in range(3))
        self._total, self._scale = total, 1.0 / workers
        self.updates = 0

    def step(self, gradient: Any) -> None:
        """One."""
        gpu.pack(self._sum, [gradient], 1.0)
        self._total(self._sum)
        gpu.momentum(self.params, self._velocity, self._sum, RATE, BETA, self._scale)
        self.updates += 1


class Pinned:
    """Memory of the host that a device copies to and from by itself, of this size."""

    def __init__(self, cupy: Any, size: int, comm: Any, in_place: Any) -> None:
        memory = cupy.cuda.alloc_pinned_memory(4 * size)
        self._array = np.frombuffer(memory, np.float32, size)
        self._cupy, self._add_up = cupy, partial(comm.Allreduce, in_place, self._array)

    def total(self, flat: Any) -> None:
        """The sum over all ranks, by MPI."""
        stream, address = self._cupy.cuda.get_current_stream(), self._array.ctypes.data
        flat.data.copy_to_host_async(address, flat.nbytes, stream)
        stream.synchronize()
        self._add_up()
        flat.data.copy_from_host_async(address, flat.nbytes, stream)


def main(file: Path, count: int, size: int) -> None:
    """One rank of the job, to its end."""
    import cupy

    gradient = cupy.zeros(size, "float32")
    gradient.fill(GRADIENT)
    weights = [cupy.zeros(size, "float32")]
    with spotmpi.Trainer(
        weights, optimizer=Momentum(lr=RATE, beta=BETA), strategy=SSGD()
    ) as trainer:
        # Only now: entering has initialised MPI as spotmpi needs it.
        from spotmpi.fabric.mpi.calls import MPI

        comm = MPI.COMM_WORLD
        rank, workers = comm.Get_rank(), comm.Get_size()
        ways: dict[str, Callable[[Any], object]] = {
            "bare": Pinned(cupy, size, comm, MPI.IN_PLACE).total
        }
        if gloo.there() and gloo.sees_devices():
            ways["gloo"] = gloo.joined(rank, workers, file.with_suffix(".gloo"), alone=True)
        loops = {name: Loop(cupy, size, workers, total) for name, total in ways.items()}
        born = trainer.gradients
        born[0].fill(GRADIENT)
        plane = cast(Any, this_process()).fabric._plane

        def trained(given: Any, near: bool) -> None:
            for arena in plane._arenas.values():
                arena.near = near
            trainer.step(given, loss=0.0)

        def done(step: Callable[..., object], *given: Any) -> None:
            step(*given)
            cupy.cuda.get_current_stream().synchronize()

        trainer.step([gradient], loss=0.0)  # which finds out who can open whose memory
        sides = {name: partial(done, loop.step, gradient) for name, loop in loops.items()}
        if all(arena.near for arena in plane._arenas.values()):
            sides |= {
                "spotmpi": partial(done, trained, [gradient], True),
                "born": partial(done, trained, born, True),
            }
        sides |= {
            "staged": partial(done, trained, [gradient], False),
            "staged born": partial(done, trained, born, False),
        }
        clock = turns.together(comm)
        found = turns.compare(clock, count, sides, BLOCK, MOST)
        # Equal work, equal results: else the comparison would be of different things.
        for name, loop in loops.items():
            check(loop.params.get(), loop.updates, name)
        check(trainer.params[0].get(), trainer.steps, "trainer")
        if rank == 0:
            file.write_text(json.dumps(found))
        comm.Barrier()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
