"""What ``spotmpi bench convergence`` trains: two sets, and a small network in NumPy.

digits   scikit-learn's 1797 images of 8 x 8; every fifth is kept apart to test with.
teacher  generated: what a random network says of random inputs. 16000 inputs of 20 normal numbers;
         of the ten outputs of a network with 32 hidden units, each standardised, the largest is the
         class. One label in ten is drawn anew. The 8000 to test with have all their own classes.
         The same numbers each time: they come of one seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError

__all__ = ["TASKS", "Data", "Network", "Task"]

Array = npt.NDArray[Any]
Params = dict[str, Array]

_CLASSES = 10
_TEST_EVERY = 5
_TEACHER_SEED, _INPUTS, _UNITS = 7, 20, 32
_TRAIN, _TEST, _WRONG = 16_000, 8_000, 0.1


class Data(NamedTuple):
    """Inputs and classes, to train on and to test with."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array

    def for_tuning(self) -> Data:
        """The same without the test set: every fifth of the others takes its place."""
        test = np.arange(len(self.x)) % _TEST_EVERY == 0
        return Data(self.x[~test], self.y[~test], self.x[test], self.y[test])


@dataclass(frozen=True)
class Task:
    """A set, and how it is trained: samples of a worker's batch, walks over the set."""

    data: Callable[[], Data]
    inputs: int
    hidden: int
    batch_size: int
    passes: int


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


def _digits() -> Data:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise UsageError(
            "the digits are scikit-learn's: python -m pip install scikit-learn"
        ) from None
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    test = np.arange(len(x)) % _TEST_EVERY == 0
    return Data(x[~test], y[~test], x[test], y[test])


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
}
