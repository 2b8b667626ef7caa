"""Steps of spotmpi, of a bare loop, and of spotmpi's data plane alone, in turn, in one MPI job.

Run by mpirun (`step` does): ``python stepping.py FILE TURNS WHAT``. WHAT is a number of float32, or
a model's name. Every rank holds three trainings by Momentum:

- ``bare``: packs its gradients, sums them by MPI in place, which is the fastest it can do, and
  updates;
- ``plane``: packs them into an arena, and has the data plane sum them right into the next state, or
  updates by itself where it cannot: what a step of spotmpi does, without its ledger, its control
  word, its commit and its checks;
- ``spotmpi``: a Trainer.

The last two are also given gradients that were computed where they are summed: ``plane born`` and
``born``. The first rank writes FILE: of each side the seconds of a step, turn by turn.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import spotmpi
from spotmpi.arrays.layout import Layout
from spotmpi.bench.measuring import sums, turns
from spotmpi.bench.measuring.models import MODELS
from spotmpi.fabric import DoubleBuffer, Move, Shape
from spotmpi.kernels import cpu
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

BLOCK, MOST = 0.05, 200
"""Seconds of a block, about, and the most steps in it."""
RATE, BETA, GRADIENT = 0.05, 0.9, 1e-3

Flat = npt.NDArray[np.float32]


class Replica:
    """Parameters and what Momentum remembers, in flat buckets; counts its updates."""

    def __init__(self, layout: Layout, flats: Sequence[Flat] = ()) -> None:
        """``flats``: where they lie; without them in memory of its own."""
        buckets = layout.buckets
        both = flats or [np.zeros(bucket.size, np.float32) for bucket in (*buckets, *buckets)]
        self.params, self.velocity = both[: len(buckets)], both[len(buckets) :]
        self.updates = 0

    def update(self, sums: Sequence[Flat], workers: int) -> None:
        """By the mean of what so many have brought."""
        self.updates += 1
        for params, velocity, total in zip(self.params, self.velocity, sums, strict=True):
            cpu.momentum(params, velocity, total, RATE, BETA, 1.0 / workers)


def move_of(
    optimizer: Momentum, after: Sequence[Flat], before: Sequence[Flat], scale: float
) -> Move:
    """What makes the next state of a bucket of its sums."""

    def move(part: slice, inputs: Sequence[Flat], weights: Sequence[float]) -> None:
        new, old = [flat[part] for flat in after], [flat[part] for flat in before]
        optimizer.move(new, old, inputs, weights, {}, RATE, scale)

    return move


def main(file: Path, count: int, what: str) -> None:
    """One rank of the job, to its end."""
    shapes = [array.shape for array in MODELS[what]()] if what in MODELS else [(int(what),)]
    gradients = [np.full(shape, GRADIENT, np.float32) for shape in shapes]
    weights = [np.zeros(shape, np.float32) for shape in shapes]
    optimizer = Momentum(lr=RATE, beta=BETA)
    with spotmpi.Trainer(weights, optimizer=optimizer, strategy=SSGD()) as trainer:
        del weights  # the trainer has its own
        # Only now: entering has initialised MPI as spotmpi needs it.
        from spotmpi.fabric.mpi.calls import MPI
        from spotmpi.fabric.mpi.fabric import MpiFabric

        comm, fabric, layout = MPI.COMM_WORLD, MpiFabric(), Layout.of(gradients)
        workers = comm.Get_size()
        loop = Replica(layout)
        many = len(layout.buckets)
        state = DoubleBuffer([(bucket.dtype, bucket.size) for bucket in layout.buckets] * 2)
        alone = Replica(layout, state.live)
        flats = [np.zeros(bucket.size, np.float32) for bucket in layout.buckets]
        arena = fabric.arena(
            [Shape(bucket.dtype, bucket.size) for bucket in layout.buckets], "plane", state
        )
        moves = [
            move_of(optimizer, state.next[number::many], state.live[number::many], 1.0 / workers)
            for number in range(many)
        ]

        def bare() -> None:
            layout.pack(gradients, flats, 1.0)
            for flat in flats:
                comm.Allreduce(MPI.IN_PLACE, flat)
            loop.update(flats, workers)

        def plane() -> None:
            layout.pack(gradients, arena.contributions, 1.0)
            summed()

        def summed() -> None:
            if fuses := arena.fuses:
                arena.fuse_update(moves, 1)
            fabric.run(sums.summed(arena.parts))
            arena.turn()
            if fuses:
                arena.advance()
                alone.updates += 1
            else:
                alone.update(arena.record, workers)

        born = trainer.gradients
        for array in born:
            array[...] = GRADIENT
        sides = {
            "bare": bare,
            "plane": plane,
            # Where workers share no memory, sums come where gradients were: they are packed anew.
            "plane born": plane if arena.in_place else summed,
            "spotmpi": lambda: trainer.step(gradients, loss=0.0),
            "born": lambda: trainer.step(born, loss=0.0),
        }
        clock = turns.together(comm)
        found = turns.compare(clock, count, sides, BLOCK, MOST)
        # Equal work, equal results: else the comparison would be of different things.
        check(loop.params[0], loop.updates, "loop")
        check(alone.params[0], alone.updates, "plane")
        check(trainer.params[0], trainer.steps, "trainer")
        if comm.Get_rank() == 0:
            file.write_text(json.dumps(found))
        comm.Barrier()
    os._exit(0)


def check(params: Flat, steps: int, whose: str) -> None:
    """End the process if these are not what ``steps`` by `GRADIENT` make of zeros."""
    w = v = np.float32(0)
    for _ in range(steps):
        v = np.float32(BETA) * v + np.float32(GRADIENT)
        w = w - np.float32(RATE) * v
    if not np.allclose(params, w, rtol=1e-2):
        raise SystemExit(f"after {steps} steps the {whose}' parameters are {params[:3]}, not {w}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
