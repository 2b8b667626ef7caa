"""Train a small network on scikit-learn's digits: the training script of ``spotmpi demo``.

One script, started in any of these ways, on one worker or on many, whoever is killed meanwhile::

    python jobs/digits.py
    spotmpi run -n 4 jobs/digits.py
    jobs/mpirun/one-host.sh 4 jobs/digits.py

Of the 1797 images, every fifth is kept apart as the test set.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.strategies import SSGD

Array = npt.NDArray[Any]
Params = dict[str, Array]

CLASSES = 10
HIDDEN = 256
TEST_EVERY = 5
PASSES, BATCH_SIZE, LR, SEED = 40, 12, 0.05, 0
REPORT_EVERY = 50
"""Steps between two lines of progress."""


class Network:
    """A perceptron with one hidden layer, its gradient written by hand. Holds no parameters."""

    @staticmethod
    def initial(inputs: int, seed: int) -> Params:
        """Random weights: the Trainer takes those of the first worker for all."""
        rng = np.random.default_rng(seed)
        shapes = {"w1": (inputs, HIDDEN), "w2": (HIDDEN, CLASSES)}
        weights = {name: rng.normal(0, shape[0] ** -0.5, shape) for name, shape in shapes.items()}
        params = {**weights, "b1": np.zeros(HIDDEN), "b2": np.zeros(CLASSES)}
        return {name: array.astype(np.float32) for name, array in params.items()}

    @staticmethod
    def gradient(params: Params, x: Array, y: Array) -> tuple[float, Params]:
        """The mean loss (cross-entropy) over the images ``x`` of the digits ``y``; its gradient."""
        hidden = np.tanh(x @ params["w1"] + params["b1"])
        logits = hidden @ params["w2"] + params["b2"]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = -np.log(odds[rows, y] + np.float32(1e-12)).mean()
        odds[rows, y] -= 1
        odds /= np.float32(len(y))
        back = (odds @ params["w2"].T) * (1 - hidden**2)
        grads = {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ odds, "b2": odds.sum(0)}
        return float(loss), grads

    @staticmethod
    def accuracy(params: Params, x: Array, y: Array) -> float:
        """Of the images ``x``, the share that is recognised."""
        hidden = np.tanh(x @ params["w1"] + params["b1"])
        guesses = (hidden @ params["w2"] + params["b2"]).argmax(axis=1)
        return float((guesses == y).mean())


def data() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Images (64 numbers from 0 to 1 each) and digits, to train on and to test with."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        sys.exit("digits.py needs scikit-learn: python -m pip install scikit-learn")
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    test = np.arange(len(x)) % TEST_EVERY == 0
    return (x[~test], y[~test]), (x[test], y[test])


def train(arguments: argparse.Namespace) -> None:
    """Train, tell how it goes, and test."""
    (x, y), held_out = data()
    params = Network.initial(x.shape[1], arguments.seed)
    optimizer = Momentum(lr=arguments.lr)
    with spotmpi.Trainer(
        params, optimizer=optimizer, strategy=SSGD(), seed=arguments.seed
    ) as trainer:
        workers = trainer.workers
        for batch in trainer.batches(len(x), arguments.batch_size, arguments.passes):
            loss, grads = Network.gradient(trainer.params, x[batch], y[batch])
            trainer.step(grads, loss=loss)
            changed = trainer.workers != workers
            workers = trainer.workers
            if trainer.leader and (changed or trainer.steps % REPORT_EVERY == 0):
                say(f"step {trainer.steps:4d}  loss {trainer.loss:.4f}  {worker_list(workers)}")

        def test() -> None:
            accuracy = Network.accuracy(trainer.params, *held_out)
            say(f"trained {trainer.steps} steps; test accuracy {accuracy:.4f}")

        trainer.once(test)


def worker_list(workers: tuple[int, ...]) -> str:
    """How many there are, and which."""
    return f"{len(workers)} workers: {' '.join(map(str, workers))}"


def say(line: str) -> None:
    """Print now: under mpirun the output is a pipe."""
    print(line, flush=True)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a small network on scikit-learn's digits.")
    parser.add_argument("--passes", type=int, default=PASSES, help="over the data (%(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=BATCH_SIZE, help="images per worker (%(default)s)"
    )
    parser.add_argument(
        "--lr",
        type=float,
        default=LR,
        help="rate for the workers at the start (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=SEED, help="%(default)s")
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parse())
