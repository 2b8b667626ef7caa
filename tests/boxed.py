"""A second library of arrays, which shows nothing of itself: what is said of arrays holds for any.

A `Boxed` array is a name. What it stands for lies with its backend, and whatever NumPy or anybody
else tries to do with the name itself is an error, as it is with memory of a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from spotmpi.arrays import backend
from spotmpi.arrays.backend import Array, Backend, Buffer, Kernels
from spotmpi.kernels import cpu


def _hidden(*_: object, **__: object) -> NoReturn:
    raise TypeError("only its own library can look into a boxed array")


class Boxed:
    """An array of that library."""

    __slots__ = ("__weakref__",)
    __array_ufunc__ = None

    __array__ = __len__ = __iter__ = __getitem__ = __setitem__ = _hidden
    __bool__ = __float__ = __int__ = __index__ = _hidden
    __add__ = __radd__ = __iadd__ = __mul__ = __rmul__ = __imul__ = _hidden
    __copy__ = __deepcopy__ = __reduce_ex__ = _hidden


_MEMORY: WeakKeyDictionary[Boxed, np.ndarray] = WeakKeyDictionary()


def _name_of(array: np.ndarray) -> Boxed:
    _MEMORY[name := Boxed()] = array
    return name


def box(array: Any) -> Boxed:
    """A new boxed array with the elements of this one."""
    return _name_of(np.array(array))


def unbox(array: Boxed) -> np.ndarray:
    """What it holds: memory that whoever asks may write to."""
    return _MEMORY[array]


class _BoxedKernels:
    """Those of the CPU, which see what the names stand for."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(cpu, name)

        def call(*given: Any) -> Any:
            return kernel(*map(_opened, given))

        return call


def _opened(given: Any) -> Any:
    if isinstance(given, list):
        return [_opened(one) for one in given]
    if isinstance(given, np.ndarray):
        raise TypeError("kernels of boxed arrays take boxed arrays")
    return unbox(given) if isinstance(given, Boxed) else given


class _BoxedBackend(Backend):
    name = "Boxed"
    kernels: Kernels = _BoxedKernels()  # type: ignore[assignment]

    def owns(self, x: object) -> bool:
        return isinstance(x, Boxed)

    def describe(self, array: Array) -> tuple[str, tuple[int, ...]]:
        return unbox(array).dtype.name, unbox(array).shape

    def zeros(self, dtype: str, size: int) -> Buffer:
        return _name_of(np.zeros(size, dtype))

    def view(
        self, flat: Buffer, start: int, shape: tuple[int, ...], read_only: bool = False
    ) -> Array:
        return _name_of(unbox(flat)[start : start + math.prod(shape)].reshape(shape))

    def fill(self, array: Array, value: float) -> None:
        unbox(array)[...] = value

    def converted(self, array: Array, dtype: str) -> Array:
        return box(unbox(array).astype(dtype))

    def to_host(self, array: Array) -> np.ndarray:
        return unbox(array).copy()

    def from_host(self, array: Array, values: np.ndarray) -> None:
        unbox(array)[...] = values

    def read_words(self, flat: Buffer, start: int, words: np.ndarray) -> None:
        words[...] = unbox(flat).view(np.uint32)[start : start + len(words)]

    def write_words(self, flat: Buffer, start: int, words: np.ndarray) -> None:
        unbox(flat).view(np.uint32)[start : start + len(words)] = words


BOXED = _BoxedBackend()
"""Its backend."""


@contextmanager
def boxes() -> Iterator[None]:
    """In here, spotmpi knows boxed arrays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "BACKENDS", (*backend.BACKENDS, BOXED))
        yield


def boxed_all(tree: dict[str, Any]) -> dict[str, Any]:
    """A dict of arrays, in boxes."""
    return {key: box(array) for key, array in tree.items()}


def unboxed_all(tree: dict[str, Any]) -> dict[str, Any]:
    """And out of them."""
    return {key: unbox(array) for key, array in tree.items()}


def unboxed_list(flats: Sequence[Boxed]) -> list[Any]:
    """The elements of each, as numbers."""
    return [unbox(flat).tolist() for flat in flats]
