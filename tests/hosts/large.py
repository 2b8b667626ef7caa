"""A training whose sums go from host to host.

A pass is the last one if there is a file ``enough``; an argument narrows sums. The gradient does
not depend on the parameters, so that a test replays it quickly; each sample has numbers of its own.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np

import spotmpi
from spotmpi.operators import Narrow
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

SAMPLES, SIZE = 97, 300_007
PATTERN = np.random.default_rng(5).normal(size=SIZE).astype(np.float32)


def start():
    """Where training begins."""
    return {"w": np.zeros(SIZE, np.float32), "b": np.zeros(3, np.float64)}


def gradient(params, samples):
    """The mean over samples."""
    mean = np.float32(np.sin(np.asarray(samples, np.float64)).mean())
    return {"w": mean * PATTERN, "b": np.full(3, float(mean))}


def fingerprint(params):
    """Equal if and only if every bit is."""
    return hashlib.sha256(params["w"].tobytes() + params["b"].tobytes()).hexdigest()[:16]


def main():
    """One worker of the job."""
    passes, enough = 0, 0.0
    optimizer = SGD(lr=0.02)
    strategy = Narrow(sys.argv[1]) >> SSGD() if sys.argv[1:] else SSGD()
    with spotmpi.Trainer(start(), optimizer=optimizer, strategy=strategy, seed=7) as trainer:
        while not enough:
            for batch in trainer.batches(SAMPLES, batch_size=4):
                trainer.step(gradient(trainer.params, batch), loss=0.0)
            passes, enough = passes + 1, trainer.mean(float(Path("enough").exists()))
    print("FINAL", trainer.worker, fingerprint(trainer.params), passes)


if __name__ == "__main__":
    main()
