"""A training that computes as much and sends as much as it is told to: what `prediction` measures.

A script for ``spotmpi run``: ``computing.py FLOATS SIDE``: float32 parameters, and the side of the
square matrices whose product stands for a batch. It trains until it is ended.
"""

from __future__ import annotations

import sys

import numpy as np

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD


def main(params: int, side: int) -> None:
    """One worker of the job, to its end."""
    weights = [np.zeros(params, np.float32)]
    gradient = [np.full(params, 1e-3, np.float32)]
    batch = np.ones((side, side), np.float32)
    with spotmpi.Trainer(weights, optimizer=Momentum(lr=0.05), strategy=SSGD()) as trainer:
        while True:
            batch @ batch
            trainer.step(gradient, loss=0.0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
