"""The port to the libraries of arrays: NumPy, and CuPy where a script uses it.

Parameters, gradients and registered state are arrays of the script's library, in that library's
memory. Above this port nobody looks into them: all work on them is a method of a `Backend`, or one
of its kernels. What is decided, sent as values or written to a disk (control words, pages, means,
checkpoints) is in the memory of the host, and is NumPy's by design.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from itertools import pairwise
from mmap import PAGESIZE
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError
from spotmpi.kernels import cpu, gpu

__all__ = [
    "BACKENDS",
    "DEVICE",
    "HOST",
    "Array",
    "Backend",
    "Buffer",
    "Kernels",
    "backend_of",
    "digest_of",
    "fill",
    "in_host_memory",
    "kernels_for",
    "occupy",
    "without_warnings",
]

Array: TypeAlias = Any
"""An array of any shape. Only its backend knows more of it."""

Buffer: TypeAlias = Any
"""An `Array` of one dimension, contiguous."""

HostArray: TypeAlias = npt.NDArray[Any]


class Kernels(Protocol):
    """The arithmetic of one backend, on buffers. `spotmpi.kernels.reference` defines it."""

    def accumulate(self, out: Buffer, x: Buffer) -> None:
        """out += x"""

    def blend(self, out: Buffer, x: Buffer, a: float, b: float) -> None:
        """out = b * out + a * x"""

    def exchange(self, total: Buffer, own: Buffer, x: Buffer) -> None:
        """total += x - own; own = x"""

    def scaled_sum(
        self, out: Buffer, inputs: Sequence[Buffer], scales: Sequence[float], *, of: int = 0
    ) -> None:
        """out = the sum of all scales[i] * inputs[i]. ``of``: bytes of a larger array of which
        ``out`` is a part: all of it is made before any is read."""

    def sgd(self, params: Buffer, grads: Buffer, rate: float, scale: float) -> None:
        """params -= rate * (scale * grads)"""

    def momentum(
        self,
        params: Buffer,
        velocity: Buffer,
        grads: Buffer,
        rate: float,
        beta: float,
        scale: float,
    ) -> None:
        """velocity = beta * velocity + scale * grads; params -= rate * velocity"""

    def adam(
        self,
        params: Buffer,
        mean: Buffer,
        square: Buffer,
        grads: Buffer,
        rate: float,
        beta1: float,
        beta2: float,
        first: float,
        second: float,
        eps: float,
        decay: float,
        scale: float,
    ) -> None:
        """Move two moments of the gradient, and the parameters with them."""

    def lamb_norms(
        self,
        params: Buffer,
        mean: Buffer,
        square: Buffer,
        grads: Buffer,
        beta1: float,
        beta2: float,
        first: float,
        second: float,
        eps: float,
        decay: float,
        scale: float,
    ) -> tuple[float, float]:
        """Move the moments; return the sums of squares of parameters and of `adam`'s direction."""

    def lamb(
        self,
        params: Buffer,
        mean: Buffer,
        square: Buffer,
        rate: float,
        first: float,
        second: float,
        eps: float,
        decay: float,
    ) -> None:
        """params -= rate * direction"""

    def sum_of_squares(self, x: Buffer) -> float:
        """Return the sum of squares, in float64: the same bits on every backend."""

    def narrow_sum(
        self,
        wire: Buffer,
        total: Buffer,
        following: Buffer,
        rest: Buffer,
        came: Buffer | None,
        inputs: Sequence[Buffer],
        scales: Sequence[float],
        form: str,
    ) -> None:
        """Sum up float32, narrow the sum to bytes, and keep what the narrowing takes away."""

    def widen(self, out: Buffer, wire: Buffer, form: str) -> None:
        """out = what these bytes say; float32."""

    def pack(self, out: Buffer, tensors: Sequence[Array], scale: float) -> None:
        """out = scale * (the elements of all tensors, one after another)"""

    def unpack(self, flat: Buffer, tensors: Sequence[Array]) -> None:
        """Copy ``flat`` into the tensors: the inverse of `pack`."""

    def digest(self, x: Buffer, offset: int = 0) -> int:
        """Return 64 bits over the bits of ``x``: the same on every backend."""

    def finite(self, x: Buffer) -> bool:
        """Return True if no element is NaN or infinite."""


