"""The kernels in Numba: one pass over memory, on one core, without the GIL.

`reference` says what each computes; the results are equal to its, to the bit save for the payload
of NaNs, because the order of operations is the same and nothing is contracted or reassociated.
All functions are local. They refuse arrays that compiled code would not survive: TypeError for a
wrong type, ValueError for a wrong length or layout. The first call with a dtype loads or compiles
all kernels for it; `warm` does so ahead of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
from numba import float64, int64, types, uint32, uintp
from numba.extending import intrinsic, register_jitable
from numba.np.numpy_support import carray, from_dtype

from spotmpi.kernels import cache, reference
from spotmpi.kernels.reference import MIX, POSITION, Array

__all__ = [
    "accumulate",
    "digest",
    "finite",
    "momentum",
    "pack",
    "scaled_sum",
    "sgd",
    "unpack",
    "warm",
]

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))

BLOCK = 8192
"""Elements of a sum that stay in a core's cache while the inputs pass by."""


def warm() -> None:
    """Load or compile every kernel for both dtypes. Blocks for seconds on the very first start.

    For whoever starts many workers: called once before, it spares them the wait for each other.
    """
    for dtype in DTYPES:
        _KERNELS[dtype]


def accumulate(out: Array, x: Array) -> None:
    """out += x"""
    _checked(out, x).accumulate(out, x)


def scaled_sum(out: Array, inputs: Sequence[Array], scales: Sequence[float]) -> None:
    """out = scales[0] * inputs[0] + scales[1] * inputs[1] + ..., from left to right.

    One input or more; none may overlap ``out``.
    """
    kernels = _checked(out, *inputs)
    if not inputs or len(inputs) != len(scales):
        raise ValueError(f"got {len(inputs)} inputs and {len(scales)} scales; each input needs one")
    here = kernels.address(out)
    addresses = [kernels.address(x) for x in inputs]
    if out.nbytes and min(abs(address - here) for address in addresses) < out.nbytes:
        raise ValueError("an input of the sum overlaps its output: give it an array of its own")
    kernels.scaled_sum(out, np.array(addresses, np.uintp), np.array(scales, np.float64))


def sgd(params: Array, grads: Array, rate: float, scale: float) -> None:
    """params -= rate * (scale * grads)"""
    _checked(params, grads).sgd(params, grads, rate, scale)


def momentum(
    params: Array, velocity: Array, grads: Array, rate: float, beta: float, scale: float
) -> None:
    """velocity = beta * velocity + scale * grads; params -= rate * velocity"""
    kernels = _checked(params, velocity, grads, written=2)
    kernels.momentum(params, velocity, grads, rate, beta, scale)


def pack(out: Array, tensors: Sequence[Array], scale: float) -> None:
    """out = scale * (the elements of all tensors, one after another, rows first).

    Tensors have any shape; those that are not contiguous are copied once more.
    """
    kernels = _checked(out)
    _check_pieces(out, tensors)
    start = 0
    for tensor in tensors:  # also for a scale of 1.0: this loop beats NumPy's copy
        kernels.scale(out, start, tensor.ravel(), scale)
        start += tensor.size


def unpack(flat: Array, tensors: Sequence[Array]) -> None:
    """Copy ``flat`` into tensors of any shape and strides: the inverse of `pack`."""
    _checked(flat, written=0)
    _check_pieces(flat, tensors)
    reference.unpack(flat, tensors)


