"""Operators that work on gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from spotmpi.arrays.backend import fill, kernels_for
from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer
from spotmpi.operators.operator import Kind, Meeting, Stage
from spotmpi.operators.step import Bring, Step, Weighted
from spotmpi.optimizers.numbers import finite

__all__ = ["Apply", "Clip", "GradientAverage", "GradientSum"]


@dataclass(frozen=True)
class Clip(Stage):
    """A gradient g that is longer than ``norm`` is made that long (Pascanu et al. 2013)::

        g <- g * min(1, norm / |g|),  |g| = sqrt(sum(g**2)) over all arrays

    Before the round, g is this worker's own mean gradient. After it, g is the average or the sum of
    all: ``Clip(1.0) >> GradientAverage() >> Apply()`` or
    ``GradientAverage() >> Clip(1.0) >> Apply()``. The sum of squares is made in float64. A gradient
    with NaN or infinity in it keeps some.
    """

    works_on: ClassVar[Kind] = "gradients"
    norm: float

    def __post_init__(self) -> None:
        if finite("Clip: norm", self.norm) <= 0:
            raise UsageError(f"Clip: norm is {self.norm}, expected more than 0, as 1.0")

    def run(self, step: Step) -> None:
        """Read the gradient once. Only its factor changes, and later passes multiply with it."""
        if step.update is not None:
            step.scale *= self._factor(step.update, step.scale)
            return
        brought = step.bring
        if not isinstance(brought, Weighted):
            raise UsageError(
                f"{self} finds no gradient of this worker's own, as an operator before it has "
                "changed that: put it first, or behind GradientAverage()"
            )
        if brought.weight:
            room = step.room()
            brought.pack(room, 1.0)
            step.bring = Weighted(brought.pack, brought.weight * self._factor(room, 1.0))

    def _factor(self, flats: Sequence[Buffer], scale: float) -> float:
        squares = 0.0
        for flat in flats:
            squares += kernels_for(flat).sum_of_squares(flat)
        length = scale * math.sqrt(squares)
        return self.norm / length if length > self.norm else 1.0

    def __str__(self) -> str:
        return f"Clip({self.norm})"


class GradientAverage(Meeting):
    """The average of all workers' gradients, weighted by samples: g = sum(w_i g_i) / sum(w_i)."""

    carries: ClassVar[Kind] = "gradients"
    averages: ClassVar[bool] = True
    piecewise: ClassVar[bool] = True

    def contribute(self, step: Step) -> Bring:
        """Bring w_i g_i."""
        return step.bring

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Take the sums. The update does the division, in the same pass."""
        step.update, step.scale = sums, 1.0 / step.weight


class GradientSum(Meeting):
    """The sum of all workers' mean gradients, without weights: g = sum(g_i).

    A worker counts once, however many samples it was dealt. A worker that was dealt none brings
    nothing. The sum grows with the number of workers, so the learning rate should not:
    ``Trainer(scale_lr="none")``.
    """

    carries: ClassVar[Kind] = "gradients"
    piecewise: ClassVar[bool] = True

    def contribute(self, step: Step) -> Bring:
        """Bring g_i: the gradient divided by its number of samples."""
        return _mean(step.bring, step.now.share)

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Take the sums as they are."""
        step.update, step.scale = sums, 1.0


def _mean(bring: Bring, samples: float) -> Bring:
    """Return a `Bring` of a gradient divided by its number of samples; zeros if there are none."""
    if isinstance(bring, Weighted):
        return replace(bring, weight=bring.weight / samples if samples else 0.0)

    def divided(flats: Sequence[Buffer]) -> None:
        if not samples:
            fill(flats, 0)
            return
        bring(flats)
        for flat in flats:
            kernels_for(flat).blend(flat, flat, 1.0 / samples, 0.0)

    return divided


class Apply(Stage):
    """The optimizer's update of the parameters with what earlier operators made of the gradient:
    behind a round of its sums, before a round of this worker's own gradient."""

    moves: ClassVar[bool] = True
    works_on: ClassVar[Kind] = "gradients"

    def run(self, step: Step) -> None:
        """Update the parameters in one fused pass, unless that was done while the round summed."""
        if step.optimizer is None:
            raise UsageError(f"{self} needs an optimizer, and a group has none: use a Trainer")
        if step.fused:
            step.optimizer.moved(step.memory)
            return
        if step.update is None:
            if not step.now.samples:
                return
            step.own()
        assert step.update is not None
        known = step.params, step.update, step.memory, step.rate, step.scale
        step.optimizer.apply(step.layout, *known)
