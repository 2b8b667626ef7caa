"""The kernels at the speed of memory: one pass, on one core, without the GIL, by Numba (`loops`).

`reference` says what each computes. The results are equal to its, to the bit save for the payload
of NaNs, because the order of operations is the same and nothing is contracted or reassociated. All
functions are local. They refuse arrays that compiled code would not survive: TypeError for a wrong
type, ValueError for a wrong length or layout. The first call with `FEW` elements or more of a dtype
loads or compiles all kernels for it; `warm` does so ahead of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from spotmpi.kernels import reference
from spotmpi.kernels.checks import check_pieces, refuse
from spotmpi.kernels.reference import FORMATS, MIX, POSITION, Array, narrowed_bytes

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
    "warm",
    "widen",
]

DTYPES = (np.dtype(np.float32), np.dtype(np.float64))

_SUMMED = (*DTYPES, np.dtype(np.uint32))
"""The dtypes of `scaled_sum`."""

_OWN = "kernels take NumPy arrays"

FEW = 1024
"""With fewer elements `reference` does the work. That takes microseconds more, but Numba costs
every process 0.4 s, to be imported and to load its code."""

PAST_CACHE = 12_000_000
"""Bytes from which on a sum, or what is packed, is written past the cache: nothing of it would
remain there until it is read (`bench kernels`)."""


def warm(*dtypes: str) -> None:
    """Load or compile the kernels for these dtypes (for all, if none is given), except those that
    narrow. It blocks for seconds the first time on a machine, and for milliseconds later.

    A process that must not wait in the middle of something calls it before.
    """
    for dtype in dtypes or _SUMMED:
        _KERNELS[np.dtype(dtype)]


def accumulate(out: Array, x: Array) -> None:
    """out += x"""
    _checked(out, x).accumulate(out, x)


def blend(out: Array, x: Array, a: float, b: float) -> None:
    """out = b * out + a * x"""
    _checked(out, x).blend(out, x, a, b)


def exchange(total: Array, own: Array, x: Array) -> None:
    """total += x - own; own = x: in the sum, ``x`` takes the place of the old ``own``."""
    _checked(total, own, x, written=2).exchange(total, own, x)


def scaled_sum(
    out: Array, inputs: Sequence[Array], scales: Sequence[float], *, of: int = 0
) -> None:
    """out = scales[0] * inputs[0] + scales[1] * inputs[1] + ..., from left to right.

    One input or more; none may overlap ``out``. The arrays may also be uint32. Then scales are
    whole numbers from 0 on, and sums are mod 2**32.
    ``of``: bytes of a larger array of which ``out`` is a part: all of it is made before any is
    read.
    """
    kernels = _checked(out, *inputs, dtypes=_SUMMED)
    if not inputs or len(inputs) != len(scales):
        raise ValueError(f"got {len(inputs)} inputs and {len(scales)} scales; each input needs one")
    for x in inputs:
        if np.may_share_memory(out, x):
            raise ValueError("an input of the sum overlaps its output: give it an array of its own")
    if kernels is _FEW:
        _FEW.scaled_sum(out, inputs, scales)
    else:
        large = max(of, out.nbytes) >= PAST_CACHE
        loop = kernels.scaled_sum_past_cache if large else kernels.scaled_sum
        addresses = [kernels.address(x) for x in inputs]
        loop(out, np.array(addresses, np.uintp), np.array(scales, np.float64))


def sgd(params: Array, grads: Array, rate: float, scale: float) -> None:
    """params -= rate * (scale * grads)"""
    _checked(params, grads).sgd(params, grads, rate, scale)


def momentum(
    params: Array, velocity: Array, grads: Array, rate: float, beta: float, scale: float
) -> None:
    """velocity = beta * velocity + scale * grads; params -= rate * velocity"""
    kernels = _checked(params, velocity, grads, written=2)
    kernels.momentum(params, velocity, grads, rate, beta, scale)


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
    """Move two moments of the gradient, and the parameters with them: see `reference.adam`."""
    kernels = _checked(params, mean, square, grads, written=3)
    scalars = rate, beta1, beta2, first, second, eps, decay, scale
    kernels.adam(params, mean, square, grads, *scalars)


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
    kernels = _checked(mean, square, params, grads, written=2)
    scalars = beta1, beta2, first, second, eps, decay, scale
    weights, directions = kernels.lamb_norms(params, mean, square, grads, *scalars)
    return weights, directions


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
    kernels = _checked(params, mean, square)
    kernels.lamb(params, mean, square, rate, first, second, eps, decay)


def sum_of_squares(x: Array) -> float:
    """x[0]**2 + x[1]**2 + ..., in float64, in the order of `reference.sum_of_squares`."""
    return float(_checked(x, written=0).sum_of_squares(x))


def pack(out: Array, tensors: Sequence[Array], scale: float) -> None:
    """out = scale * (the elements of all tensors, one after another, rows first).

    Tensors have any shape. Those that are not contiguous are copied once more.
    """
    kernels = _checked(out)
    check_pieces(out, tensors, (np.ndarray, np.generic), _OWN)
    if kernels is _FEW:
        _FEW.pack(out, tensors, scale)
        return
    start = 0
    for tensor in tensors:  # also for a scale of 1.0: this loop beats NumPy's copy
        piece, flat = out[start : start + tensor.size], tensor.ravel()
        if piece.nbytes >= PAST_CACHE:
            addresses = np.array([kernels.address(flat)], np.uintp)
            kernels.scaled_sum_past_cache(piece, addresses, np.array([scale], np.float64))
        else:
            kernels.scale(piece, flat, scale)
        start += tensor.size


def unpack(flat: Array, tensors: Sequence[Array]) -> None:
    """Copy ``flat`` into tensors of any shape and strides: the inverse of `pack`."""
    _checked(flat, written=0)
    check_pieces(flat, tensors, (np.ndarray, np.generic), _OWN)
    reference.unpack(flat, tensors)


def digest(x: Array, offset: int = 0) -> int:
    """Return a 64-bit sum over the bits of ``x`` and where they stand, for comparing replicas.

    ``offset`` is the position of ``x[0]``, in elements. So the digest of an array is the sum mod
    2**64 of the digests of its pieces. `reference.digest` has the formula.
    """
    kernels = _checked(x, written=0)
    if kernels is _FEW:
        return reference.digest(x, offset)
    start = offset * (x.itemsize // 4) % 2**32
    return int(kernels.digest(x.view(np.uint32), start, POSITION, MIX))


def finite(x: Array) -> bool:
    """Return True if no element is NaN or infinite."""
    return bool(_checked(x, written=0).finite(x))


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
    """Add up float32, narrow the sum, and keep what that takes away: see `reference.narrow_sum`."""
    kernels = _checked(total, following, rest, *inputs, written=2)
    if len(inputs) != len(scales):
        raise ValueError(f"got {len(inputs)} inputs and {len(scales)} scales; each input needs one")
    _check_wire(total, wire, form, written=True)
    if came is not None:
        _check_wire(total, came, form)
    if kernels is _FEW:
        _FEW.narrow_sum(wire, total, following, rest, came, inputs, scales, form)
        return
    addresses = np.array([kernels.address(x) for x in inputs], np.uintp)
    brought = _seen(wire if came is None else came, total.size, form)
    seen, weights = _seen(wire, total.size, form), np.array(scales, np.float64)
    number, comes = FORMATS.index(form), int(came is not None)
    _NARROW.loops.narrow_sum(
        number, *seen, comes, *brought, total, following, rest, addresses, weights
    )


def widen(out: Array, wire: Array, form: str) -> None:
    """out = what ``wire`` says, made by `narrow_sum`; float32."""
    kernels = _checked(out)
    _check_wire(out, wire, form)
    if kernels is _FEW:
        _FEW.widen(out, wire, form)
    else:
        _NARROW.loops.widen(FORMATS.index(form), *_seen(wire, out.size, form), out)


def addresses(*arrays: Array, written: int = 1) -> list[int]:
    """Return where each array begins. Raises TypeError or ValueError for arrays that compiled code
    would not survive. The first ``written`` are written to."""
    return list(map(_checked(*arrays, written=written).address, arrays))


def _check_wire(flat: Array, wire: Array, form: str, written: bool = False) -> None:
    if flat.dtype != np.float32:
        raise TypeError(f"only float32 can be narrowed; got {flat.dtype}")
    if form not in FORMATS:
        raise ValueError(f"{form!r} is no narrow format; there are {', '.join(FORMATS)}")
    needed = narrowed_bytes(flat.size, form)
    if not (
        isinstance(wire, np.ndarray)
        and wire.dtype == np.uint8
        and wire.shape == (needed,)
        and wire.flags.c_contiguous
        and wire.flags.aligned
        and int(wire.ctypes.data) % 4 == 0
    ):
        what = f"{flat.size} elements take {needed} bytes in {form}"
        raise ValueError(f"{what}, in an array of bytes from a whole word on")
    if written and not wire.flags.writeable:
        raise ValueError("a kernel's output is a read-only array: give it a copy")


def _seen(wire: Array, size: int, form: str) -> tuple[Array, Array, Array]:
    """Return the int8 or the 16-bit elements of ``wire`` (the other is empty), and its scales."""
    words = size * (1 if form == "int8" else 2)
    marks, body = wire[: wire.size - words], wire[wire.size - words :]
    if form == "int8":
        return body.view(np.int8), np.empty(0, np.uint16), marks.view(np.float32)
    return np.empty(0, np.int8), body.view(np.uint16), marks.view(np.float32)


def _checked(
    *arrays: Array, written: int = 1, dtypes: Sequence[np.dtype[Any]] = DTYPES
) -> SimpleNamespace:
    """Return the kernels for these arrays, of which the first ``written`` are written to."""
    first = arrays[0]
    for x in arrays:
        if not isinstance(x, np.ndarray) or x.ndim != 1 or not x.flags.c_contiguous:
            refuse(arrays, np.ndarray, _OWN)
        if x is not first and (x.size != first.size or x.dtype != first.dtype):
            refuse(arrays, np.ndarray, _OWN)
    for x in arrays[:written]:
        if not x.flags.writeable:
            raise ValueError("a kernel's output is a read-only array: give it a copy")
    if first.dtype not in dtypes:
        names = " and ".join(map(str, dtypes))
        raise TypeError(f"this kernel takes {names}; got {first.dtype}")
    return _FEW if first.size < FEW else _KERNELS[first.dtype]


class _Kernels(dict[np.dtype[Any], SimpleNamespace]):
    """The compiled loops of each dtype, from the first use of that dtype on."""

    def __missing__(self, dtype: np.dtype[Any]) -> SimpleNamespace:
        from spotmpi.kernels import loops

        self[dtype] = loops.compiled(dtype)
        return self[dtype]


_KERNELS = _Kernels()


class _Narrow:
    """The compiled loops that narrow, from their first use on."""

    @cached_property
    def loops(self) -> SimpleNamespace:
        from spotmpi.kernels import narrow_loops

        return narrow_loops.compiled()


_NARROW = _Narrow()


def _address(x: Array) -> int:
    return int(x.ctypes.data)


_quietly = np.errstate(all="ignore")  # compiled code does not warn

_FEW = SimpleNamespace(
    accumulate=_quietly(reference.accumulate),
    blend=_quietly(reference.blend),
    exchange=_quietly(reference.exchange),
    scaled_sum=_quietly(reference.scaled_sum),
    sgd=_quietly(reference.sgd),
    momentum=_quietly(reference.momentum),
    adam=_quietly(reference.adam),
    lamb_norms=_quietly(reference.lamb_norms),
    lamb=_quietly(reference.lamb),
    sum_of_squares=_quietly(reference.sum_of_squares),
    pack=_quietly(reference.pack),
    finite=reference.finite,
    narrow_sum=_quietly(reference.narrow_sum),
    widen=_quietly(reference.widen),
    address=_address,
)
"""The kernels for fewer than `FEW` elements; pack and scaled_sum take what `reference` does."""
