"""How fast memory is copied here: what no sum can be faster than for long."""

from __future__ import annotations

import ctypes

import numpy as np

from spotmpi.bench.measuring.turns import Step

__all__ = ["COPIED", "copying"]

COPIED = 100_000_000
"""Bytes that all workers of a job copy together: more than caches hold."""


def copying(size: int) -> Step:
    """Copies so many bytes as the C library does, and as nobody is faster."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)

    def copy() -> None:
        ctypes.memmove(target.ctypes.data, source.ctypes.data, size)

    return copy
