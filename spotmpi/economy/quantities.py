"""Numbers with units, as people write and read them: ``2h``, ``K80:4``, ``$1.05``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from spotmpi.errors import UsageError

__all__ = [
    "HOUR",
    "Cluster",
    "cluster",
    "count_text",
    "dollars",
    "duration",
    "percent",
    "time_text",
]

HOUR = 3600.0
"""Seconds."""

Cluster = Mapping[str, int]
"""How many of each instance type; types that are not there, or with 0, are not in it."""

_LONG = 1e6
"""Hours, and parts of one, from here on are read by their exponent."""

_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": HOUR, "d": 24 * HOUR}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min|m|h|d)\s*")
_COUNT = re.compile(r"\s*([^\s:,=]+)\s*:\s*(\d{1,9})\s*")


def duration(text: str, what: str = "a duration") -> float:
    """Seconds of ``90s``, ``2h``, ``1.5 min``, ``1h30min``. UsageError for anything else.

    A bare number is refused: in a price list it would be taken for hours, in a trace for seconds.
    """
    position, total = 0, 0.0
    while match := _DURATION.match(text, position):
        total += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    if position != len(text) or not text.strip() or not math.isfinite(total):
        raise UsageError(
            f"{what} is {text!r}, expected a number with its unit: 90s, 5min, 2h or 1h30min"
        )
    return total


def cluster(text: str, what: str) -> Cluster:
    """The instances of ``K80:4,V100:1``, in the order given. UsageError for anything else."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise UsageError(f"{what} is {text!r}, expected types and numbers as in K80:4,V100:1")
        if match[1] in found:
            raise UsageError(f"{what} is {text!r}, which names {match[1]} twice")
        found[match[1]] = int(match[2])
    there = {name: count for name, count in found.items() if count}
    if not there:
        raise UsageError(f"{what} is {text!r}, which is no instance at all")
    return there


def count_text(counts: Cluster) -> str:
    """``K80:4,V100:1``, as `cluster` reads it."""
    return ",".join(f"{name}:{count}" for name, count in counts.items()) or "nothing"


def time_text(seconds: float) -> str:
    """A time to read: ``850 ms``, ``42.0 s``, ``12.3 min``, ``2.55 h``."""
    if seconds < 0.9995:  # what rounds to 1000 ms is a second
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.1f} min"
    hours = seconds / HOUR
    return f"{hours:.2f} h" if hours < _LONG else f"{hours:.3g} h"


def percent(part: float, digits: int = 0) -> str:
    """A part of one to read: ``12 %``."""
    return f"{100 * part:.{digits}f} %" if part < _LONG else f"{100 * part:.3g} %"


def dollars(amount: float) -> str:
    """An amount to read: ``$1.05``; four decimals where two would say nothing."""
    if not (amount == 0 or 0.0001 <= amount < 1000 * _LONG):
        return f"${amount:.3g}"
    return f"${amount:.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"
