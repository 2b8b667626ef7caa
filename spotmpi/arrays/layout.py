"""Parameters as flat buckets: one array for each dtype, and the user's structure as views of it.

The only module above the kernels that knows what an array is. All functions are local.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError
from spotmpi.kernels import cpu

__all__ = [
    "Array",
    "Bucket",
    "Entry",
    "Key",
    "Layout",
    "Tape",
    "Tree",
    "digest_of",
    "first_sample",
    "flat_array",
    "kept",
    "kernels_for",
    "like",
    "read_only",
]

Array: TypeAlias = npt.NDArray[Any]
Key: TypeAlias = int | str
Tree: TypeAlias = list[Array] | tuple[Array, ...] | dict[Key, Array]

DTYPES = ("float32", "float64")
"""What is trained, and the order of the buckets."""

ARRAYS = (np.ndarray, np.generic)
"""What counts as an array: a sum over everything gives a NumPy scalar, which is as good."""


def kernels_for(array: object) -> ModuleType:
    """The kernels that work on this kind of array: the one place where a backend is chosen."""
    if isinstance(array, ARRAYS):
        return cpu
    kind = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    raise UsageError(f"{kind} is no array that spotmpi can train yet: use NumPy arrays")


@dataclass(frozen=True)
class Entry:
    """One array of the user's, and where its elements lie in its bucket."""

    key: Key
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Everything of one dtype. ``size`` counts elements, without a tail."""

    dtype: str
    size: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Layout:
    """Where each array of a list, tuple or dict lies in flat buckets, one for each dtype.

    Immutable, and without memory of its own: `allocate` makes any number of sets of buckets
    ("flats"). Entries keep the order of the list, or the order in which the dict was filled.
    """

    kind: type[list[Any]] | type[tuple[Any, ...]] | type[dict[Any, Any]]
    keys: tuple[Key, ...]
    buckets: tuple[Bucket, ...]

    @classmethod
    def of(cls, params: Tree) -> Layout:
        """The layout of these parameters; UsageError for what cannot be trained."""
        kind = _kind(params, "params")
        items = dict(params) if isinstance(params, dict) else dict(enumerate(params))
        if not items:
            raise UsageError(f"params is an empty {kind.__name__}: give it at least one array")
        for key, array in items.items():
            _check_trainable(array, key)
        buckets = []
        for dtype in DTYPES:
            entries, start = [], 0
            for key, array in items.items():
                if array.dtype == dtype:
                    entries.append(Entry(key, array.shape, start, start + array.size))
                    start += array.size
            if entries:
                buckets.append(Bucket(dtype, start, tuple(entries)))
        return cls(kind, tuple(items), tuple(buckets))

    @cached_property
    def signature(self) -> int:
        """32 bits that are equal on two workers if and (but for chance) only if layouts are."""
        return zlib.crc32(repr((self.kind.__name__, self.keys, self.buckets)).encode())

    def allocate(self, tail: int = 0) -> list[Array]:
        """New buckets full of zeros; the first has ``tail`` more elements at its end."""
        tails = [tail] + [0] * (len(self.buckets) - 1)
        return [
            np.zeros(bucket.size + extra, bucket.dtype)
            for bucket, extra in zip(self.buckets, tails, strict=True)
        ]

    def views(self, flats: Sequence[Array]) -> Tree:
        """The user's structure again, of arrays that share memory with ``flats``."""
        found: dict[Key, Array] = {}
        for bucket, flat in zip(self.buckets, flats, strict=True):
            for entry in bucket.entries:
                found[entry.key] = flat[entry.start : entry.stop].reshape(entry.shape)
        ordered = {key: found[key] for key in self.keys}
        if self.kind is dict:
            return ordered
        return tuple(ordered.values()) if self.kind is tuple else list(ordered.values())

    def pack(self, tree: Tree, flats: Sequence[Array], scale: float, what: str = "grads") -> None:
        """flats = scale * tree, tails untouched; UsageError unless ``tree`` fits the parameters.

        ``what`` is the name of ``tree`` in messages. A dict may be filled in any order, and a
        list passes for a tuple. After an error, what ``flats`` hold is undefined.
        """
        self._check_structure(tree, what)
        by_key: Any = tree
        for bucket, flat in zip(self.buckets, flats, strict=True):
            dtype = np.dtype(bucket.dtype)
            tensors: list[Any] = []
            for entry in bucket.entries:
                array: Any = by_key[entry.key]
                if not (
                    isinstance(array, ARRAYS)
                    and array.shape == entry.shape
                    and array.dtype == dtype
                ):
                    raise _misfit(array, entry, dtype, what)
                tensors.append(array)
            cpu.pack(flat[: bucket.size], tensors, scale)

    def check_finite(self, flats: Sequence[Array], what: str = "grads") -> str | None:
        """The name of the first entry that holds a NaN or an infinity, or None. Tails are free."""
        for bucket, flat in zip(self.buckets, flats, strict=True):
            if cpu.finite(flat[: bucket.size]):
                continue
            for entry in bucket.entries:
                if not cpu.finite(flat[entry.start : entry.stop]):
                    return _name(what, entry.key)
        return None

    def _check_structure(self, tree: Tree, what: str) -> None:
        kind = _kind(tree, what)
        if (kind is dict) != (self.kind is dict):
            raise UsageError(
                f"{what} is a {kind.__name__}, but params is a {self.kind.__name__}: "
                f"give {what} the structure of params"
            )
        if isinstance(tree, dict):
            missing = [key for key in self.keys if key not in tree]
            if missing:
                raise UsageError(
                    f"{_name(what, missing[0])} is missing, but params has it: "
                    "give every entry an array, of zeros if need be"
                )
            if len(tree) > len(self.keys):
                extra = next(key for key in tree if key not in self.keys)
                raise UsageError(
                    f"{_name(what, extra)} has no counterpart in params: leave it out, "
                    "or give the Trainer a parameter of that name"
                )
        elif len(tree) != len(self.keys):
            raise UsageError(
                f"{what} has {len(tree)} entries, but params has {len(self.keys)}: "
                "give one array for each, in the same order"
            )


