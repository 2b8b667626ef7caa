"""Sums that go right into the next state, in one pass over memory and not in place.

Each function does what `scaled_sum` and an update do, with the bits of the two by themselves. It is
for the memory of the host alone. Inputs are one array or more, which overlap nothing that is
written; what is written overlaps nothing that is read. Other rules are those of `cpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from spotmpi.kernels import cpu
from spotmpi.kernels.reference import Array

__all__ = ["adam", "momentum", "sgd", "warm"]


def sgd(
    out: Array,
    params: Array,
    inputs: Sequence[Array],
    scales: Sequence[float],
    rate: float,
    scale: float,
) -> None:
    """out = params - rate * (scale * the sum of all scales[i] * inputs[i])"""
    brought = _brought((out,), (params,), inputs, scales)
    if brought is None:
        total = np.empty_like(out)
        cpu.scaled_sum(total, inputs, scales)
        out[...] = params
        cpu.sgd(out, total, rate, scale)
        return
    past = int(out.nbytes >= cpu.PAST_CACHE)
    _loops(out.dtype).sgd_of(past, out, params, *brought, rate, scale)


def momentum(
    out: Array,
    velocity_out: Array,
    params: Array,
    velocity: Array,
    inputs: Sequence[Array],
    scales: Sequence[float],
    rate: float,
    beta: float,
    scale: float,
) -> None:
    """velocity_out = beta * velocity + scale * the sum of all scales[i] * inputs[i];
    out = params - rate * velocity_out"""
    brought = _brought((out, velocity_out), (params, velocity), inputs, scales)
    if brought is None:
        total = np.empty_like(out)
        cpu.scaled_sum(total, inputs, scales)
        out[...], velocity_out[...] = params, velocity
        cpu.momentum(out, velocity_out, total, rate, beta, scale)
        return
    past = int(out.nbytes >= cpu.PAST_CACHE)
    _loops(out.dtype).momentum_of(
        past, out, velocity_out, params, velocity, *brought, rate, beta, scale
    )


def adam(
    out: Array,
    mean_out: Array,
    square_out: Array,
    params: Array,
    mean: Array,
    square: Array,
    inputs: Sequence[Array],
    scales: Sequence[float],
    rate: float,
    beta1: float,
    beta2: float,
    first: float,
    second: float,
    eps: float,
    decay: float,
    scale: float,
) -> None:
    """Write what `reference.adam` makes of the parameters and their moments. The gradients are the
    sum of all scales[i] * inputs[i]."""
    scalars = rate, beta1, beta2, first, second, eps, decay, scale
    brought = _brought((out, mean_out, square_out), (params, mean, square), inputs, scales)
    if brought is None:
        total = np.empty_like(out)
        cpu.scaled_sum(total, inputs, scales)
        out[...], mean_out[...], square_out[...] = params, mean, square
        cpu.adam(out, mean_out, square_out, total, *scalars)
        return
    past = int(out.nbytes >= cpu.PAST_CACHE)
    _loops(out.dtype).adam_of(
        past, out, mean_out, square_out, params, mean, square, *brought, *scalars
    )


def warm(dtype: str) -> None:
    """Load or compile all functions for this dtype."""
    _loops(np.dtype(dtype))


@cache
def _loops(dtype: np.dtype[Any]) -> SimpleNamespace:
    from spotmpi.kernels import moving_loops

    return moving_loops.compiled(dtype)


def _brought(
    written: tuple[Array, ...],
    before: tuple[Array, ...],
    inputs: Sequence[Array],
    scales: Sequence[float],
) -> tuple[Array, Array] | None:
    """Return the addresses and the scales of the inputs, for compiled code; None: there are too few
    elements for it to be worth it. Raises TypeError or ValueError for arrays that it would not
    survive."""
    starts = cpu.addresses(*written, *before, *inputs, written=len(written))
    size = written[0].nbytes
    for number in range(len(written)):
        first, end = starts[number] - size, starts[number] + size
        for other in starts[number + 1 :]:
            if first < other < end:
                raise ValueError(
                    "what is written overlaps what is read: give it an array of its own"
                )
    if not inputs:
        raise ValueError("got no inputs; give one or more")
    if written[0].size < cpu.FEW:
        return None
    if len(inputs) != len(scales):
        raise ValueError(f"got {len(inputs)} inputs and {len(scales)} scales; each input needs one")
    return np.array(starts[-len(inputs) :], np.uintp), np.array(scales, np.float64)
