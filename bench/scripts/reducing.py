"""Sums of arrays over all workers, by MPI_Allreduce, gloo and spotmpi in turn, in one job.

A script (`allreduce` runs it): ``reducing.py FILE WHERE TURNS WHAT FORMAT...``. WHERE is ``here``,
if all workers are on one host, or ``hosts``. WHAT is a number of bytes, or a model's name: its
gradients in buckets. The first worker writes FILE: for each side the seconds of each turn, on the
slowest worker. FORMATs are those in which sums are narrowed as well, each a side. On one host one
side only copies, all workers together.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import spotmpi
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.narrowing import Narrowing
from spotmpi.bench.measuring import turns
from spotmpi.bench.measuring.copies import COPIED, copying
from spotmpi.bench.measuring.models import MODELS
from spotmpi.bench.measuring.sums import summed
from spotmpi.bench.scripts import gloo
from spotmpi.fabric import Shape
from spotmpi.fabric.planes.named_arena import TRIED, ways_of
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

_BLOCK, _MOST = 0.05, 200
"""Seconds of a block, about, and the most sums in it."""

_PATTERN = np.random.default_rng(1).lognormal(size=4099).astype(np.float32)
"""Numbers of several magnitudes, of the same sign; what a worker brings repeats them."""

_OFF = {None: 1e-5, "bf16": 2.0**-7, "fp16": 2.0**-10, "int8": 1 / 60}
"""How far sums may be off, in these formats."""

Flat = npt.NDArray[np.float32]


class Side(NamedTuple):
    """One way to sum."""

    add_up: Callable[[], object]
    results: Sequence[Flat]
    """Where the sums are then."""
    off: float
    """How far they may be off."""


def main(file: Path, here: bool, count: int, what: str, formats: list[str]) -> None:
    """One worker of the job, to its end."""
    with spotmpi.Trainer([np.zeros(1)], optimizer=SGD(lr=0.1), strategy=SSGD()):
        # Only now: entering has initialised MPI as spotmpi needs it.
        from spotmpi.fabric.mpi.calls import MPI
        from spotmpi.fabric.mpi.fabric import MpiFabric

        fabric, comm, sizes = MpiFabric(), MPI.COMM_WORLD, buckets(what)
        me, workers = comm.Get_rank(), comm.Get_size()
        flat = np.empty(sum(sizes), np.float32)
        pieces = np.split(flat, np.cumsum(sizes)[:-1])
        totals: dict[str, Callable[[Flat], object]] = {}
        totals["mpi"] = partial(comm.Allreduce, MPI.IN_PLACE)
        if gloo.there():
            totals["gloo"] = gloo.joined(me, workers, file.with_suffix(".gloo"), alone=here)
        sides = {
            name: Side(partial(_each, total, pieces), pieces, _OFF[None])
            for name, total in totals.items()
        }
        for form in (None, *formats):
            sides[form or "spotmpi"] = _spotmpi(fabric, sizes, form)
        in_doubt = any(len(ways_of(Shape("float32", size))) > 1 for size in sizes)
        for name, side in sides.items():
            fill(pieces, 1 + me)
            if in_doubt and not here and name not in totals:
                for _ in range(TRIED):  # these rounds try ways; from then on it has one
                    side.add_up()
            side.add_up()
            if (off := off_by(side.results, workers * (workers + 1) // 2)) > side.off:
                raise SystemExit(f"{name}: a sum of {what} is off by {off:.2g}")
        flat.fill(0)  # what is summed in place again and again would grow beyond all numbers
        ways = {name: side.add_up for name, side in sides.items()}
        if here:
            ways["copy"] = copying(COPIED // workers)
        clock = turns.together(comm)
        found = turns.compare(clock, count, ways, _BLOCK, _MOST)
        if me == 0:
            file.write_text(json.dumps(found))
        comm.Barrier()
    if here:
        os._exit(0)  # nobody but mpirun started it


def buckets(what: str) -> list[int]:
    """Elements of each array that is summed."""
    if what not in MODELS:
        return [int(what) // 4]
    arrays = [np.zeros(array.shape, np.float32) for array in MODELS[what]()]
    return [bucket.size for bucket in Layout.of(arrays).buckets]


def fill(arrays: Sequence[Flat], factor: float) -> None:
    """What a worker brings."""
    for array in arrays:
        for start in range(0, array.size, _PATTERN.size):
            piece = array[start : start + _PATTERN.size]
            np.multiply(_PATTERN[: piece.size], np.float32(factor), out=piece)


def off_by(arrays: Sequence[Flat], factor: float) -> float:
    """How far these are from what `fill` writes, at most, as a part of the largest of that."""
    expected = _PATTERN * np.float32(factor)
    worst = 0.0
    for array in arrays:
        for start in range(0, array.size, expected.size):
            piece = array[start : start + expected.size]
            worst = max(worst, float(np.abs(piece - expected[: piece.size]).max()))
    return worst / float(expected.max())


def _each(total: Callable[[Any], object], arrays: Sequence[Flat]) -> None:
    for array in arrays:
        total(array)


def _spotmpi(fabric: Any, sizes: Sequence[int], form: str | None) -> Side:
    """A round of these arrays, narrowed like this; what is kept of each is never added."""
    shapes = []
    for size in sizes:
        narrowing = None
        if form is not None:
            zeros = np.zeros(size, np.float32)
            narrowing = Narrowing(form, zeros, np.zeros_like(zeros))
        shapes.append(Shape("float32", size, narrowing=narrowing))
    arena = fabric.arena(shapes, form or "float32")
    fill(arena.contributions, 1 + fabric.me)
    parts = arena.parts
    return Side(lambda: fabric.run(summed(parts)), arena.results, _OFF[form])


if __name__ == "__main__":
    where, count, what, *formats = sys.argv[2:]
    main(Path(sys.argv[1]), where == "here", int(count), what, formats)
