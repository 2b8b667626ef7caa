"""The kernels on a GPU, for CuPy's arrays.

They are CUDA source (`arithmetic.cu`, `narrow.cu`), which each process compiles at the first use.
`reference` says what each computes. The results are equal to its, to the bit save for the payload
of NaNs. All functions refuse what `cpu` refuses. They put their work into the current stream of the
calling thread and return. Only functions that tell a number (`digest`, `finite`, sums of squares)
wait for it. The first call imports CuPy, unless the script has imported it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from spotmpi.kernels.checks import check_pieces, refuse
from spotmpi.kernels.reference import (
    FORMATS,
    LANES,
    MIX,
    NARROWED_BLOCK,
    POSITION,
    STRETCH,
    narrowed_bytes,
)

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

Array = Any
"""An array of CuPy's."""

OPTIONS = ("--std=c++17", "--fmad=false")
"""Options of the compiler. By default it makes one operation of a product and a sum, which rounds
once where the definition rounds twice. Bits would differ from the CPU's, and between GPUs."""

SOURCES = ("arithmetic.cu", "narrow.cu")
"""Files of source beside this one."""

REALS = {"float32": "float", "float64": "double"}
"""The dtypes that have kernels, and CUDA's name for each."""

AT_A_TIME = 8
"""Inputs that one kernel adds up."""

_OWN = "kernels of the GPU take CuPy arrays"

_THREADS = 256
"""Threads of a block, and slots that `digest` sums in."""

_BLOCKS = 4096
"""Most blocks. For more elements, each thread has several."""


def source(name: str) -> str:
    """Return the text of one of `SOURCES`. It needs no CuPy."""
    from importlib import resources  # it takes each worker 0.01 s, and few have a GPU

    return resources.files("spotmpi.kernels").joinpath(name).read_text(encoding="ascii")


def accumulate(out: Array, x: Array) -> None:
    """out += x"""
    real = _checked(out, x)
    _launch(f"accumulate_{real}", out, out, x)


def blend(out: Array, x: Array, a: float, b: float) -> None:
    """out = b * out + a * x"""
    real = _checked(out, x)
    _launch(f"blend_{real}", out, out, x, *_rounded(out, a, b))


def exchange(total: Array, own: Array, x: Array) -> None:
    """total += x - own; own = x: in the sum, ``x`` takes the place of the old ``own``."""
    real = _checked(total, own, x)
    _launch(f"exchange_{real}", total, total, own, x)


def scaled_sum(
    out: Array, inputs: Sequence[Array], scales: Sequence[float], *, of: int = 0
) -> None:
    """out = scales[0] * inputs[0] + scales[1] * inputs[1] + ..., from left to right.

    One input or more; none may overlap ``out``.
    ``of``: bytes of a larger array of which ``out`` is a part: all of it is made before any is
    read.
    """
    real = _checked(out, *inputs)
    if not inputs or len(inputs) != len(scales):
        raise ValueError(f"got {len(inputs)} inputs and {len(scales)} scales; each input needs one")
    here = out.data.ptr
    if out.nbytes and min(abs(x.data.ptr - here) for x in inputs) < out.nbytes:
        raise ValueError("an input of the sum overlaps its output: give it an array of its own")
    _add_up(out, inputs, scales, real, goes_on=False)


def sgd(params: Array, grads: Array, rate: float, scale: float) -> None:
    """params -= rate * (scale * grads)"""
    real = _checked(params, grads)
    _launch(f"sgd_{real}", params, params, grads, *_rounded(params, rate, scale))


def momentum(
    params: Array, velocity: Array, grads: Array, rate: float, beta: float, scale: float
) -> None:
    """velocity = beta * velocity + scale * grads; params -= rate * velocity"""
    real = _checked(params, velocity, grads)
    scalars = _rounded(params, rate, beta, scale)
    _launch(f"momentum_{real}", params, params, velocity, grads, *scalars)


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
    real = _checked(params, mean, square, grads)
    scalars = rate, beta1, 1 - beta1, beta2, 1 - beta2, first, second, eps, decay, scale
    moved = params, mean, square
    _launch(f"adam_{real}", params, *moved, grads, *_rounded(params, *scalars))


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
    real = _checked(params, mean, square, grads)
    ours, theirs = _lanes(params), _lanes(params)
    scalars = beta1, 1 - beta1, beta2, 1 - beta2, first, second, eps, decay, scale
    given = params, mean, square, grads, *_rounded(params, *scalars), np.uint64(params.size)
    _launch(f"lamb_norms_{real}", ours, ours, theirs, *given)
    return _added(ours), _added(theirs)


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
    real = _checked(params, mean, square)
    scalars = _rounded(params, rate, first, second, eps, decay)
    _launch(f"lamb_{real}", params, params, mean, square, *scalars)