def digest(x: Array, offset: int = 0) -> int:
    """A 64-bit sum over the bits of ``x`` and where they stand, for comparing replicas.

    ``offset`` is the position of ``x[0]``, in elements, so that the digest of an array is the sum
    mod 2**64 of those of its pieces. `reference.digest` has the formula.
    """
    kernels = _checked(x, written=0)
    start = offset * (x.itemsize // 4) % 2**32
    return int(kernels.digest(x.view(np.uint32), start, POSITION, MIX))


def finite(x: Array) -> bool:
    """Whether no element is NaN or infinite."""
    return bool(_checked(x, written=0).finite(x))


def _checked(*arrays: Array, written: int = 1) -> SimpleNamespace:
    """The kernels for these arrays, of which the first ``written`` are written to."""
    first = arrays[0]
    for x in arrays:
        if not (
            isinstance(x, np.ndarray)
            and x.dtype == first.dtype
            and x.shape == first.shape
            and x.ndim == 1
            and x.flags.c_contiguous
        ):
            _refuse(arrays)
    for x in arrays[:written]:
        if not x.flags.writeable:
            raise ValueError("a kernel's output is a read-only array: give it a copy")
    return _KERNELS[first.dtype]


def _refuse(arrays: Sequence[Array]) -> NoReturn:
    got = []
    for x in arrays:
        if not isinstance(x, np.ndarray):
            raise TypeError(f"kernels take NumPy arrays; got {type(x).__name__}")
        got.append(f"{x.dtype}{list(x.shape)}{'' if x.flags.c_contiguous else ' not contiguous'}")
    kind = TypeError if len({x.dtype for x in arrays}) > 1 else ValueError
    raise kind(
        "kernels take one-dimensional contiguous arrays of one length and one dtype; got "
        + ", ".join(got)
    )


def _check_pieces(flat: Array, tensors: Sequence[Array]) -> None:
    size = 0
    for tensor in tensors:
        if not isinstance(tensor, (np.ndarray, np.generic)):
            raise TypeError(f"kernels take NumPy arrays; got {type(tensor).__name__}")
        if tensor.dtype != flat.dtype:
            raise TypeError(f"a tensor is {tensor.dtype}, the flat array {flat.dtype}")
        size += tensor.size
    if size != flat.size:
        raise ValueError(f"the tensors have {size} elements, the flat array {flat.size}")


class _Kernels(dict[np.dtype[Any], SimpleNamespace]):
    """The compiled loops of each dtype, from the first use of that dtype on."""

    def __missing__(self, dtype: np.dtype[Any]) -> SimpleNamespace:
        if dtype not in DTYPES:
            raise TypeError(f"kernels take float32 and float64; got {dtype}")
        real = from_dtype(dtype)
        flat, words = real[::1], uint32[::1]
        self[dtype] = cache.compiled(
            {
                _accumulate: (flat, flat),
                _scaled_sum: (flat, uintp[::1], float64[::1]),
                _sgd: (flat, flat, float64, float64),
                _momentum: (flat, flat, flat, float64, float64, float64),
                _scale: (flat, int64, flat, float64),
                _digest: (words, uint32, uint32, uint32),
                _finite: (flat,),
                _address: (flat,),
            }
        )
        return self[dtype]


_KERNELS = _Kernels()

# The loops. In each, scalars are rounded to the arrays' dtype first: one float64 among float32
# would turn the whole loop into one over float64, which is slower and rounds differently.


def _accumulate(out: Any, x: Any) -> None:
    for i in range(out.size):
        out[i] += x[i]


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


def _scale(out: Any, start: Any, x: Any, scale: Any) -> None:
    piece = out[start : start + x.size]
    s = out.dtype.type(scale)
    for i in range(x.size):
        piece[i] = s * x[i]


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
    # Inputs come as addresses, because Numba would compile a tuple anew for each length. Four are
    # added at a time: enough to keep memory busy, few enough to be written out. What is missing
    # to four is read from zeros with a weight of -0.0, which leaves every sum as it is, to the bit.
    n, count = out.size, addresses.size
    zeros = np.zeros(min(n, BLOCK), out.dtype)
    weights = np.full(count + 3, -0.0, out.dtype)
    for i in range(count):
        weights[i] = scales[i]
    for start in range(0, n, BLOCK):
        block = out[start : start + BLOCK]
        for i in range(0, count, 4):
            p, a = weights[i], _input(addresses, i, out, start, zeros)
            q, b = weights[i + 1], _input(addresses, i + 1, out, start, zeros)
            r, c = weights[i + 2], _input(addresses, i + 2, out, start, zeros)
            s, d = weights[i + 3], _input(addresses, i + 3, out, start, zeros)
            if i == 0:
                for j in range(block.size):
                    block[j] = p * a[j] + q * b[j] + r * c[j] + s * d[j]
            else:
                for j in range(block.size):
                    block[j] = block[j] + p * a[j] + q * b[j] + r * c[j] + s * d[j]


@register_jitable
def _input(addresses: Any, i: Any, out: Any, start: Any, zeros: Any) -> Any:
    """The part of input ``i`` that belongs to the block of ``out`` at ``start``."""
    if i >= addresses.size:
        return zeros
    return carray(_as_pointer(addresses[i]), out.size, out.dtype)[start : start + BLOCK]


def _address(x: Any) -> Any:
    """Where ``x`` lies in memory: five times faster from compiled code than from NumPy."""
    return x.ctypes.data


def _pointer(typing_context: Any, address: Any) -> Any:
    """Numba's recipe for `_as_pointer`: the types of the call, and what generates its code."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(uintp), generate


_as_pointer: Any = intrinsic(_pointer)
"""_as_pointer(address): a number as a pointer, in compiled code."""
