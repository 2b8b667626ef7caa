"""The loops of `moving`, compiled by Numba. The import takes long, as with `loops`.

A sum is made block by block, in room that stays in a core's nearest cache. Each block is used
before the next one is summed. Large results are written past the cache (``past``), from room again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import float64, int64, uintp
from numba.extending import register_jitable
from numba.np.numpy_support import from_dtype

from spotmpi.kernels import cache
from spotmpi.kernels.loops import pointed_at
from spotmpi.kernels.past_cache import LINE, copy_lines, settle

__all__ = ["compiled"]

BLOCK = 2048
"""Elements of a block: they stay in a core's nearest cache."""


def compiled(dtype: np.dtype[Any]) -> SimpleNamespace:
    """Return the loops for arrays of this dtype; see `cache.compiled`."""
    flat = from_dtype(dtype)[::1]
    brought = (uintp[::1], float64[::1])
    return cache.compiled(
        {
            _sgd_of: (int64, flat, flat, *brought, float64, float64),
            _momentum_of: (int64, flat, flat, flat, flat, *brought, float64, float64, float64),
            _adam_of: (int64, *(flat,) * 6, *brought, *(float64,) * 8),
        }
    )


def _sgd_of(
    past: Any, out: Any, params: Any, addresses: Any, scales: Any, rate: Any, scale: Any
) -> None:
    real = out.dtype.type
    r, s = real(rate), real(scale)
    zeros, room, new = _room(out), _room(out), _room(out)
    weights = _weights(scales, out)
    for start in range(0, out.size, BLOCK):
        after, before = out[start : start + BLOCK], params[start : start + BLOCK]
        total, w = room[: after.size], new[: after.size] if past else after
        _sum(total, addresses, weights, start, out.size, zeros)
        for j in range(w.size):
            w[j] = before[j] - r * (s * total[j])
        if past:
            _write(after, w)
    settle()


def _momentum_of(
    past: Any,
    out: Any,
    velocity_out: Any,
    params: Any,
    velocity: Any,
    addresses: Any,
    scales: Any,
    rate: Any,
    beta: Any,
    scale: Any,
) -> None:
    real = out.dtype.type
    r, b, s = real(rate), real(beta), real(scale)
    zeros, room, new, faster = _room(out), _room(out), _room(out), _room(out)
    weights = _weights(scales, out)
    for start in range(0, out.size, BLOCK):
        after, before = out[start : start + BLOCK], params[start : start + BLOCK]
        sped, slower = velocity_out[start : start + BLOCK], velocity[start : start + BLOCK]
        total = room[: after.size]
        w, v = (new[: after.size], faster[: after.size]) if past else (after, sped)
        _sum(total, addresses, weights, start, out.size, zeros)
        for j in range(w.size):
            fast = b * slower[j] + s * total[j]
            v[j] = fast
            w[j] = before[j] - r * fast
        if past:
            _write(sped, v)
            _write(after, w)
    settle()


def _adam_of(
    past: Any,
    out: Any,
    mean_out: Any,
    square_out: Any,
    params: Any,
    mean: Any,
    square: Any,
    addresses: Any,
    scales: Any,
    rate: Any,
    beta1: Any,
    beta2: Any,
    first: Any,
    second: Any,
    eps: Any,
    decay: Any,
    scale: Any,
) -> None:
    real = out.dtype.type
    b, c, new_b, new_c = real(beta1), real(beta2), real(1.0 - beta1), real(1.0 - beta2)
    r, p, q, e, d, s = real(rate), real(first), real(second), real(eps), real(decay), real(scale)
    zeros, room, new, means, squares = _room(out), _room(out), _room(out), _room(out), _room(out)
    weights = _weights(scales, out)
    for start in range(0, out.size, BLOCK):
        after, before = out[start : start + BLOCK], params[start : start + BLOCK]
        mean_after, mean_before = mean_out[start : start + BLOCK], mean[start : start + BLOCK]
        after_square, before_square = (
            square_out[start : start + BLOCK],
            square[start : start + BLOCK],
        )
        total = room[: after.size]
        w = new[: after.size] if past else after
        m = means[: after.size] if past else mean_after
        v = squares[: after.size] if past else after_square
        _sum(total, addresses, weights, start, out.size, zeros)
        for j in range(w.size):
            g = s * total[j]
            moved = b * mean_before[j] + new_b * g
            squared = c * before_square[j] + new_c * (g * g)
            old = before[j]
            m[j] = moved
            v[j] = squared
            w[j] = old - r * ((p * moved) / (q * np.sqrt(squared) + e) + d * old)
        if past:
            _write(mean_after, m)
            _write(after_square, v)
            _write(after, w)
    settle()


@register_jitable
def _room(out: Any) -> Any:
    return np.zeros(BLOCK, out.dtype)


@register_jitable
def _write(out: Any, x: Any) -> None:
    """Write whole lines past the cache, and what stands before and behind them as usual."""
    size, here = out.itemsize, uintp(out.ctypes.data)
    first = min(out.size, int64((uintp(0) - here) % uintp(LINE)) // size)
    last = first + (out.size - first) * size // LINE * LINE // size
    for j in range(first):
        out[j] = x[j]
    behind = uintp(x.ctypes.data) + uintp(first * size)
    copy_lines(here + uintp(first * size), behind, (last - first) * size)
    for j in range(last, out.size):
        out[j] = x[j]


@register_jitable
def _weights(scales: Any, out: Any) -> Any:
    # In the last four, missing inputs weigh -0.0: they leave every sum as it is, to the bit.
    weights = np.full(scales.size + 3, -0.0, out.dtype)
    for i in range(scales.size):
        weights[i] = scales[i]
    return weights


@register_jitable
def _sum(total: Any, addresses: Any, weights: Any, start: Any, size: Any, zeros: Any) -> None:
    """Sum as `loops` does: four inputs at a time, from left to right."""
    for i in range(0, addresses.size, 4):
        p, a = weights[i], _input(addresses, i, start, size, zeros)
        q, b = weights[i + 1], _input(addresses, i + 1, start, size, zeros)
        r, c = weights[i + 2], _input(addresses, i + 2, start, size, zeros)
        s, d = weights[i + 3], _input(addresses, i + 3, start, size, zeros)
        if i == 0:
            for j in range(total.size):
                total[j] = p * a[j] + q * b[j] + r * c[j] + s * d[j]
        else:
            for j in range(total.size):
                total[j] = total[j] + p * a[j] + q * b[j] + r * c[j] + s * d[j]


@register_jitable
def _input(addresses: Any, i: Any, start: Any, size: Any, zeros: Any) -> Any:
    if i >= addresses.size:
        return zeros
    return pointed_at(addresses[i], size, zeros.dtype)[start : start + BLOCK]
