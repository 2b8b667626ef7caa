"""A training whose sums go from host to host.

A pass is the last one if there is a file ``enough``. ``large.py HOW SIZE``: sums of so many numbers
are narrowed to a format, or go "whole", or "one by one": then most of the gradient travels while
the rest is computed. The gradient does not depend on the
parameters, so that a test replays it quickly; each sample has numbers of its own.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.arrays.narrowing import FORMATS
from spotmpi.operators import Narrow
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

SAMPLES, SIZE, MEDIUM = 97, 300_007, 9_001
PATTERN = np.random.default_rng(5).normal(size=SIZE).astype(np.float32)


def start(size=SIZE):
    """Where training begins."""
    return {"w": np.zeros(size, np.float32), "b": np.zeros(3, np.float64)}


def gradient(params, samples):
    """The mean over samples."""
    mean = np.float32(np.sin(np.asarray(samples, np.float64)).mean())
    return {"w": mean * PATTERN[: len(params["w"])], "b": np.full(3, float(mean))}


def fingerprint(params):
    """Equal if and only if every bit is."""
    return hashlib.sha256(params["w"].tobytes() + params["b"].tobytes()).hexdigest()[:16]


def main():
    """One worker of the job."""
    passes, enough = 0, 0.0
    optimizer = SGD(lr=0.02)
    how, size = sys.argv[1], int(sys.argv[2])
    strategy = Narrow(how) >> SSGD() if how in FORMATS else SSGD()
    with spotmpi.Trainer(start(size), optimizer=optimizer, strategy=strategy, seed=7) as trainer:
        while not enough:
            for batch in trainer.batches(SAMPLES, batch_size=4):
                grads = gradient(trainer.params, batch)
                if how == "one by one":
                    trainer.ready("w", grads.pop("w"))
                    for _ in range(20):  # the rest of a backward pass
                        np.sin(PATTERN)
                trainer.step(grads, loss=0.0)
            passes, enough = passes + 1, trainer.mean(float(Path("enough").exists()))
    print("FINAL", trainer.worker, fingerprint(trainer.params), passes)


if __name__ == "__main__":
    main()