class Backend(ABC):
    """One library's arrays. All methods are local. What they do is done when they return, but for
    arrays of a device: it is then in the order of the current stream (`_CuPy`)."""

    name: ClassVar[str]
    """Name of the library, as scripts know it."""

    kernels: Kernels

    @abstractmethod
    def owns(self, x: object) -> bool:
        """Return True if ``x`` is an array of this library."""

    @abstractmethod
    def describe(self, array: Array) -> tuple[str, tuple[int, ...]]:
        """Return the dtype of ``array``, by its NumPy name, and its shape."""

    def fit(self, xs: Sequence[object], dtype: str, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Return True if all ``xs`` are arrays of this library, of this dtype and these shapes."""
        return all(
            self.owns(x) and self.describe(x) == (dtype, shape)
            for x, shape in zip(xs, shapes, strict=True)
        )

    @abstractmethod
    def zeros(self, dtype: str, size: int) -> Buffer:
        """Return new memory, full of zeros."""

    @abstractmethod
    def view(
        self, flat: Buffer, start: int, shape: tuple[int, ...], read_only: bool = False
    ) -> Array:
        """Return the elements from ``start`` on as an array that shares their memory.

        ``read_only``: writing through it is an error, if the library can see to that.
        """

    @abstractmethod
    def fill(self, array: Array, value: float) -> None:
        """Set every element to ``value``."""

    def occupy(self, flat: Buffer) -> None:
        """Have all memory of ``flat`` now, with the content as it is. A system may give memory only
        when it is written to."""
        return

    def converted(self, array: Array, dtype: str) -> Array:
        """Return a copy of another dtype."""
        return array.astype(dtype)

    def assign(self, out: Array, array: Array) -> None:
        """out = ``array``, of the same shape, rounded to the dtype of ``out``."""
        out[...] = array

    def joined(self, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """Return the memory of these arrays of one dtype in as few arrays as it is known to allow:
        large copies are faster than small ones."""
        return parts

    @abstractmethod
    def to_host(self, array: Array) -> HostArray:
        """Return a copy in the memory of the host, contiguous and with the same bits."""

    @abstractmethod
    def from_host(self, array: Array, values: HostArray) -> None:
        """Overwrite all of ``array`` with ``values`` of its dtype and shape."""

    @abstractmethod
    def read_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        """Fill ``words`` (uint32) with the bits of ``flat`` from its word ``start`` on."""

    @abstractmethod
    def write_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        """Replace the bits of ``flat`` from its word ``start`` on with ``words`` (uint32)."""


_NUMPY = (np.ndarray, np.generic)
"""NumPy's classes. A sum over everything gives a NumPy scalar, which is as good as an array."""


class _Joined:
    """Arrays of one dtype that lie one behind the other in memory, as NumPy makes one of them. It
    keeps them."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        first = parts[0].__array_interface__
        self.__array_interface__ = {**first, "shape": (sum(part.size for part in parts),)}


class _NumPy(Backend):
    name = "NumPy"
    kernels = cpu

    def owns(self, x: object) -> bool:
        return isinstance(x, _NUMPY)

    def describe(self, array: Array) -> tuple[str, tuple[int, ...]]:
        # The name alone does not tell the byte order, and kernels work on the native one only.
        dtype: np.dtype[Any] = array.dtype
        return dtype.name if dtype.isnative else str(dtype), array.shape

    def fit(self, xs: Sequence[object], dtype: str, shapes: Sequence[tuple[int, ...]]) -> bool:
        wanted = np.dtype(dtype)  # comparing dtypes is ten times faster than making their names
        for x, shape in zip(xs, shapes, strict=True):
            if not (isinstance(x, _NUMPY) and x.dtype == wanted and x.shape == shape):
                return False
        return True

    def zeros(self, dtype: str, size: int) -> Buffer:
        return np.zeros(size, dtype)

    def view(
        self, flat: Buffer, start: int, shape: tuple[int, ...], read_only: bool = False
    ) -> Array:
        found = flat[start : start + math.prod(shape)]
        if len(shape) != 1:
            found = found.reshape(shape)
        if read_only:
            found.flags.writeable = False
        return found

    def fill(self, array: Array, value: float) -> None:
        array[...] = value

    def occupy(self, flat: Buffer) -> None:
        pages = flat.view(np.uint8)[::PAGESIZE]
        np.bitwise_or(pages, 0, out=pages)

    def joined(self, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        if len(parts) > 1 and all(
            one.ctypes.data + one.nbytes == two.ctypes.data for one, two in pairwise(parts)
        ):
            return [np.asarray(_Joined(parts))]
        return parts

    def to_host(self, array: Array) -> HostArray:
        return np.array(array, order="C")

    def from_host(self, array: Array, values: HostArray) -> None:
        array[...] = values

    def read_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        words[...] = flat.view(np.uint32)[start : start + len(words)]

    def write_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        flat.view(np.uint32)[start : start + len(words)] = words


HOST: Backend = _NumPy()
"""The backend of NumPy's arrays, in the memory of the host."""


class _CuPy(Backend):
    """CuPy's arrays. Methods put their work into the calling thread's current stream. What goes to
    the host is there when they return. Code that hands memory on otherwise waits for the stream."""

    name = "CuPy"
    kernels = gpu

    def owns(self, x: object) -> bool:
        # A script with an array of CuPy's has imported CuPy; no other script pays for the import.
        cupy = sys.modules.get("cupy")
        return cupy is not None and isinstance(x, cupy.ndarray)

    def describe(self, array: Array) -> tuple[str, tuple[int, ...]]:
        return array.dtype.name, array.shape

    def zeros(self, dtype: str, size: int) -> Buffer:
        # A newcomer that learns may need some before its script imports CuPy.
        return import_module("cupy").zeros(size, dtype)

    def view(
        self, flat: Buffer, start: int, shape: tuple[int, ...], read_only: bool = False
    ) -> Array:
        return flat[start : start + math.prod(shape)].reshape(shape)

    def fill(self, array: Array, value: float) -> None:
        array.fill(value)

    def to_host(self, array: Array) -> HostArray:
        found: HostArray = array.get(order="C")
        return found

    def from_host(self, array: Array, values: HostArray) -> None:
        self._set(array, np.ascontiguousarray(values).reshape(array.shape))

    def read_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        words[...] = flat.view(np.uint32)[start : start + len(words)].get()

    def write_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        self._set(flat.view(np.uint32)[start : start + len(words)], np.array(words))

    @staticmethod
    def _set(array: Array, values: HostArray) -> None:
        stream = sys.modules["cupy"].cuda.get_current_stream()
        array.set(values, stream)
        stream.synchronize()  # until it is read


DEVICE: Backend = _CuPy()
"""The backend of CuPy's arrays, in the memory of a GPU."""

BACKENDS: tuple[Backend, ...] = (HOST, DEVICE)
"""All known backends. A new one must cost nothing where its library is not in use."""


def backend_of(array: object) -> Backend:
    """Return the backend of this array; UsageError if it is no array of any."""
    for backend in BACKENDS:
        if backend.owns(array):
            return backend
    kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    known = " or ".join(backend.name for backend in BACKENDS)
    raise UsageError(f"{kind} is no array that spotmpi can train yet: use {known} arrays")


def kernels_for(array: Array) -> Kernels:
    """Return the kernels that work on this array."""
    return backend_of(array).kernels


def fill(flats: Sequence[Buffer], value: float) -> None:
    """Set every element of all ``flats`` to ``value``, for any backends."""
    for flat in flats:
        backend_of(flat).fill(flat, value)


def without_warnings() -> AbstractContextManager[object]:
    """Return a context in which arithmetic on arrays of the host says nothing of infinity."""
    return np.errstate(all="ignore")


def in_host_memory(x: Any) -> Any:
    """Return ``x``, or a copy in the memory of the host if it is an array elsewhere."""
    for backend in BACKENDS:
        if backend is not HOST and backend.owns(x):
            return backend.to_host(x)
    return x


def digest_of(flats: Sequence[Buffer]) -> int:
    """Return 64 bits over the bits of all ``flats`` in order: equal for equal replicas."""
    found = 0
    for flat in flats:
        found = (found * 3 + kernels_for(flat).digest(flat)) % 2**64
    return found


def occupy(flats: Sequence[Buffer]) -> None:
    """Have all memory of these ``flats`` now, with the content as it is."""
    for flat in flats:
        backend_of(flat).occupy(flat)
