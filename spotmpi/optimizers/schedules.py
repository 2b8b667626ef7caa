"""Learning rates that follow from the number of the step, and from nothing else.

So a newcomer and a resumed job have the right rate without being told. Rates are made of sums,
products and quotients alone: all hosts have the same bits, with any libraries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.optimizers.numbers import finite, non_negative, power, whole

__all__ = ["Cosine", "Schedule", "StepDecay", "Warmup", "checked", "pack", "rate_at", "unpack"]


class Schedule(ABC):
    """A learning rate for each step. Yours must be equal on all workers and have no memory."""

    @abstractmethod
    def rate(self, step: int) -> float:
        """Return the rate of this step; steps count from 0. It must be deterministic."""


@dataclass(frozen=True)
class Cosine(Schedule):
    """A rate up to ``peak`` in ``warmup`` steps, then down to ``least`` along half a cosine.
    ``steps`` counts the steps of both. In step s::

        peak * (s + 1) / warmup                                                   if s < warmup
        least + (peak - least) * (1 + cos(pi * (s - warmup) / (steps - warmup))) / 2
        least                                                                     from ``steps`` on
    """

    peak: float
    steps: int
    warmup: int = 0
    least: float = 0.0

    def __post_init__(self) -> None:
        non_negative("Cosine: peak", self.peak, "0.1")
        whole("Cosine: steps", self.steps, 1)
        whole("Cosine: warmup", self.warmup, 0)
        non_negative("Cosine: least", self.least, "0.001")
        if self.warmup >= self.steps:
            raise UsageError(
                f"Cosine: warmup is {self.warmup}, expected fewer than all {self.steps} steps"
            )
        if self.least > self.peak:
            raise UsageError(
                f"Cosine: least is {self.least}, expected at most the peak, {self.peak}"
            )

    def rate(self, step: int) -> float:
        """Return the rate that the equation gives."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if step >= self.steps:
            return self.least
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.least + (self.peak - self.least) * (1 + _sine(math.pi * (0.5 - done))) / 2


@dataclass(frozen=True)
class StepDecay(Schedule):
    """The rate first * factor**(s // every) in step s: it falls after each ``every`` steps."""

    first: float
    every: int
    factor: float

    def __post_init__(self) -> None:
        non_negative("StepDecay: first", self.first, "0.1")
        whole("StepDecay: every", self.every, 1)
        if not 0 < finite("StepDecay: factor", self.factor) <= 1:
            raise UsageError(
                f"StepDecay: factor is {self.factor}, expected more than 0 and at most 1, as 0.1"
            )

    def rate(self, step: int) -> float:
        """Return the rate that the equation gives."""
        return self.first * power(self.factor, step // self.every)


@dataclass(frozen=True)
class Warmup(Schedule):
    """A rate that rises from 0 in a straight line, in ``steps`` steps, to the start of ``then``.
    That is a number, or a schedule, for which steps count from the end of the warm-up."""

    steps: int
    then: float | Schedule

    def __post_init__(self) -> None:
        whole("Warmup: steps", self.steps, 1)
        if not isinstance(self.then, Schedule):
            non_negative("Warmup: then", self.then, "0.1")

    def rate(self, step: int) -> float:
        """Return then(0) * (s + 1) / steps in step s, and then(s - steps) after the warm-up."""
        if step < self.steps:
            return rate_at(self.then, 0) * (step + 1) / self.steps
        return rate_at(self.then, step - self.steps)


def checked(lr: object) -> float | Schedule:
    """Return a learning rate that was asked for; UsageError if that cannot be meant."""
    return lr if isinstance(lr, Schedule) else non_negative("lr", lr, "0.1, or a schedule")


def rate_at(lr: float | Schedule, step: int) -> float:
    """Return the rate of ``lr`` in a step; UsageError if it can be no learning rate."""
    if type(lr) is float and 0.0 <= lr < math.inf:  # the usual case, several times in each step
        return lr
    if not isinstance(lr, Schedule):
        return non_negative("lr", lr, "0.1, or a schedule")
    return non_negative(f"the rate that {lr} has for step {step}", lr.rate(step), "0.1")


_KINDS = {kind.__name__: kind for kind in (Cosine, StepDecay, Warmup)}


def pack(lr: Any) -> Any:
    """Return ``lr`` as JSON values, for a worker whose script may have another one. None for a
    schedule that is not one of ours: all scripts must make it alike."""
    if not isinstance(lr, Schedule):
        return lr
    if type(lr) not in _KINDS.values():
        return None
    made: Any = lr
    return [type(lr).__name__, {one.name: pack(getattr(lr, one.name)) for one in fields(made)}]


def unpack(found: Any) -> Any:
    """Return the learning rate that `pack` was given."""
    if not isinstance(found, list):
        return found
    name, settings = found
    given: Mapping[str, Any] = {key: unpack(value) for key, value in settings.items()}
    return _KINDS[name](**given)


def _sine(x: float) -> float:
    """Return the sine of ``x``, which lies between -pi / 2 and pi / 2."""
    term = total = x
    for n in range(1, 13):
        term *= -x * x / (2 * n * (2 * n + 1))
        total += term
    return total
