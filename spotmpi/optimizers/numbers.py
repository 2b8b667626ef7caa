"""Numbers that optimizers are made with, and what is computed from them. Only sums, products and
quotients are used: they have the same bits on every machine. A library's powers and cosines do not.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from spotmpi.errors import UsageError

__all__ = ["finite", "non_negative", "power", "share", "whole", "within"]


def finite(name: str, value: Any) -> float:
    """Return ``value`` as a float; UsageError unless it is a finite number."""
    if type(value) is float and math.isfinite(value):  # the usual case, in each step
        return value
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise UsageError(f"{name} is {value!r}, expected a finite number")
    return float(value)


def non_negative(name: str, value: Any, example: str) -> float:
    """Return ``value`` as a float; UsageError unless it is finite and at least 0."""
    number = finite(name, value)
    if number < 0:
        raise UsageError(f"{name} is {number}, expected at least 0, as {example}")
    return number


def share(name: str, value: Any, example: str) -> float:
    """Return ``value`` as a float; UsageError unless it is at least 0 and less than 1."""
    number = finite(name, value)
    if not 0 <= number < 1:
        raise UsageError(f"{name} is {number}, expected at least 0 and less than 1, as {example}")
    return number


def whole(name: str, value: Any, least: int) -> int:
    """Return ``value``; UsageError unless it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise UsageError(f"{name} is {value!r}, expected a whole number of at least {least}")
    return int(value)


def within(
    name: str, value: Any, least: float, most: float, above: bool = False, below: bool = False
) -> None:
    """Raise UsageError unless ``value`` is a number from ``least`` to ``most``. With ``above`` it
    must be more than ``least``, with ``below`` less than ``most``."""
    finite(name, value)
    if not (
        (least < value if above else least <= value) and (value < most if below else value <= most)
    ):
        said = "more than" if above else "at least"
        upto = "less than" if below else "at most"
        raise UsageError(f"{name} is {value!r}, expected {said} {least} and {upto} {most}")


def power(base: float, exponent: int) -> float:
    """Return ``base`` to the power of ``exponent``, a whole number of at least 0."""
    found = 1.0
    while exponent:
        if exponent % 2:
            found *= base
        base, exponent = base * base, exponent // 2
    return found
