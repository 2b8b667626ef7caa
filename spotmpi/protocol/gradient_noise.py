"""How noisy gradients are, and so how large a batch may be. Pure.

The squared length of the mean gradient of n samples is on average |G|**2 + V / n: G is the gradient
of all samples there are, and V says how much those of single samples differ from it. Each worker
knows that length of its own gradient, and all of them together that of the mean of all. Two sizes
of a batch give both terms (McCandlish, Kaplan, Amodei and others, "An empirical model of
large-batch training", 2018, appendix A).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from spotmpi.protocol import tables
from spotmpi.protocol.membership import WorkerId

__all__ = ["WORDS", "Lengths", "Noise", "estimated", "read", "write"]


class Lengths(NamedTuple):
    """What one worker knows of one round of gradients."""

    samples: int
    """Of its own gradient; 0: it had none."""
    own: float
    """The squared length of that, ..."""
    whole: int
    """... the samples of all, ..."""
    mean: float
    """... and the squared length of the mean of all, as far as this worker has summed it: ..."""
    elements: int
    """... so many elements of it."""


WORDS = tables.words(len(Lengths._fields))
"""Of a table: float64."""


def write(table: Any, place: int, worker: WorkerId, lengths: Lengths | None) -> None:
    """Make the table one with this alone, or with nothing. No two workers have one ``place``."""
    tables.write(table, place, worker, lengths or ())


def read(table: Any) -> list[Lengths]:
    """What the sum of all tables says."""
    return [
        Lengths(int(samples), own, int(whole), mean, int(elements))
        for _, (samples, own, whole, mean, elements) in tables.rows(table)
    ]


class Noise(NamedTuple):
    """Both terms."""

    signal: float
    """|G|**2; one estimate may be negative."""
    variance: float
    """V; likewise."""

    @property
    def scale(self) -> float | None:
        """Samples of a batch in which both terms are equal: a much larger one learns little more
        in a step. None if noise is all there is to see."""
        return max(0.0, self.variance) / self.signal if self.signal > 0 else None

    def after(self, before: Noise | None, keeps: float) -> Noise:
        """This one, averaged with those before: their share is ``keeps``."""
        if before is None:
            return self
        mixed = (keeps * old + (1.0 - keeps) * new for old, new in zip(before, self, strict=True))
        return Noise(*mixed)


def estimated(known: Sequence[Lengths], size: int) -> Noise | None:
    """From what workers know of one round with gradients of ``size`` elements; None if that says
    nothing: somebody who has summed some of them is lost, only one has brought a gradient, or not
    all numbers are finite."""
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
