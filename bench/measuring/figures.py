"""What benches say of times that were taken in turn: medians, ratios, how sure they are, aims."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

__all__ = [
    "Aim",
    "Estimate",
    "Seconds",
    "interval",
    "middle_and_ends",
    "percent",
    "size",
    "spread",
    "times",
]

_RESAMPLES = 2000
_LEVEL = 0.95

Seconds = Mapping[str, Sequence[float]]
"""Of each side, turn by turn: the first of all sides belong together, and so on."""


class Estimate(NamedTuple):
    """A median, and the ends of its bootstrap interval at 95 %."""

    middle: float
    lower: float
    upper: float

    def say(self, digits: int = 2) -> str:
        """For people."""
        return f"{self.middle:.{digits}f} ({self.lower:.{digits}f} .. {self.upper:.{digits}f})"


class Aim(NamedTuple):
    """What is to be reached, in words and with what was seen, and whether it is."""

    text: str
    holds: bool

    @classmethod
    def at_most(cls, most: float, of: str, times: Estimate) -> Aim:
        """Something takes at most so many times what ``of`` says."""
        found = times.middle
        return cls(f"at most {most:g} of {of}: {found:.2f}", found <= most)

    def __str__(self) -> str:
        return f"  {'holds ' if self.holds else 'MISSED'}  {self.text}"


def interval(values: Sequence[float]) -> Estimate:
    """Of these: they are drawn with replacement. The same for the same values."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    edge = round((1 - _LEVEL) / 2 * _RESAMPLES)
    return Estimate(median(values), medians[edge], medians[-edge - 1])


def times(seconds: Seconds, slow: str, fast: str) -> Estimate:
    """How many times as long as ``fast`` the side ``slow`` takes, turn by turn."""
    return _of_turns(seconds, slow, fast, lambda one, other: one / other)


def percent(seconds: Seconds, side: str, other: str) -> Estimate:
    """By how much ``side`` takes longer than ``other``, turn by turn, in percent."""
    return _of_turns(seconds, side, other, lambda one, another: 100 * (one / another - 1))


def spread(seconds: Sequence[float]) -> str:
    """The median and the ends, in ms."""
    return f"{1e3 * median(seconds):.3f} ({1e3 * min(seconds):.3f} .. {1e3 * max(seconds):.3f})"


def middle_and_ends(values: Sequence[float], sign: str = "") -> str:
    """The median and the ends, in percent or points. ``sign``: "+" for differences."""
    middle, *ends = (f"{one:{sign}.1f}" for one in (median(values), min(values), max(values)))
    return f"{middle} ({ends[0]} .. {ends[1]})"


def size(params: int) -> str:
    """A number of parameters as one says it: 1 M, 25.6 M."""
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if params >= unit:
            return f"{params / unit:g} {name}"
    return str(params)


def _of_turns(
    seconds: Seconds, side: str, other: str, of: Callable[[float, float], float]
) -> Estimate:
    pairs = zip(seconds[side], seconds[other], strict=True)
    return interval([of(one, another) for one, another in pairs])