def sum_of_squares(x: Array) -> float:
    """x[0]**2 + x[1]**2 + ..., in float64, in the order of `reference.sum_of_squares`."""
    real, lanes = _checked(x), _lanes(x)
    _launch(f"sum_of_squares_{real}", lanes, lanes, x, np.uint64(x.size))
    return _added(lanes)


def pack(out: Array, tensors: Sequence[Array], scale: float) -> None:
    """out = scale * (the elements of all tensors, one after another, rows first).

    Tensors have any shape. Those that are not contiguous are copied once more.
    """
    real = _checked(out)
    check_pieces(out, tensors, _cupy().ndarray, _OWN)
    pieces = [_cupy().ascontiguousarray(tensor) for tensor in tensors if tensor.size]
    if pieces:
        table = _table(out, pieces)
        _launch(f"pack_{real}", out, out, table, np.uint64(len(pieces)), *_rounded(out, scale))


def unpack(flat: Array, tensors: Sequence[Array]) -> None:
    """Copy ``flat`` into tensors of any shape and strides: the inverse of `pack`."""
    real = _checked(flat)
    check_pieces(flat, tensors, _cupy().ndarray, _OWN)
    wanted = [tensor for tensor in tensors if tensor.size]
    pieces = [_cupy().ascontiguousarray(tensor) for tensor in wanted]
    if pieces:
        table = _table(flat, pieces)
        _launch(f"unpack_{real}", flat, flat, table, np.uint64(len(pieces)))
    for tensor, piece in zip(wanted, pieces, strict=True):
        if piece.data.ptr != tensor.data.ptr:
            tensor[...] = piece


