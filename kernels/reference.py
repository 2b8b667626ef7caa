"""What every kernel computes, in plain NumPy: the definition that every backend must match.

Arrays are one-dimensional, contiguous, of one length and one dtype, float32 or float64, unless a
function says otherwise. Scalars are rounded to that dtype first. Then every operation rounds to it,
in the order that is written here, and none is fused with the next. A backend that keeps to this is
equal to the bit, save for the payload of NaNs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "accumulate",
    "adam",
    "blend",
    "digest",
    "exchange",
    "finite",
    "lamb",
    "lamb_norms",
    "momentum",
    "narrow_sum",
    "pack",
    "scaled_sum",
    "sgd",
    "sum_of_squares",
    "unpack",
    "widen",
]

Array: TypeAlias = npt.NDArray[Any]

# Both are odd, so that multiplying by them loses nothing: Weyl's for positions, murmur3's to mix.
POSITION = 0x9E3779B1
MIX = 0x85EBCA6B

LANES, STRETCH = 256, 1 << 16
"""In a sum of squares, the number of sums side by side and the elements of one stretch."""

FORMATS = ("bf16", "fp16", "int8")
"""The formats that float32 can be narrowed to."""

NARROWED_BLOCK = 1024
"""Elements that share one scale. The last block of an array may have fewer."""

_TINY = np.float32(2.0**-100)
"""If all numbers of a block are smaller than this, it has no scale of its own."""


def accumulate(out: Array, x: Array) -> None:
    """out += x"""
    out += x


def blend(out: Array, x: Array, a: float, b: float) -> None:
    """out = b * out + a * x"""
    real = out.dtype.type
    out[...] = real(b) * out + real(a) * x


def exchange(total: Array, own: Array, x: Array) -> None:
    """total += x - own; own = x: in the sum, ``x`` takes the place of the old ``own``."""
    total += x - own
    own[...] = x


def scaled_sum(
    out: Array, inputs: Sequence[Array], scales: Sequence[float], *, of: int = 0
) -> None:
    """out = scales[0] * inputs[0] + scales[1] * inputs[1] + ..., from left to right.

    One input or more; none may overlap ``out``. On CPUs the arrays may also be uint32. Then
    scales are whole numbers from 0 on, and sums are mod 2**32.
    ``of``: bytes of a larger array of which ``out`` is a part: all of it is made before any is
    read.
    """
    real = out.dtype.type
    out[...] = real(scales[0]) * inputs[0]
    for x, scale in zip(inputs[1:], scales[1:], strict=True):
        out += x if scale == 1.0 else real(scale) * x  # the same bits, and half of the time


def sgd(params: Array, grads: Array, rate: float, scale: float) -> None:
    """params -= rate * (scale * grads)"""
    real = params.dtype.type
    params -= real(rate) * (real(scale) * grads)


def momentum(
    params: Array, velocity: Array, grads: Array, rate: float, beta: float, scale: float
) -> None:
    """velocity = beta * velocity + scale * grads; params -= rate * velocity"""
    real = params.dtype.type
    velocity[...] = real(beta) * velocity + real(scale) * grads
    params -= real(rate) * velocity


def adam(
    params: Array,
    mean: Array,
    square: Array,
    grads: Array,
    rate: float,
    beta1: float,
    beta2: float,
    first: float,
    second: float,
    eps: float,
    decay: float,
    scale: float,
) -> None:
    """Move two moments of the gradient, and the parameters with them.

        g = scale * grads
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * (g * g)
        direction = (first * mean) / (second * sqrt(square) + eps) + decay * params
        params -= rate * direction

    ``first`` and ``second`` make up for moments that began with zero. 1 - beta1 and 1 - beta2 are
    rounded once, after the subtraction.
    """
    _move_moments(mean, square, grads, beta1, beta2, scale)
    lamb(params, mean, square, rate, first, second, eps, decay)


def lamb_norms(
    params: Array,
    mean: Array,
    square: Array,
    grads: Array,
    beta1: float,
    beta2: float,
    first: float,
    second: float,
    eps: float,
    decay: float,
    scale: float,
) -> tuple[float, float]:
    """Move ``mean`` and ``square`` as `adam` does, and no parameters. Returns the sums of squares
    of the parameters and of `adam`'s direction, as `sum_of_squares` defines them."""
    _move_moments(mean, square, grads, beta1, beta2, scale)
    direction = _direction(params, mean, square, first, second, eps, decay)
    return sum_of_squares(params), sum_of_squares(direction)


