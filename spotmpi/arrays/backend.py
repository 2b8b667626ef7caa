"""The port to the libraries that arrays come from: NumPy, and CuPy where a script has it.

Parameters, gradients and registered state are arrays of the script's library, and lie where that
has its memory. Above this port nobody looks into them: what is done with them is one of the methods
of a `Backend`, or one of its kernels. What is decided, sent as values or written to a disk (control
words, pages, means, checkpoints) is in the memory of the host, and is NumPy's by design.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
]

Array: TypeAlias = Any
"""An array of any shape; what more can be said of it, its backend knows."""

Buffer: TypeAlias = Any
"""An `Array` of one dimension, contiguous."""

HostArray: TypeAlias = npt.NDArray[Any]


class Kernels(Protocol):
    """The arithmetic of one backend, on buffers: `spotmpi.kernels.reference` defines it."""

    def accumulate(self, out: Buffer, x: Buffer) -> None:
        """out += x"""

    def blend(self, out: Buffer, x: Buffer, a: float, b: float) -> None:
        """out = b * out + a * x"""

    def exchange(self, total: Buffer, own: Buffer, x: Buffer) -> None:
        """total += x - own; own = x"""

    def scaled_sum(self, out: Buffer, inputs: Sequence[Buffer], scales: Sequence[float]) -> None:
        """out = the sum of all scales[i] * inputs[i]"""

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
        """Move the moments; the sums of squares of the parameters, and of `adam`'s direction."""

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
        """In float64: the same bits on every backend."""

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
        """Sum up, narrow the sum to bytes, and keep what that takes away; float32."""

    def widen(self, out: Buffer, wire: Buffer, form: str) -> None:
        """out = what these bytes say; float32."""

    def pack(self, out: Buffer, tensors: Sequence[Array], scale: float) -> None:
        """out = scale * (the elements of all tensors, one after another)"""

    def unpack(self, flat: Buffer, tensors: Sequence[Array]) -> None:
        """The inverse of `pack`."""

    def digest(self, x: Buffer, offset: int = 0) -> int:
        """64 bits over the bits of ``x``: the same on every backend."""

    def finite(self, x: Buffer) -> bool:
        """Whether no element is NaN or infinite."""


