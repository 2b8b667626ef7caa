"""Local arithmetic on flat parameters: what a round's gradients do to them. No communication."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from spotmpi.arrays.backend import Buffer, kernels_for
from spotmpi.errors import UsageError
from spotmpi.kernels import moving

__all__ = ["SGD", "Momentum", "Optimizer"]


class Optimizer(ABC):
    """A rule that moves parameters along gradients.

    It holds settings only. What it remembers from step to step lies in ``slots``: named sets of
    buckets like those of the parameters, zero at first, which belong to the registered state.
    """

    lr: float
    """The learning rate that was asked for; `update` is told the one that holds."""

    slots: ClassVar[tuple[str, ...]]
    """The names of what it remembers."""

    @abstractmethod
    def update(
        self,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        slots: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        """Move ``params`` and ``slots`` by one step, in place, with the gradient scale * grads.

        Deterministic: equal inputs give equal bits, on every worker of one kind of machine.
        """

    @property
    def at_once(self) -> bool:
        """Whether `move` does what `update` does: not in a class that somebody has derived, which
        may have changed the one and knows nothing of the other."""
        return type(self) in (SGD, Momentum)

    def move(
        self,
        after: Sequence[Buffer],
        before: Sequence[Buffer],
        inputs: Sequence[Buffer],
        weights: Sequence[float],
        rate: float,
        scale: float,
    ) -> None:
        """``after`` = ``before``, moved by one step with the gradient scale * sum(weights[i] *
        inputs[i]): parameters, and each slot after them, of some elements in the memory of the
        host. The bits are those of `update` with that sum."""
        raise NotImplementedError


@dataclass
class SGD(Optimizer):
    """Stochastic gradient descent, with parameters w and gradients g::

    w <- w - rate * g
    """

    lr: float

    slots: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self.lr = _rate(self.lr)

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

    def move(
        self,
        after: Sequence[Buffer],
        before: Sequence[Buffer],
        inputs: Sequence[Buffer],
        weights: Sequence[float],
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

    lr: float
    beta: float = 0.9

    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    def __post_init__(self) -> None:
        self.lr = _rate(self.lr)
        self.beta = _number("beta", self.beta)
        if not 0 <= self.beta < 1:
            raise UsageError(f"beta is {self.beta}, expected at least 0 and less than 1, as 0.9")

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

    def move(
        self,
        after: Sequence[Buffer],
        before: Sequence[Buffer],
        inputs: Sequence[Buffer],
        weights: Sequence[float],
        rate: float,
        scale: float,
    ) -> None:
        (w, v), (old_w, old_v) = after, before
        moving.momentum(w, v, old_w, old_v, inputs, weights, rate, self.beta, scale)


def _rate(lr: object) -> float:
    rate = _number("lr", lr)
    if rate < 0:
        raise UsageError(f"lr is {rate}, expected at least 0, as 0.1")
    return rate


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise UsageError(f"{name} is {value!r}, expected a finite number")
    return float(value)