def lamb(
    params: Array,
    mean: Array,
    square: Array,
    rate: float,
    first: float,
    second: float,
    eps: float,
    decay: float,
) -> None:
    """params -= rate * direction, which is `adam`'s, from moments that were moved."""
    direction = _direction(params, mean, square, first, second, eps, decay)
    params -= params.dtype.type(rate) * direction


def sum_of_squares(x: Array) -> float:
    """x[0]**2 + x[1]**2 + ..., in float64 for any dtype, and in this order:

    Each stretch of `STRETCH` elements has `LANES` sums that begin with 0. The squares of its
    elements j, j + LANES, j + 2 * LANES, ... are added to sum number j. The sum of a stretch is the
    sum of these, from the first to the last. The result is the sum of the stretches, in order.
    """
    total = 0.0
    for start in range(0, x.size, STRETCH):
        stretch, lanes = x[start : start + STRETCH].astype(np.float64), np.zeros(LANES)
        for row in range(0, stretch.size, LANES):
            some = stretch[row : row + LANES]
            lanes[: some.size] += some * some
        total += float(np.add.accumulate(lanes)[-1])
    return total


def pack(out: Array, tensors: Sequence[Array], scale: float) -> None:
    """out = scale * (the elements of all tensors, one after another, rows first).

    Tensors have any shape and strides, and as many elements as ``out`` between them.
    """
    if tensors:
        out[...] = out.dtype.type(scale) * np.concatenate([t.ravel() for t in tensors])


def unpack(flat: Array, tensors: Sequence[Array]) -> None:
    """Copy ``flat`` into tensors of any shape and strides: the inverse of `pack`."""
    start = 0
    for tensor in tensors:
        tensor[...] = flat[start : start + tensor.size].reshape(tensor.shape)
        start += tensor.size