class Tape:
    """Several flat buckets as one row of 32-bit words, of which slices are copied, bit by bit."""

    dtype = "uint32"
    """Of the words."""

    def __init__(self, flats: Sequence[Array]) -> None:
        self._rows = [flat.view(np.uint32) for flat in flats]
        self.size = sum(map(len, self._rows))
        """Words."""

    def read(self, start: int, page: Array) -> None:
        """Fill ``page`` with the words from ``start`` on."""
        for row, begin, found in self._meet(start, page):
            found[...] = row[begin : begin + len(found)]

    def write(self, start: int, page: Array) -> None:
        """Replace the words from ``start`` on by those of ``page``."""
        for row, begin, found in self._meet(start, page):
            row[begin : begin + len(found)] = found

    def _meet(self, start: int, page: Array) -> Iterator[tuple[Array, int, Array]]:
        at = 0
        for row in self._rows:
            begin, end = max(start, at), min(start + len(page), at + len(row))
            if begin < end:
                yield row, begin - at, page[begin - start : end - start]
            at += len(row)


def _kind(tree: object, what: str) -> Any:
    for kind in (dict, list, tuple):
        if isinstance(tree, kind):
            return kind
    raise UsageError(
        f"{what} is a {type(tree).__name__}, expected a list, tuple or dict of arrays: "
        "put a single array into a list"
    )


def _check_trainable(array: object, key: object) -> None:
    name = _name("params", key)
    if not isinstance(key, (int, str)):
        raise UsageError(f"{name} has a {type(key).__name__} for a key: use strings or integers")
    if isinstance(array, (list, tuple, dict)):
        raise UsageError(
            f"{name} is a {type(array).__name__}, expected an array: nested parameters are not "
            "supported, put all arrays into one list or dict"
        )
    try:
        kernels_for(array)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    dtype = getattr(array, "dtype", None)
    if dtype not in DTYPES:
        raise UsageError(f"{name} is {dtype}, expected {' or '.join(DTYPES)}: convert it first")


def _misfit(array: object, entry: Entry, dtype: np.dtype[Any], what: str) -> UsageError:
    name = _name(what, entry.key)
    expected = f"expected a {dtype} array of shape {entry.shape}, as {_name('params', entry.key)}"
    if not isinstance(array, ARRAYS):
        got, advice = f"a {type(array).__name__}", f"make it a NumPy array with dtype={dtype}"
    elif array.dtype != dtype:
        got, advice = f"{array.dtype}", f"convert it with .astype({str(dtype)!r})"
    else:
        got, advice = f"of shape {array.shape}", "give it the shape of its parameter"
    return UsageError(f"{name} is {got}, {expected} is: {advice}")


def _name(what: str, key: object) -> str:
    return f'{what}["{key}"]' if isinstance(key, str) else f"{what}[{key!r}]"


def digest_of(flats: Sequence[Array]) -> int:
    """64 bits over the bits of all ``flats`` and their order: equal replicas, equal digests."""
    found = 0
    for flat in flats:
        found = (found * 3 + kernels_for(flat).digest(flat)) % 2**64
    return found


def flat_array(x: object) -> Array:
    """A number or an array of numbers as one flat array of float64; UsageError for any other."""
    array = np.asarray(x)
    if array.dtype.kind not in "biuf" or not array.size:
        raise UsageError(f"mean() takes a number or an array of numbers, not {x!r}")
    return array.astype(np.float64).ravel()


def like(x: Any, flat: Array) -> float | Array:
    """The ``flat`` numbers in the shape of ``x``: a float if that is a number."""
    shape: tuple[int, ...] = np.shape(x)
    return float(flat[0]) if shape == () else flat[: math.prod(shape)].reshape(shape)


def read_only(tree: Tree) -> Tree:
    """``tree``, whose arrays can be read but not be written through: a stray write is an error."""
    for array in tree.values() if isinstance(tree, dict) else tree:
        array.flags.writeable = False
    return tree


def first_sample() -> Array:
    """A batch of one, to rehearse with."""
    return np.zeros(1, np.int64)


def kept(value: object) -> Array | None:
    """``value`` of a checkpoint if it is an array."""
    return value if isinstance(value, np.ndarray) else None
