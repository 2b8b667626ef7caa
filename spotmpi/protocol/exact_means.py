"""Exact means, carried by sums of float64: for `Trainer.mean`. Pure.

A number is cut into whole numbers of 32 bits. Each has a fixed place in the range of a float64, and
float64 adds those of up to `control_word.MOST_WORKERS` workers without an error. The mean is
computed from the exact sum and rounded once. So it does not depend on the order of the sum, and the
mean of equal numbers is that number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError

_BITS = 32
_LEAST = -1126
"""Power of two of the last bit. The smallest float64 is 2**-1074; each number has 53 bits here."""
_PIECES = -(-(1024 - _LEAST) // _BITS)
_MASK = np.uint64((1 << _BITS) - 1)
_HALF = np.uint64(_BITS)

WORDS = _PIECES + 3
"""Numbers that are summed for each number: its pieces, and the counts of NaN, inf and -inf."""


def numbers_of(x: object) -> npt.NDArray[np.float64]:
    """Return a number or an array of numbers as a flat array; UsageError for anything else."""
    array = np.asarray(x)
    if array.dtype.kind not in "biuf" or not array.size:
        raise UsageError(f"mean() takes a number or an array of numbers, not {x!r}")
    return array.astype(np.float64).ravel()


def like(x: Any, numbers: Any) -> float | npt.NDArray[np.float64]:
    """Return the first of ``numbers`` in the shape of ``x``: a float if ``x`` is a number."""
    shape = np.shape(x)
    if shape == ():
        return float(numbers[0])
    return np.array(numbers[: math.prod(shape)], np.float64).reshape(shape)


def encode(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return what one worker contributes: for each number, `WORDS` small whole numbers."""
    rows = np.zeros((len(numbers), WORDS))
    rows[:, -3:] = np.stack([np.isnan(numbers), numbers == np.inf, numbers == -np.inf], axis=1)
    fractions, powers = np.frexp(np.where(np.isfinite(numbers), numbers, 0.0))
    firsts, rests = np.divmod(powers - 53 - _LEAST, _BITS)
    bits, shift = np.ldexp(np.abs(fractions), 53).astype(np.uint64), rests.astype(np.uint64)
    lower, upper = (bits & _MASK) << shift, (bits >> _HALF) << shift
    upper += lower >> _HALF
    for piece, part in enumerate((lower & _MASK, upper & _MASK, upper >> _HALF)):
        rows[np.arange(len(numbers)), firsts + piece] = np.copysign(part, numbers)
    return rows.reshape(-1)


def decode(sums: Any, workers: int) -> list[float]:
    """Return the means over ``workers`` workers, from the sums of their contributions."""
    return [_mean(row, workers) for row in np.asarray(sums).reshape(-1, WORDS)]


def _mean(row: npt.NDArray[Any], workers: int) -> float:
    undefined, up, down = row[-3:].tolist()
    if undefined or (up and down):
        return math.nan
    if up or down:
        return math.inf if up else -math.inf
    total = sum(int(row[i]) << (_BITS * i) for i in np.flatnonzero(row).tolist())
    return total / (workers << -_LEAST)  # Python divides whole numbers with one rounding
