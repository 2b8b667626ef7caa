"""How noisy gradients are, and so how large a batch may be. Pure.

The squared length of the mean gradient of n samples is on average |G|**2 + V / n. G is the gradient
of all samples, and V says how much the gradients of single samples differ from G. Each worker knows
this length of its own gradient. All workers together know the length of the mean of all gradients.
These two sizes of a batch give both terms (McCandlish, Kaplan, Amodei and others, "An empirical
model of large-batch training", 2018, appendix A).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from spotmpi.protocol import tables
from spotmpi.protocol.membership import WorkerId

__all__ = ["WIDTH", "Lengths", "Noise", "estimated", "read", "write"]


class Lengths(NamedTuple):
    """What one worker knows of one round of gradients."""

    samples: int
    """Samples of this worker's own gradient; 0 if it had none."""
    own: float
    """Squared length of this worker's own gradient."""
    whole: int
    """Samples of all workers' gradients."""
    mean: float
    """Squared length of the mean gradient of all, over the elements that this worker summed."""
    elements: int
    """Elements of the mean gradient that this worker summed."""


WIDTH = 1 + len(Lengths._fields)
"""Numbers of a table's row."""


def write(table: Any, place: int, worker: WorkerId, lengths: Lengths | None) -> None:
    """Make the table hold these ``lengths`` alone, or zeros. No two workers have one ``place``."""
    tables.write(table, place, worker, lengths or ())


def read(table: Any) -> list[Lengths]:
    """Return the lengths of all workers, from the sum of all tables."""
    return [
        Lengths(int(samples), own, int(whole), mean, int(elements))
        for _, (samples, own, whole, mean, elements) in tables.read(table, WIDTH)
    ]


class Noise(NamedTuple):
    """The two terms that make up the squared length of a gradient."""

    signal: float
    """The term |G|**2. One estimate may be negative."""
    variance: float
    """The term V. One estimate may be negative."""

    @property
    def scale(self) -> float | None:
        """Samples of a batch in which both terms are equal; None if only noise is seen. A much
        larger batch learns little more in a step."""
        return max(0.0, self.variance) / self.signal if self.signal > 0 else None

    def after(self, before: Noise | None, keeps: float) -> Noise:
        """Return the average of this noise and the noise ``before``, whose share is ``keeps``."""
        if before is None:
            return self
        mixed = (keeps * old + (1.0 - keeps) * new for old, new in zip(before, self, strict=True))
        return Noise(*mixed)


def estimated(known: Sequence[Lengths], size: int) -> Noise | None:
    """Estimate the noise from one round with gradients of ``size`` elements. Returns None if the
    round says nothing: a worker that summed some elements is lost, only one worker brought a
    gradient, or not all numbers are finite."""
    own = [one for one in known if one.samples]
    elements = sum(one.elements for one in known)
    if len(own) < 2 or not elements or elements % size:
        return None
    whole = own[0].whole
    small, large = sum(1.0 / one.samples for one in own) / len(own), 1.0 / whole
    alone = sum(one.own for one in own) / len(own)
    mean = sum(one.mean for one in known) / (elements // size)
    variance = (alone - mean) / (small - large)
    found = Noise(mean - large * variance, variance)
    return found if all(map(math.isfinite, found)) else None
