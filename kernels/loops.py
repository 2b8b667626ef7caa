"""The loops of `cpu`, compiled by Numba. The import takes long: only processes with arrays that
are worth it do it.

In each loop, scalars are rounded to the arrays' dtype first. One float64 among float32 would turn
the whole loop into one over float64, which is slower and rounds differently.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import float64, int64, types, uint32, uintp
from numba.extending import intrinsic, register_jitable
from numba.np.numpy_support import carray, from_dtype

from spotmpi.kernels import cache
from spotmpi.kernels.past_cache import LINE, settle, sum_lines

__all__ = ["BLOCK", "compiled", "pointed_at"]

BLOCK = 8192
"""Elements of a sum that stay in a core's cache while the inputs pass by."""

LANES, STRETCH = 256, 1 << 16
"""The values of `reference`, repeated: Numba's cache would not notice a change there."""


def compiled(dtype: np.dtype[Any]) -> SimpleNamespace:
    """Return the loops for arrays of this dtype; see `cache.compiled`. For whole numbers there are
    only those of `scaled_sum`."""
    flat, words = from_dtype(dtype)[::1], uint32[::1]
    sums: cache.Loops = {
        _scaled_sum: (flat, uintp[::1], float64[::1]),
        _scaled_sum_past_cache: (flat, uintp[::1], float64[::1]),
        _address: (flat,),
    }
    if dtype.kind == "u":
        return cache.compiled(sums)
    return cache.compiled(
        {
            **sums,
            _accumulate: (flat, flat),
            _blend: (flat, flat, float64, float64),
            _exchange: (flat, flat, flat),
            _sgd: (flat, flat, float64, float64),
            _momentum: (flat, flat, flat, float64, float64, float64),
            _adam: (flat,) * 4 + (float64,) * 8,
            _lamb_norms: (flat,) * 4 + (float64,) * 7,
            _lamb: (flat,) * 3 + (float64,) * 5,
            _sum_of_squares: (flat,),
            _scale: (flat, flat, float64),
            _digest: (words, uint32, uint32, uint32),
            _finite: (flat,),
        }
    )


def _accumulate(out: Any, x: Any) -> None:
    for i in range(out.size):
        out[i] += x[i]


def _blend(out: Any, x: Any, a: Any, b: Any) -> None:
    real = out.dtype.type
    new, old = real(a), real(b)
    for i in range(out.size):
        out[i] = old * out[i] + new * x[i]


def _exchange(total: Any, own: Any, x: Any) -> None:
    for i in range(total.size):
        new = x[i]
        total[i] += new - own[i]
        own[i] = new


def _sgd(params: Any, grads: Any, rate: Any, scale: Any) -> None:
    real = params.dtype.type
    r, s = real(rate), real(scale)
    for i in range(params.size):
        params[i] -= r * (s * grads[i])


def _momentum(params: Any, velocity: Any, grads: Any, rate: Any, beta: Any, scale: Any) -> None:
    real = params.dtype.type
    r, b, s = real(rate), real(beta), real(scale)
    for i in range(params.size):
        velocity[i] = b * velocity[i] + s * grads[i]
        params[i] -= r * velocity[i]


def _adam(
    params: Any,
    mean: Any,
    square: Any,
    grads: Any,
    rate: Any,
    beta1: Any,
    beta2: Any,
    first: Any,
    second: Any,
    eps: Any,
    decay: Any,
    scale: Any,
) -> None:
    real = params.dtype.type
    b, c, new_b, new_c = real(beta1), real(beta2), real(1.0 - beta1), real(1.0 - beta2)
    r, p, q, e, d, s = real(rate), real(first), real(second), real(eps), real(decay), real(scale)
    for i in range(params.size):
        g = s * grads[i]
        m = b * mean[i] + new_b * g
        v = c * square[i] + new_c * (g * g)
        w = params[i]
        mean[i] = m
        square[i] = v
        params[i] = w - r * ((p * m) / (q * np.sqrt(v) + e) + d * w)


def _lamb_norms(
    params: Any,
    mean: Any,
    square: Any,
    grads: Any,
    beta1: Any,
    beta2: Any,
    first: Any,
    second: Any,
    eps: Any,
    decay: Any,
    scale: Any,
) -> Any:
    # A row of lanes at a time: its directions stay in the nearest cache until they are squared.
    real = params.dtype.type
    b, c, new_b, new_c = real(beta1), real(beta2), real(1.0 - beta1), real(1.0 - beta2)
    p, q, e, d, s = real(first), real(second), real(eps), real(decay), real(scale)
    room, ours, theirs = np.zeros(LANES, params.dtype), np.zeros(LANES), np.zeros(LANES)
    weights, directions = 0.0, 0.0
    for start in range(0, params.size, STRETCH):
        stop = min(params.size, start + STRETCH)
        ours[:] = 0.0
        theirs[:] = 0.0
        for row in range(start, stop, LANES):
            many = min(LANES, stop - row)
            w, m, v = params[row : row + many], mean[row : row + many], square[row : row + many]
            x, u = grads[row : row + many], room[:many]
            for j in range(many):
                g = s * x[j]
                moved = b * m[j] + new_b * g
                squared = c * v[j] + new_c * (g * g)
                m[j] = moved
                v[j] = squared
                u[j] = (p * moved) / (q * np.sqrt(squared) + e) + d * w[j]
            _add_squares(ours, w)
            _add_squares(theirs, u)
        weights += _added(ours)
        directions += _added(theirs)
    return weights, directions