class Backend(ABC):
    """One library's arrays. All methods are local, and done when they return: whoever is given the
    memory next, a data plane or another library, finds it as they left it."""

    name: ClassVar[str]
    """What scripts call the library."""

    kernels: Kernels

    @abstractmethod
    def owns(self, x: object) -> bool:
        """Whether ``x`` is an array of this library."""

    @abstractmethod
    def describe(self, array: Array) -> tuple[str, tuple[int, ...]]:
        """The dtype of one, by its NumPy name, and the shape."""

    def fit(self, xs: Sequence[object], dtype: str, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether all ``xs`` are arrays of this library, of that dtype and of these shapes."""
        return all(
            self.owns(x) and self.describe(x) == (dtype, shape)
            for x, shape in zip(xs, shapes, strict=True)
        )

    @abstractmethod
    def zeros(self, dtype: str, size: int) -> Buffer:
        """New memory, of zeros."""

    @abstractmethod
    def view(
        self, flat: Buffer, start: int, shape: tuple[int, ...], read_only: bool = False
    ) -> Array:
        """The elements from ``start`` on as an array that shares their memory.

        ``read_only``: writing through it is an error, where the library can see to that.
        """

    @abstractmethod
    def fill(self, array: Array, value: float) -> None:
        """Set every element."""

    def converted(self, array: Array, dtype: str) -> Array:
        """A copy of another dtype."""
        return array.astype(dtype)

    def assign(self, out: Array, array: Array) -> None:
        """out = ``array``, of the same shape, rounded to the dtype of ``out``."""
        out[...] = array

    @abstractmethod
    def to_host(self, array: Array) -> HostArray:
        """A copy in the memory of the host, contiguous and with the same bits."""

    @abstractmethod
    def from_host(self, array: Array, values: HostArray) -> None:
        """Overwrite all of ``array`` by ``values`` of its dtype and shape."""

    @abstractmethod
    def read_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        """Fill ``words`` (uint32) with the bits of ``flat`` from its word ``start`` on."""

    @abstractmethod
    def write_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        """Replace the bits of ``flat`` from its word ``start`` on by ``words`` (uint32)."""


_NUMPY = (np.ndarray, np.generic)
"""A sum over everything gives a NumPy scalar, which is as good as an array."""


class _NumPy(Backend):
    name = "NumPy"
    kernels = cpu

    def owns(self, x: object) -> bool:
        return isinstance(x, _NUMPY)

    def describe(self, array: Array) -> tuple[str, tuple[int, ...]]:
        # In the other byte order, the name would be that of an array that kernels can work on.
        dtype: np.dtype[Any] = array.dtype
        return dtype.name if dtype.isnative else str(dtype), array.shape

    def fit(self, xs: Sequence[object], dtype: str, shapes: Sequence[tuple[int, ...]]) -> bool:
        wanted = np.dtype(dtype)  # two dtypes compare ten times faster than their names are made
        for x, shape in zip(xs, shapes, strict=True):
            if not (isinstance(x, _NUMPY) and x.dtype == wanted and x.shape == shape):
                return False
        return True

    def zeros(self, dtype: str, size: int) -> Buffer:
        return np.zeros(size, dtype)

    def view(
        self, flat: Buffer, start: int, shape: tuple[int, ...], read_only: bool = False
    ) -> Array:
        found = flat[start : start + math.prod(shape)].reshape(shape)
        if read_only:
            found.flags.writeable = False
        return found

    def fill(self, array: Array, value: float) -> None:
        array[...] = value

    def to_host(self, array: Array) -> HostArray:
        return np.array(array, order="C")

    def from_host(self, array: Array, values: HostArray) -> None:
        array[...] = values

    def read_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        words[...] = flat.view(np.uint32)[start : start + len(words)]

    def write_words(self, flat: Buffer, start: int, words: HostArray) -> None:
        flat.view(np.uint32)[start : start + len(words)] = words


HOST: Backend = _NumPy()
"""NumPy's arrays, in the memory of the host."""


class _CuPy(Backend):
    """What is done is put into the current stream of the calling thread. What goes to the host is
    there when it returns; whoever hands memory to others by another way waits for the stream."""

    name = "CuPy"
    kernels = gpu

    def owns(self, x: object) -> bool:
        # Whoever has an array of CuPy's has imported it; nobody else pays for it.
        cupy = sys.modules.get("cupy")
        return cupy is not None and isinstance(x, cupy.ndarray)

    def describe(self, array: Array) -> tuple[str, tuple[int, ...]]:
        return array.dtype.name, array.shape

    def zeros(self, dtype: str, size: int) -> Buffer:
        return sys.modules["cupy"].zeros(size, dtype)

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
        stream.synchronize()  # it was read


DEVICE: Backend = _CuPy()
"""CuPy's arrays, in the memory of a GPU."""

BACKENDS: tuple[Backend, ...] = (HOST, DEVICE)
"""Those that are known. One that is added must cost nothing where its library is not in use."""


def backend_of(array: object) -> Backend:
    """The backend of this array; UsageError for what is no array of any."""
    for backend in BACKENDS:
        if backend.owns(array):
            return backend
    kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    known = " or ".join(backend.name for backend in BACKENDS)
    raise UsageError(f"{kind} is no array that spotmpi can train yet: use {known} arrays")


def kernels_for(array: Array) -> Kernels:
    """The kernels that work on this array."""
    return backend_of(array).kernels


def fill(flats: Sequence[Buffer], value: float) -> None:
    """Set every element of all of these, whoever's they are."""
    for flat in flats:
        backend_of(flat).fill(flat, value)


def in_host_memory(x: Any) -> Any:
    """``x``, or a copy of it in the memory of the host if it is an array that lies elsewhere."""
    for backend in BACKENDS:
        if backend is not HOST and backend.owns(x):
            return backend.to_host(x)
    return x


def digest_of(flats: Sequence[Buffer]) -> int:
    """64 bits over the bits of all ``flats`` and their order: equal replicas, equal digests."""
    found = 0
    for flat in flats:
        found = (found * 3 + kernels_for(flat).digest(flat)) % 2**64
    return found