def digest(x: Array, offset: int = 0) -> int:
    """Return a 64-bit sum over the bits of ``x`` and where they stand, for comparing replicas.

    ``offset`` is the position of ``x[0]``, in elements. So the digest of an array is the sum mod
    2**64 of the digests of its pieces. `reference.digest` has the formula.
    """
    _checked(x)
    if not x.size:
        return 0
    words = x.view("uint32")
    start = np.uint32(offset * (x.itemsize // 4) % 2**32)
    with x.device:
        slots = _cupy().zeros(_THREADS, "uint64")
    _launch("digest", words, slots, words, start, np.uint32(POSITION), np.uint32(MIX))
    return int(slots.get().sum(dtype=np.uint64))


def finite(x: Array) -> bool:
    """Return True if no element is NaN or infinite."""
    real = _checked(x)
    if not x.size:
        return True
    with x.device:
        broken = _cupy().zeros(1, "int32")
    _launch(f"finite_{real}", x, broken, x)
    return not broken.get()[0]


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
    real = _checked(total, following, rest, *inputs)
    if len(inputs) != len(scales):
        raise ValueError(f"got {len(inputs)} inputs and {len(scales)} scales; each input needs one")
    _check_wire(total, wire, form)
    if came is not None:
        _check_wire(total, came, form)
    if not total.size:
        return
    number = np.uint32(FORMATS.index(form))
    brought = (np.uint64(0), np.uint64(0)) if came is None else _seen(came, total.size, form)
    _launch("begin", total, total, rest, *brought, number)
    if inputs:
        _add_up(total, inputs, scales, real, goes_on=True)
    with total.device:
        found = _cupy().zeros(-(-total.size // NARROWED_BLOCK), "uint32")
    _launch("most", total, found, following, total, number)
    _launch("end", total, *_seen(wire, total.size, form), total, following, found, number)


def widen(out: Array, wire: Array, form: str) -> None:
    """out = what ``wire`` says, made by `narrow_sum`; float32."""
    _checked(out)
    _check_wire(out, wire, form)
    if out.size:
        number = np.uint32(FORMATS.index(form))
        _launch("widen", out, out, *_seen(wire, out.size, form), number)


def _cupy() -> Any:
    import cupy

    return cupy


@cache
def _kernel(name: str, device: int) -> Any:
    """Return this kernel, in the memory of ``device``, which is the current one."""
    narrow = name in ("begin", "most", "end", "widen")
    return _module(SOURCES[narrow], device).get_function(name)


@cache
def _module(name: str, device: int) -> Any:
    """Return the code of one of `SOURCES` for ``device``, which is the current one.

    It does not use `cupy.RawModule`: that always compiles with ``-ftz=true``, which makes zeros of
    the smallest numbers.
    """
    cuda = _cupy().cuda
    code, _ = cuda.compiler.compile_using_nvrtc(source(name), OPTIONS)
    module = cuda.function.Module()
    module.load(code)
    return module


def _launch(name: str, along: Array, *arguments: Any) -> None:
    """Launch this kernel for each element of ``along``; their number is its last argument."""
    if not along.size:
        return
    blocks = min(-(-along.size // _THREADS), _BLOCKS)
    device = along.device
    with device:
        kernel = _kernel(name, device.id)
        kernel((blocks,), (_THREADS,), (*arguments, np.uint64(along.size)))


def _add_up(
    out: Array, inputs: Sequence[Array], scales: Sequence[float], real: str, goes_on: bool
) -> None:
    for first in range(0, len(inputs), AT_A_TIME):
        some = list(inputs[first : first + AT_A_TIME])
        weights = _rounded(out, *scales[first : first + AT_A_TIME])
        missing = AT_A_TIME - len(some)
        nothing = [np.uint64(0)] * missing, [out.dtype.type(0)] * missing
        name = f"{'add' if goes_on or first else 'sum'}_{len(some)}_{real}"
        _launch(name, out, out, *some, *nothing[0], *weights, *nothing[1])


def _lanes(like: Array) -> Array:
    """Return room for the lanes of all stretches of the sum of squares of ``like``."""
    with like.device:
        return _cupy().empty(-(-like.size // STRETCH) * LANES, "float64")


def _added(lanes: Array) -> float:
    """Return the sum of all lanes."""
    if not lanes.size:
        return 0.0
    with lanes.device:
        stretches = _cupy().empty(lanes.size // LANES, "float64")
    _launch("add_lanes", stretches, stretches, lanes)
    total = 0.0
    for stretch in stretches.get().tolist():
        total += stretch
    return total


def _rounded(like: Array, *scalars: float) -> list[Any]:
    """Return the scalars rounded to the dtype of ``like``, as in the definition."""
    with np.errstate(all="ignore"):
        return [like.dtype.type(scalar) for scalar in scalars]


def _table(like: Array, pieces: Sequence[Array]) -> Array:
    """Return where each of the pieces starts, and then where each of them lies; on the device."""
    starts = np.cumsum([0, *(piece.size for piece in pieces[:-1])])
    rows = np.array([starts, [piece.data.ptr for piece in pieces]], "uint64")
    stream = _cupy().cuda.get_current_stream()
    return _uploaded(rows.tobytes(), like.device.id, stream.ptr)


@lru_cache(maxsize=64)
def _uploaded(words: bytes, device: int, stream: int) -> Array:
    """Return these words on the device. They are kept, as a script mostly gives the same tensors
    again; for each stream, as only there they are written before a kernel reads them."""
    with _cupy().cuda.Device(device):
        return _cupy().asarray(np.frombuffer(words, "uint64"))


def _seen(wire: Array, size: int, form: str) -> tuple[Array, Array]:
    """Return the elements of ``wire``, and the scales of its blocks, which come first."""
    marks = wire.size - size * (1 if form == "int8" else 2)
    return wire[marks:], wire[:marks]


def _checked(*arrays: Array) -> str:
    """Return CUDA's name for the elements of all these arrays."""
    first = arrays[0]
    kind = _cupy().ndarray
    for x in arrays:
        if not (
            isinstance(x, kind)
            and x.dtype == first.dtype
            and x.shape == first.shape
            and x.ndim == 1
            and x.flags.c_contiguous
        ):
            refuse(arrays, kind, _OWN)
    found = REALS.get(first.dtype.name)
    if found is None:
        raise TypeError(f"kernels take float32 and float64; got {first.dtype}")
    return found


def _check_wire(flat: Array, wire: Array, form: str) -> None:
    if flat.dtype != np.float32:
        raise TypeError(f"only float32 can be narrowed; got {flat.dtype}")
    if form not in FORMATS:
        raise ValueError(f"{form!r} is no narrow format; there are {', '.join(FORMATS)}")
    needed = narrowed_bytes(flat.size, form)
    if not (
        isinstance(wire, _cupy().ndarray)
        and wire.dtype == np.uint8
        and wire.shape == (needed,)
        and wire.flags.c_contiguous
        and wire.data.ptr % 4 == 0
    ):
        what = f"{flat.size} elements take {needed} bytes in {form}"
        raise ValueError(f"{what}, in an array of bytes from a whole word on")