def _lamb(
    params: Any,
    mean: Any,
    square: Any,
    rate: Any,
    first: Any,
    second: Any,
    eps: Any,
    decay: Any,
) -> None:
    real = params.dtype.type
    r, p, q, e, d = real(rate), real(first), real(second), real(eps), real(decay)
    for i in range(params.size):
        w = params[i]
        params[i] = w - r * ((p * mean[i]) / (q * np.sqrt(square[i]) + e) + d * w)


def _sum_of_squares(x: Any) -> Any:
    lanes, total = np.zeros(LANES), 0.0
    for start in range(0, x.size, STRETCH):
        stop = min(x.size, start + STRETCH)
        lanes[:] = 0.0
        for row in range(start, stop, LANES):
            _add_squares(lanes, x[row : min(row + LANES, stop)])
        total += _added(lanes)
    return total


@register_jitable
def _add_squares(lanes: Any, x: Any) -> None:
    for j in range(x.size):
        y = np.float64(x[j])
        lanes[j] += y * y


@register_jitable
def _added(lanes: Any) -> Any:
    total = 0.0
    for j in range(LANES):
        total += lanes[j]
    return total


def _scale(out: Any, x: Any, scale: Any) -> None:
    s = out.dtype.type(scale)
    for i in range(x.size):
        out[i] = s * x[i]


def _finite(x: Any) -> Any:
    zero = x.dtype.type(0)
    broken = False
    for i in range(x.size):
        broken |= x[i] * zero != zero  # without a branch, so that it becomes vector code
    return not broken


def _digest(words: Any, start: Any, position: Any, mix: Any) -> Any:
    # The two constants are arguments: Numba's cache would not notice a change in another file.
    total = np.uint64(0)
    for i in range(words.size):
        u = np.uint32(words[i] + (i + start) * position)
        v = np.uint32((u ^ u >> 16) * mix)
        mixed = np.uint64(v ^ v >> 15)
        total += mixed * mixed
    return total


def _scaled_sum(out: Any, addresses: Any, scales: Any) -> None:
    _add_up(out, 0, out.size, addresses, _weights(scales, out.dtype.type(-0.0)))


def _scaled_sum_past_cache(out: Any, addresses: Any, scales: Any) -> None:
    # Whole lines go past the cache; what stands before and behind them is written as usual.
    size, count, here = out.itemsize, addresses.size, uintp(out.ctypes.data)
    weights = _weights(scales, out.dtype.type(-0.0))
    first = min(out.size, int64((uintp(0) - here) % uintp(LINE)) // size)
    last = first + (out.size - first) * size // LINE * LINE // size
    _add_up(out, 0, first, addresses, weights)
    sum_lines(here, first * size, last * size, addresses, weights, count)
    _add_up(out, last, out.size, addresses, weights)
    settle()


@register_jitable
def _weights(scales: Any, none: Any) -> Any:
    """Return the scales as numbers of the sum's type, and three times ``none``."""
    weights = np.full(scales.size + 3, none)
    for i in range(scales.size):
        weights[i] = scales[i]
    return weights


@register_jitable
def _add_up(out: Any, begin: Any, end: Any, addresses: Any, weights: Any) -> None:
    """Write the elements from ``begin`` to ``end`` of a weighted sum."""
    # Inputs come as addresses, because Numba would compile a tuple again for each length. Four are
    # added at a time: enough to keep memory busy, few enough to be written out. In the last four,
    # missing inputs are zeros with a weight of -0.0: they leave every sum as it is, to the bit.
    zeros = np.zeros(min(end - begin, BLOCK), out.dtype)
    for start in range(begin, end, BLOCK):
        stop = min(end, start + BLOCK)
        block = out[start:stop]
        for i in range(0, addresses.size, 4):
            p, a = weights[i], _input(addresses, i, out, start, stop, zeros)
            q, b = weights[i + 1], _input(addresses, i + 1, out, start, stop, zeros)
            r, c = weights[i + 2], _input(addresses, i + 2, out, start, stop, zeros)
            s, d = weights[i + 3], _input(addresses, i + 3, out, start, stop, zeros)
            if i == 0:
                for j in range(block.size):
                    block[j] = p * a[j] + q * b[j] + r * c[j] + s * d[j]
            else:
                for j in range(block.size):
                    block[j] = block[j] + p * a[j] + q * b[j] + r * c[j] + s * d[j]


@register_jitable
def _input(addresses: Any, i: Any, out: Any, start: Any, stop: Any, zeros: Any) -> Any:
    """Return the elements of input ``i`` that belong to ``out`` from ``start`` to ``stop``."""
    if i >= addresses.size:
        return zeros
    return pointed_at(addresses[i], out.size, out.dtype)[start:stop]


@register_jitable
def pointed_at(address: Any, size: Any, dtype: Any) -> Any:
    """Return the array of ``size`` elements that lies at ``address``; in compiled code."""
    return carray(_as_pointer(address), size, dtype)


def _address(x: Any) -> Any:
    """Return where ``x`` lies in memory: five times faster from compiled code than from NumPy."""
    return x.ctypes.data


def _pointer(typing_context: Any, address: Any) -> Any:
    """Numba's recipe for `_as_pointer`: the types of the call, and what generates its code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(uintp), generate


_as_pointer: Any = intrinsic(_pointer)
"""_as_pointer(address): a number as a pointer, in compiled code."""
