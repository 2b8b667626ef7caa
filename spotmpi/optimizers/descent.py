"""Optimizers that go down the gradient, plain or with momentum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from spotmpi.arrays.backend import Buffer, kernels_for
from spotmpi.kernels import moving
from spotmpi.optimizers.numbers import share
from spotmpi.optimizers.optimizer import Optimizer
from spotmpi.optimizers.schedules import Schedule, checked

__all__ = ["SGD", "Momentum"]


@dataclass
class SGD(Optimizer):
    """Stochastic gradient descent, with parameters w and gradients g::

    w <- w - rate * g
    """

    lr: float | Schedule

    slots: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self.lr = checked(self.lr)

    def update(
        self,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        slots: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        for w, g in zip(params, grads, strict=True):
            kernels_for(w).sgd(w, g, rate, scale)

    @property
    def at_once(self) -> bool:
        return type(self) is SGD

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
        moving.sgd(after[0], before[0], inputs, weights, rate, scale)


@dataclass
class Momentum(Optimizer):
    """Gradient descent with a velocity v, which decays by ``beta`` each step::

    v <- beta * v + g
    w <- w - rate * v
    """

    lr: float | Schedule
    beta: float = 0.9

    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        self.lr = checked(self.lr)
        self.beta = share("beta", self.beta, "0.9")

    def update(
        self,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        slots: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        for w, g, v in zip(params, grads, slots["velocity"], strict=True):
            kernels_for(w).momentum(w, v, g, rate, self.beta, scale)

    @property
    def at_once(self) -> bool:
        return type(self) is Momentum

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
        (w, v), (old_w, old_v) = after, before
        moving.momentum(w, v, old_w, old_v, inputs, weights, rate, self.beta, scale)
