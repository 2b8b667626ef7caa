"""Means that are exact, carried by sums of float32: for `Trainer.mean`. Pure.

A number is cut into whole numbers of 12 bits, each at its fixed place in the range of a float64.
A float32 adds those of up to `control.MOST_WORKERS` workers without an error, and so does every
wider type. The mean is then computed from the exact sum and rounded once: it does not depend on the
order of the sum, and the mean of equal numbers is that number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

_BITS = 12
_LEAST = -1126
"""Power of two of the last bit: the smallest float64 is 2**-1074, of 53 bits as all are here."""
_PIECES = -(-(1024 - _LEAST) // _BITS)
_TOUCHED = 6
"""Pieces that the 53 bits of one number may lie in."""

WORDS = _PIECES + 3
"""Numbers that are summed for each number: its pieces, and how many were NaN, inf and -inf."""


def encode(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What one worker brings for these numbers: `WORDS` small whole numbers for each."""
    rows = np.zeros((len(numbers), WORDS))
    rows[:, -3:] = np.stack([np.isnan(numbers), numbers == np.inf, numbers == -np.inf], axis=1)
    fractions, powers = np.frexp(np.where(np.isfinite(numbers), numbers, 0.0))
    firsts, rests = np.divmod(powers - 53 - _LEAST, _BITS)
    bits = np.ldexp(np.abs(fractions), 53).astype(np.uint64) << rests.astype(np.uint64)
    for piece in range(_TOUCHED):
        part = (bits >> np.uint64(_BITS * piece)) & np.uint64((1 << _BITS) - 1)
        rows[np.arange(len(numbers)), firsts + piece] = np.copysign(part, numbers)
    return rows.reshape(-1)


def decode(sums: Any, workers: int) -> npt.NDArray[np.float64]:
    """The means of ``workers`` workers' numbers, from the sums of what each has brought."""
    return np.array([_mean(row, workers) for row in np.asarray(sums).reshape(-1, WORDS)])


def _mean(row: npt.NDArray[Any], workers: int) -> float:
    undefined, up, down = row[-3:].tolist()
    if undefined or (up and down):
        return math.nan
    if up or down:
        return math.inf if up else -math.inf
    total = sum(int(row[i]) << (_BITS * i) for i in np.flatnonzero(row).tolist())
    return total / (workers << -_LEAST)  # Python divides whole numbers with one rounding