def digest(x: Array, offset: int = 0) -> int:
    """Return a 64-bit sum over the bits of ``x`` and where they stand, for comparing replicas.

    With w the 32-bit words of ``x`` and i their positions,

        u = w + i * POSITION            (mod 2**32)
        v = (u ^ u >> 16) * MIX         (mod 2**32)
        digest = sum (v ^ v >> 15)**2   (mod 2**64)

    One changed word always changes the sum: each step maps words one to one, and the squares of two
    different 32-bit numbers differ. Other differences (a swap, a shift, zeros at the end) go unseen
    by chance only, about once in 2**60, or in 2**32 where two changes mirror each other. The digest
    sees bits, not values: -0.0 and 0.0 differ. It is no defence against intent, and positions
    repeat after 2**32 words (16 GiB).

    The order of summation is free. ``offset`` is the position of ``x[0]``, in elements. So the
    digest of an array is the sum mod 2**64 of the digests of its pieces.
    """
    words = x.view(np.uint32)
    start = offset * (x.itemsize // 4) % 2**32
    u = words + (np.arange(words.size, dtype=np.uint32) + np.uint32(start)) * np.uint32(POSITION)
    v = (u ^ u >> np.uint32(16)) * np.uint32(MIX)
    mixed = (v ^ v >> np.uint32(15)).astype(np.uint64)
    return int(np.sum(mixed * mixed, dtype=np.uint64))


def finite(x: Array) -> bool:
    """Return True if no element is NaN or infinite."""
    return bool(np.isfinite(x).all())


def narrowed_bytes(size: int, form: str) -> int:
    """Return the bytes that ``size`` narrowed elements of float32 take."""
    return _marks(size, form) + size * (1 if form == "int8" else 2)


def narrow_sum(
    wire: Array,
    total: Array,
    following: Array,
    rest: Array,
    came: Array | None,
    inputs: Sequence[Array],
    scales: Sequence[float],
    form: str,
) -> None:
    """Add up float32, narrow the sum, and keep what that takes away.

        total = (what ``came`` says +) rest + scales[0] * inputs[0] + ...    from left to right
        wire = total, narrowed
        following = total - what ``wire`` says, or 0 where that is not finite
        total = what ``wire`` says

    ``wire`` and ``came`` (None: nothing came) are arrays of `narrowed_bytes` bytes. The other
    arrays are of one length. No array that is written overlaps another one.

    - bf16: it is rounded to nearest, half to even. What would round to infinity becomes the largest
      number there is.
    - fp16: each block is divided by a power of two, so that its largest finite number lies in
      [2**14, 2**15), and rounded to nearest, half to even. So nothing overflows: what would stand
      for more than float32 has becomes the largest number below. (If all numbers of a block are
      below 2**-100, it is not divided.)
    - int8: each block is divided by 1/127 of its largest magnitude, and rounded to nearest, half to
      even. A block of numbers below 2**-100 becomes zeros, one that holds NaN or infinity NaNs.

    In bf16 and fp16, infinities stay what they are, and all NaNs become one.
    """
    total[...] = rest
    if came is not None:
        widen(total, came, form)
        total += rest
    for x, scale in zip(inputs, scales, strict=True):
        total += np.float32(scale) * x
    following[...] = total
    body = wire[_marks(total.size, form) :]
    marks = wire[: _marks(total.size, form)].view(np.float32)
    for block, start in enumerate(range(0, total.size, NARROWED_BLOCK)):
        part = slice(start, start + NARROWED_BLOCK)
        x = total[part]
        if form == "bf16":
            body.view(np.uint16)[part] = _bf16(x)
            continue
        finite = np.where(np.isfinite(x), np.abs(x), np.float32(0))
        largest = finite.max()
        if form == "fp16":
            power = np.frexp(largest)[1] - 15 if largest >= _TINY else 0
            marks[block] = np.ldexp(np.float32(1), power)
            halves = (x * np.ldexp(np.float32(1), -power)).astype(np.float16)
            halves[np.isnan(halves)] = np.float16("nan")
            if power == 127 + 1 - 15:  # then 2**15 would stand for no finite float32
                most = np.array(0x77FF, np.uint16).view(np.float16)
                np.clip(halves, -most, most, out=halves, where=np.isfinite(x))
            body.view(np.uint16)[part] = halves.view(np.uint16)
        elif not np.isfinite(x).all():
            marks[block], body.view(np.int8)[part] = np.nan, 0
        elif largest < _TINY:
            marks[block] = body.view(np.int8)[part] = 0
        else:
            scale = largest / np.float32(127)
            if np.float32(127) * scale > largest:
                scale = np.nextafter(scale, np.float32(0))
            marks[block] = scale
            body.view(np.int8)[part] = np.rint(x * (np.float32(127) / largest))
    widen(total, wire, form)
    following -= total
    following[~np.isfinite(following)] = 0


def widen(out: Array, wire: Array, form: str) -> None:
    """out = what ``wire`` says, made by `narrow_sum`; float32."""
    marks, body = _marks(out.size, form), wire[_marks(out.size, form) :]
    if form == "bf16":
        out.view(np.uint32)[...] = body.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return
    scales = np.repeat(wire[:marks].view(np.float32), NARROWED_BLOCK)[: out.size]
    out[...] = body.view(np.float16 if form == "fp16" else np.int8).astype(np.float32) * scales


def _move_moments(
    mean: Array, square: Array, grads: Array, beta1: float, beta2: float, scale: float
) -> None:
    real = mean.dtype.type
    g = real(scale) * grads
    mean[...] = real(beta1) * mean + real(1 - beta1) * g
    square[...] = real(beta2) * square + real(1 - beta2) * (g * g)


def _direction(
    params: Array,
    mean: Array,
    square: Array,
    first: float,
    second: float,
    eps: float,
    decay: float,
) -> Array:
    real = params.dtype.type
    direction: Array = (real(first) * mean) / (real(second) * np.sqrt(square) + real(eps))
    direction += real(decay) * params
    return direction


def _marks(size: int, form: str) -> int:
    """Return the bytes of the scales, which come first."""
    return 0 if form == "bf16" else 4 * -(-size // NARROWED_BLOCK)


def _bf16(x: Array) -> Array:
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
    rounded[np.isfinite(x) & (rounded & np.uint32(0x7FFF) == 0x7F80)] -= np.uint32(1)
    rounded[np.isinf(x)] = bits[np.isinf(x)] >> np.uint32(16)
    rounded[np.isnan(x)] = 0x7FC0
    return rounded.astype(np.uint16)
