"""Calls of the kernels that move by moments, and of sums of squares, for tests of all sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spotmpi.kernels.reference import LANES, STRETCH

SIZES = (0, 1, 7, LANES, LANES + 1, 1001, 3 * LANES - 1, STRETCH, 2 * STRETCH + LANES + 3)

_USUAL = {
    "rate": 0.3, "beta1": 0.9, "beta2": 0.999, "first": 10.0, "second": 31.6, "eps": 1e-8,
    "decay": 0.01, "scale": 0.7,
}  # fmt: skip
_ODD = ({"decay": 0.0, "eps": 0.0}, {"beta1": 0.0, "scale": -1.0}, {"rate": float("inf")},
        {"second": float("nan")}, {"scale": 1e30, "beta2": 1.0}, {"first": 0.0})  # fmt: skip


def calls(odd: bool = True) -> Iterator[Any]:
    """Each takes kernels, and parameters, two moments and gradients; and returns what it tells, in
    which one NaN is another. ``odd``: also with numbers that nobody would give."""
    for changed in ({}, *(_ODD if odd else ())):
        given = {**_USUAL, **changed}
        scalars = [given[name] for name in _USUAL]
        yield lambda k, a, s=scalars: k.adam(*a, *s)
        yield lambda k, a, s=scalars: repr(k.lamb_norms(*a, *s[1:]))
        yield lambda k, a, s=scalars: k.lamb(*a[:3], s[0], *s[3:7])
    yield lambda k, a: repr([k.sum_of_squares(x) for x in a])
