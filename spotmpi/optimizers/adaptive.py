"""Optimizers that divide by the size of past gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from spotmpi.arrays.backend import Buffer, kernels_for
from spotmpi.errors import UsageError
from spotmpi.kernels import moving
from spotmpi.optimizers.numbers import finite, non_negative, power, share
from spotmpi.optimizers.optimizer import Optimizer
from spotmpi.optimizers.schedules import Schedule, checked

__all__ = ["LAMB", "Adam", "AdamW"]


@dataclass
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015): two moments of the gradient g, from 0 on, move the parameters.
    They decay by ``beta1`` and ``beta2``. In update t, counted from 1, element by element::

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        w <- w - rate * (m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps)

    A step in which no sample counted is no update.
    """

    lr: float | Schedule
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    slots: ClassVar[tuple[str, ...]] = ("mean", "square")
    counts: ClassVar[tuple[str, ...]] = ("updates",)
    # Its first step has the size of the rate in each element, however small the gradient is: far
    # too large for a model that is nearly trained.
    rises: ClassVar[int] = 20

    def __post_init__(self) -> None:
        self.lr = checked(self.lr)
        self.beta1 = share("beta1", self.beta1, "0.9")
        self.beta2 = share("beta2", self.beta2, "0.999")
        self.eps = finite("eps", self.eps)
        if self.eps <= 0:
            raise UsageError(f"eps is {self.eps}, expected more than 0, as 1e-8")

    def update(
        self,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        slots: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        decays, direction = (self.beta1, self.beta2), self._direction(slots)
        for w, g, m, v in zip(params, grads, slots["mean"], slots["square"], strict=True):
            kernels_for(w).adam(w, m, v, g, rate, *decays, *direction, scale)
        self.moved(slots)

    @property
    def at_once(self) -> bool:
        return type(self) in (Adam, AdamW)

    def move(
        self,
        after: Sequence[Buffer],
        before: Sequence[Buffer],
        inputs: Sequence[Buffer],
        weights: Sequence[float],
        counts: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        decays, direction = (self.beta1, self.beta2), self._direction(counts)
        (w, m, v), (old_w, old_m, old_v) = after, before
        arrays = w, m, v, old_w, old_m, old_v
        moving.adam(*arrays, inputs, weights, rate, *decays, *direction, scale)

    @property
    def _decay(self) -> float:
        return 0.0

    def _direction(
        self, counts: Mapping[str, Sequence[Buffer]]
    ) -> tuple[float, float, float, float]:
        """Return what makes the next direction: the corrections of the mean and of the root of the
        square, what is added to that root, and what is taken from the weights."""
        count = int(counts["updates"][0][0]) + 1
        past = power(self.beta1, count), power(self.beta2, count)
        return 1 / (1 - past[0]), 1 / math.sqrt(1 - past[1]), self.eps, self._decay


@dataclass
class AdamW(Adam):
    """`Adam` with weights that decay by themselves (Loshchilov and Hutter 2019)::

    w <- w - rate * ((m / (1 - beta1**t)) / (sqrt(v / (1 - beta2**t)) + eps) + decay * w)
    """

    decay: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        self.decay = non_negative("decay", self.decay, "0.01")

    @property
    def _decay(self) -> float:
        return self.decay


@dataclass
class LAMB(AdamW):
    """`AdamW` whose rate follows the size of each array, for large batches (You et al. 2020). Let u
    be what AdamW multiplies by the rate. Then for each array w of the model::

        w <- w - rate * (|w| / |u|) * u

    Here |x| = sqrt(sum(x**2)), and the quotient is 1 where either norm is 0.
    """

    eps: float = 1e-6

    elementwise: ClassVar[bool] = False
    # The size of its steps follows the arrays, also of the first one.
    rises: ClassVar[int] = 0

    def update(
        self,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        slots: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        decays, direction = (self.beta1, self.beta2), self._direction(slots)
        for w, g, m, v in zip(params, grads, slots["mean"], slots["square"], strict=True):
            kernels = kernels_for(w)
            weights, directions = kernels.lamb_norms(w, m, v, g, *decays, *direction, scale)
            kernels.lamb(w, m, v, rate * _ratio(weights, directions), *direction)
        self.moved(slots)


def _ratio(weights: float, directions: float) -> float:
    """Return the quotient of the norms of which these are the squares; 1 if either is 0."""
    if not weights or not directions:
        return 1.0
    return math.sqrt(weights) / math.sqrt(directions)
