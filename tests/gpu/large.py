"""A training of large arrays on a device, in which workers kill themselves in the middle of sums.

``large.py LIBRARY FLOATS STEPS WORKER@STEP:MILLISECONDS...``: so long after that worker has begun
the sum of that step it kills itself. Prints each survivor's digest of the parameters at the end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chaos"))
from arrays import Library

import spotmpi
from spotmpi.arrays.backend import digest_of
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

name, floats, steps, *deaths = sys.argv[1:]
library = Library(name)
import cupy  # noqa: E402 -- the one that the library has chosen

PIECES = 5


def made(seed: int) -> dict[str, object]:
    """Arrays that differ in every element."""
    size = int(floats) // PIECES
    kernels = {}
    for piece in range(PIECES):
        flat = cupy.zeros(size, "float32")
        flat.fill((seed * 31 + piece) % 97 / 97)
        kernels[f"w{piece}"] = flat
    return kernels


moments = {
    tuple(map(int, who.split("@"))): float(after)
    for who, _, after in (death.partition(":") for death in deaths)
}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


with spotmpi.Trainer(
    made(0), optimizer=Momentum(lr=0.01), strategy=SSGD(), seed=3, check_finite=True
) as trainer:
    for batch in trainer.batches(int(steps) * 64, batch_size=4, passes=1):
        after = moments.get((trainer.worker, trainer.steps))
        grads = made(int(batch.sum()))
        if after is not None:
            threading.Timer(after / 1e3, kill).start()
        trainer.step(grads)
    flats = [trainer.params[key] for key in sorted(trainer.params)]
    print("FINAL", trainer.worker, trainer.steps, digest_of(flats), flush=True)
