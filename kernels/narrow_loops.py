"""The loops that narrow sums, compiled by Numba. The import takes long, as with `loops`.

Each loop works on a block of one scale at a time, which stays in a core's nearest cache, in several
passes that become vector code. Floats and their bits are the same memory seen twice, and no pass
writes to both. Numba makes 64 bits of any result of two integers: hence all the casts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import float32, float64, int8, int64, uint16, uintp
from numba.extending import register_jitable

from spotmpi.kernels import cache
from spotmpi.kernels.loops import pointed_at

__all__ = ["compiled"]

_BF16, _FP16 = 0, 1
"""Formats, by their numbers in `reference.FORMATS`. The other one is int8."""

_BLOCK = 1024
"""The value of `reference.NARROWED_BLOCK`: Numba's cache would not notice a change there."""


def compiled() -> SimpleNamespace:
    """Return the loops; see `cache.compiled`."""
    flat = float32[::1]
    wire = (int8[::1], uint16[::1], flat)
    return cache.compiled(
        {
            _narrow_sum: (int64, *wire, int64, *wire, flat, flat, flat, uintp[::1], float64[::1]),
            _widen: (int64, *wire, flat),
        }
    )


def _narrow_sum(
    form: Any,
    bytes_: Any,
    halves: Any,
    marks: Any,
    comes: Any,
    came_bytes: Any,
    came_halves: Any,
    came_marks: Any,
    total: Any,
    following: Any,
    rest: Any,
    addresses: Any,
    scales: Any,
) -> None:
    bits = total.view(np.uint32)
    room = np.empty(_BLOCK, np.float32)
    for start in range(0, total.size, _BLOCK):
        stop = min(start + _BLOCK, total.size)
        t, before, u = total[start:stop], following[start:stop], bits[start:stop]
        if comes != 0:
            _widen_block(form, came_bytes, came_halves, came_marks, start, t, u)
            _add(t, rest[start:stop], np.float32(1))
        else:
            t[:] = rest[start:stop]
        for i in range(addresses.size):
            x = pointed_at(addresses[i], total.size, total.dtype)[start:stop]
            _add(t, x, np.float32(scales[i]))
        before[:] = t
        if form == _BF16:
            _to_bf16(halves[start:stop], u)
        elif form == _FP16:
            marks[start // _BLOCK] = _to_fp16(halves[start:stop], t, u, room)
        else:
            marks[start // _BLOCK] = _to_int8(bytes_[start:stop], t, u)
        _widen_block(form, bytes_, halves, marks, start, t, u)
        for j in range(t.size):
            lacks = before[j] - t[j]
            before[j] = lacks if lacks - lacks == np.float32(0) else np.float32(0)


def _widen(form: Any, bytes_: Any, halves: Any, marks: Any, out: Any) -> None:
    bits = out.view(np.uint32)
    for start in range(0, out.size, _BLOCK):
        stop = min(start + _BLOCK, out.size)
        _widen_block(form, bytes_, halves, marks, start, out[start:stop], bits[start:stop])


@register_jitable
def _add(t: Any, x: Any, scale: Any) -> None:
    for j in range(t.size):
        t[j] += scale * x[j]


@register_jitable
def _widen_block(
    form: Any, bytes_: Any, halves: Any, marks: Any, start: Any, t: Any, u: Any
) -> None:
    if form == _BF16:
        h = halves[start : start + t.size]
        for j in range(t.size):
            u[j] = np.uint32(np.uint32(h[j]) << np.uint32(16))
    elif form == _FP16:
        h, scale = halves[start : start + t.size], marks[start // _BLOCK]
        for j in range(t.size):
            # The bits are read as a float32 with this exponent, which is too small by a factor.
            half = np.uint32(h[j])
            sign = np.uint32(np.uint32(half & np.uint32(0x8000)) << np.uint32(16))
            size = np.uint32(np.uint32(half & np.uint32(0x7FFF)) << np.uint32(13))
            if size >= np.uint32(0x0F800000):
                size = np.uint32(size | np.uint32(0x7F800000))
            u[j] = np.uint32(sign | size)
        for j in range(t.size):
            t[j] = t[j] * np.float32(2.0**112) * scale
    else:
        b, scale = bytes_[start : start + t.size], marks[start // _BLOCK]
        for j in range(t.size):
            t[j] = np.float32(b[j]) * scale


@register_jitable
def _to_bf16(h: Any, u: Any) -> None:
    for j in range(u.size):
        bits = u[j]
        size = np.uint32(bits & np.uint32(0x7FFFFFFF))
        odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        up = np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd)
        rounded = np.uint32(up >> np.uint32(16))
        if size < np.uint32(0x7F800000):
            if np.uint32(rounded & np.uint32(0x7FFF)) == np.uint32(0x7F80):
                rounded = np.uint32(rounded - np.uint32(1))
        else:
            rounded = np.uint32(bits >> np.uint32(16))
            if size > np.uint32(0x7F800000):
                rounded = np.uint32(0x7FC0)
        h[j] = np.uint16(rounded)


@register_jitable
def _to_fp16(h: Any, t: Any, u: Any, room: Any) -> Any:
    most = np.uint32(0)
    for j in range(u.size):
        size = np.uint32(u[j] & np.uint32(0x7FFFFFFF))
        size = size if size < np.uint32(0x7F800000) else np.uint32(0)
        most = max(most, size)
    scales = room.view(np.uint32)
    scales[0] = scales[1] = np.uint32(127 << 23)
    limit = np.uint32(0x7BFF)
    if most >= np.uint32(27 << 23):
        power = np.uint32(most >> np.uint32(23))
        scales[0] = np.uint32(np.uint32(power - np.uint32(14)) << np.uint32(23))
        scales[1] = np.uint32(np.uint32(np.uint32(268) - power) << np.uint32(23))
        if power == np.uint32(254):  # what follows 0x77FF would stand for no finite float32
            limit = np.uint32(0x77FF)
    scale, times = room[0], room[1]
    for j in range(t.size):
        t[j] = t[j] * times
    for j in range(t.size):
        # This addition rounds numbers that are too small for a mantissa of full length.
        room[j] = abs(t[j]) + np.float32(0.5)
    few = room.view(np.uint32)
    for j in range(u.size):
        bits = u[j]
        size = np.uint32(bits & np.uint32(0x7FFFFFFF))
        sign = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(0x8000))
        odd = np.uint32(np.uint32(size >> np.uint32(13)) & np.uint32(1))
        up = np.uint32(np.uint32(size + np.uint32(0xC8000FFF)) + odd)
        half = np.uint32(up >> np.uint32(13))
        if size < np.uint32(0x38800000):
            half = np.uint32(few[j] - np.uint32(0x3F000000))
        half = min(half, limit)
        if size >= np.uint32(0x7F800000):
            half = np.uint32(0x7C00)
        half = np.uint32(sign | half)
        if size > np.uint32(0x7F800000):
            half = np.uint32(0x7E00)
        h[j] = np.uint16(half)
    return scale


@register_jitable
def _to_int8(b: Any, t: Any, u: Any) -> Any:
    most = np.uint32(0)
    for j in range(u.size):
        most = max(most, np.uint32(u[j] & np.uint32(0x7FFFFFFF)))
    number = np.empty(1, np.uint32)
    number[0] = most
    largest = number.view(np.float32)[0]
    if most >= np.uint32(255 << 23):
        b[:] = 0
        return np.float32(np.nan)
    if most < np.uint32(27 << 23):
        b[:] = 0
        return np.float32(0)
    times = np.float32(127) / largest
    scale = number.view(np.float32)
    scale[0] = largest / np.float32(127)
    if np.float32(127) * scale[0] > largest:
        number[0] -= np.uint32(1)
    for j in range(t.size):
        # This addition leaves no place for digits behind the point.
        rounded = (t[j] * times + np.float32(12582912.0)) - np.float32(12582912.0)
        b[j] = np.int8(rounded)
    return scale[0]
