"""What every kernel computes, in plain NumPy: the definition that every backend must match.

Arrays are one-dimensional, contiguous, of one length and one dtype, float32 or float64, unless a
function says otherwise. Scalars are rounded to that dtype first; then every operation rounds to
it, in the order that is written here, and none is fused with the next. A backend that keeps to
this is equal to the bit, save for the payload of NaNs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "accumulate",
    "digest",
    "finite",
    "momentum",
    "pack",
    "scaled_sum",
    "sgd",
    "unpack",
]

Array: TypeAlias = npt.NDArray[Any]

# Each is odd, so that multiplying by it loses nothing: Weyl's for positions, murmur3's to mix.
POSITION = 0x9E3779B1
MIX = 0x85EBCA6B


def accumulate(out: Array, x: Array) -> None:
    """out += x"""
    out += x


def scaled_sum(out: Array, inputs: Sequence[Array], scales: Sequence[float]) -> None:
    """out = scales[0] * inputs[0] + scales[1] * inputs[1] + ..., from left to right.

    One input or more; none may overlap ``out``.
    """
    real = out.dtype.type
    out[...] = real(scales[0]) * inputs[0]
    for x, scale in zip(inputs[1:], scales[1:], strict=True):
        out += real(scale) * x


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
    """A 64-bit sum over the bits of ``x`` and where they stand, for comparing replicas.

    With w the 32-bit words of ``x`` and i their positions,

        u = w + i * POSITION            (mod 2**32)
        v = (u ^ u >> 16) * MIX         (mod 2**32)
        digest = sum (v ^ v >> 15)**2   (mod 2**64)

    One changed word always changes the sum: each step maps words one to one, and the squares of
    two different 32-bit numbers differ. Other differences (a swap, a shift, zeros at the end) go
    unseen by chance only, about once in 2**60, or in 2**32 where two changes mirror each other.
    It sees bits, not values: -0.0 and 0.0 differ. It is no defence against intent, and positions
    repeat after 2**32 words (16 GiB).

    The order of summation is free. ``offset`` is the position of ``x[0]``, in elements, so the
    digest of an array is the sum mod 2**64 of those of its pieces.
    """
    words = x.view(np.uint32)
    start = offset * (x.itemsize // 4) % 2**32
    u = words + (np.arange(words.size, dtype=np.uint32) + np.uint32(start)) * np.uint32(POSITION)
    v = (u ^ u >> np.uint32(16)) * np.uint32(MIX)
    mixed = (v ^ v >> np.uint32(15)).astype(np.uint64)
    return int(np.sum(mixed * mixed, dtype=np.uint64))


def finite(x: Array) -> bool:
    """Whether no element is NaN or infinite."""
    return bool(np.isfinite(x).all())
