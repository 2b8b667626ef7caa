"""Parameters as flat buckets: arrays of one dtype each, and the user's structure as views of them.

A bucket holds neighbours in the user's structure, about so many bytes of them, and buckets stand in
the order in which a backward pass completes their gradients: the last parameters come first.

All functions are local. What an array is, only its backend knows (`spotmpi.arrays.backend`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from spotmpi.arrays.backend import Array, Backend, Buffer, backend_of
from spotmpi.arrays.words import WORDS_OF
from spotmpi.errors import UsageError

__all__ = ["BUCKET_MB", "Bucket", "Entry", "Key", "Layout", "Tree"]

Key: TypeAlias = int | str
Tree: TypeAlias = list[Array] | tuple[Array, ...] | dict[Key, Array]

_SOME = 5
"""Names in a message."""

DTYPES = tuple(WORDS_OF)
"""What is trained."""

BUCKET_MB = 25.0
"""Of a bucket, about: so large that what a round costs beside its bytes does not count, and so
small that most of a large gradient can be summed before its last array is there."""

_FEW = 25
"""The buckets that are complete first and last have at most a part as small as this one of the
others' bytes, or one array."""


@dataclass(frozen=True)
class Entry:
    """One array of the user's, and where its elements lie in its bucket."""

    key: Key
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Arrays of one dtype, one after the other. ``size`` counts elements."""

    dtype: str
    size: int
    entries: tuple[Entry, ...]

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of its entries."""
        return [entry.shape for entry in self.entries]


@dataclass(frozen=True)
class Layout:
    """Where each array of a list, tuple or dict lies in flat buckets.

    Immutable, and without memory of its own: `allocate` makes any number of sets of buckets
    ("flats"). Entries keep the order of the list, or the order in which the dict was filled.
    """

    kind: type[list[Any]] | type[tuple[Any, ...]] | type[dict[Any, Any]]
    keys: tuple[Key, ...]
    buckets: tuple[Bucket, ...]
    backend: Backend
    """Of all the arrays."""

    @classmethod
    def of(cls, params: Tree, bucket_mb: float = BUCKET_MB) -> Layout:
        """The layout of these parameters; UsageError for what cannot be trained.

        An array that is larger than ``bucket_mb`` has a bucket of its own.
        """
        kind = _kind(params, "params")
        items = dict(params) if isinstance(params, dict) else dict(enumerate(params))
        if not items:
            raise UsageError(f"params is an empty {kind.__name__}: give it at least one array")
        backends = {key: _backend_of_trainable(array, key) for key, array in items.items()}
        backend = _the_one(backends)
        described = {key: backend.describe(array) for key, array in items.items()}
        for key, (dtype, _) in described.items():
            if dtype not in DTYPES:
                expected = " or ".join(DTYPES)
                name = _name("params", key)
                raise UsageError(f"{name} is {dtype}, expected {expected}: convert it first")
        cut = [
            keys
            for dtype in DTYPES
            for keys in _cut(
                [
                    (key, 4 * WORDS_OF[dtype] * math.prod(shape))
                    for key, (its, shape) in described.items()
                    if its == dtype
                ],
                1e6 * bucket_mb,
            )
        ]
        place = {key: number for number, key in enumerate(items)}
        buckets = []
        for keys in sorted(cut, key=lambda keys: place[keys[0]], reverse=True):
            entries, start = [], 0
            for key in keys:
                shape = described[key][1]
                entries.append(Entry(key, shape, start, start + math.prod(shape)))
                start = entries[-1].stop
            buckets.append(Bucket(described[keys[0]][0], start, tuple(entries)))
        return cls(kind, tuple(items), tuple(buckets), backend)

    @cached_property
    def signature(self) -> int:
        """32 bits that are equal on two workers if and (but for chance) only if layouts are."""
        return zlib.crc32(repr((self.kind.__name__, self.keys, self.buckets)).encode())

    @cached_property
    def described(self) -> dict[Key, tuple[str, tuple[int, ...]]]:
        """The dtype and the shape of each array, in their order."""
        found = {e.key: (bucket.dtype, e.shape) for bucket in self.buckets for e in bucket.entries}
        return {key: found[key] for key in self.keys}

    @cached_property
    def _key_set(self) -> frozenset[Key]:
        return frozenset(self.keys)

    @property
    def size(self) -> int:
        """Elements of all arrays."""
        return sum(bucket.size for bucket in self.buckets)

    def allocate(self) -> list[Buffer]:
        """New buckets full of zeros."""
        return [self.backend.zeros(bucket.dtype, bucket.size) for bucket in self.buckets]

    @cached_property
    def ends(self) -> list[int]:
        """Where its arrays end in a `Tape` of its buckets, in words of a set."""
        found, words = [0], 0
        for bucket in sorted(self.buckets, key=lambda bucket: -WORDS_OF[bucket.dtype]):
            size = WORDS_OF[bucket.dtype]
            found += [words + size * entry.stop for entry in bucket.entries]
            words += size * bucket.size
        return found[1:]

    def one_by_one(self, flats: Sequence[Buffer]) -> list[Buffer]:
        """The arrays that lie in ``flats``, each of them flat, bucket by bucket."""
        view = self.backend.view
        return [
            view(flat, entry.start, (entry.stop - entry.start,))
            for bucket, flat in zip(self.buckets, flats, strict=True)
            for entry in bucket.entries
        ]

    def named(self, flats: Sequence[Buffer], read_only: bool = False) -> dict[Key, Array]:
        """Arrays that share memory with ``flats``, in the order of the user's structure."""
        view, found = self.backend.view, {}
        for bucket, flat in zip(self.buckets, flats, strict=True):
            for entry in bucket.entries:
                found[entry.key] = view(flat, entry.start, entry.shape, read_only)
        return {key: found[key] for key in self.keys}

    def views(self, flats: Sequence[Buffer], read_only: bool = False) -> Tree:
        """The user's structure again, of arrays that share memory with ``flats``.

        ``read_only``: a stray write is an error, where the backend can see to that.
        """
        named = self.named(flats, read_only)
        if self.kind is dict:
            return named
        return tuple(named.values()) if self.kind is tuple else list(named.values())

    def pack(self, tree: Tree, flats: Sequence[Buffer], scale: float, what: str = "grads") -> None:
        """flats = scale * tree; UsageError unless ``tree`` fits the parameters.

        ``what`` is the name of ``tree`` in messages. A dict may be filled in any order, and a
        list passes for a tuple. After an error, what ``flats`` hold is undefined.
        """
        self._check_structure(tree, what)
        by_key: Any = tree
        for bucket, flat in zip(self.buckets, flats, strict=True):
            arrays = [by_key[entry.key] for entry in bucket.entries]
            if not self.backend.fit(arrays, bucket.dtype, bucket.shapes):
                for entry, array in zip(bucket.entries, arrays, strict=True):
                    self.check_array(entry.key, array, what)
            self.backend.kernels.pack(flat, arrays, scale)

    def pack_one(self, key: Key, array: Array, flats: Sequence[Buffer], scale: float) -> None:
        """The same for one array, which was checked."""
        number, entry = self.place(key)
        out = self.backend.view(flats[number], entry.start, (entry.stop - entry.start,))
        self.backend.kernels.pack(out, [array], scale)

    def place(self, key: object) -> tuple[int, Entry]:
        """In which bucket the array of this name is, and where; UsageError if there is none."""
        found = self._places.get(key) if isinstance(key, (int, str)) else None
        if found is None:
            names = ", ".join(repr(known) for known in self.keys[:_SOME])
            more = ", .." * (len(self.keys) > _SOME)
            raise UsageError(f"params has no array {key!r}: its arrays are {names}{more}")
        return found

    @cached_property
    def _places(self) -> dict[Key, tuple[int, Entry]]:
        return {
            entry.key: (number, entry)
            for number, bucket in enumerate(self.buckets)
            for entry in bucket.entries
        }

    def check_array(self, key: Key, array: object, what: str = "grads") -> None:
        """UsageError unless ``array`` can stand for the one of this name."""
        number, entry = self.place(key)
        dtype = self.buckets[number].dtype
        if not self.backend.fit([array], dtype, [entry.shape]):
            raise self._misfit(entry, array, dtype, what)

    def check_finite(
        self, flats: Sequence[Buffer], numbers: Iterable[int] | None = None, what: str = "grads"
    ) -> str | None:
        """The name of the first entry that holds a NaN or an infinity, or None. ``numbers``: of the
        buckets, where ``flats`` are some of all."""
        finite, view = self.backend.kernels.finite, self.backend.view
        which = range(len(flats)) if numbers is None else numbers
        for number, flat in zip(which, flats, strict=True):
            bucket = self.buckets[number]
            if finite(flat):
                continue
            for entry in bucket.entries:
                if not finite(view(flat, entry.start, (entry.stop - entry.start,))):
                    return _name(what, entry.key)
        return None

    def _check_structure(self, tree: Tree, what: str) -> None:
        kind = _kind(tree, what)
        if (kind is dict) != (self.kind is dict):
            raise UsageError(
                f"{what} is a {kind.__name__}, but params is a {self.kind.__name__}: "
                f"give {what} the structure of params"
            )
        if isinstance(tree, dict) and tree.keys() != self._key_set:
            missing = [key for key in self.keys if key not in tree]
            if missing:
                raise UsageError(
                    f"{_name(what, missing[0])} is missing, but params has it: "
                    "give every entry an array, of zeros if need be"
                )
            extra = next(key for key in tree if key not in self.keys)
            raise UsageError(
                f"{_name(what, extra)} has no counterpart in params: leave it out, "
                "or give the Trainer a parameter of that name"
            )
        if len(tree) != len(self.keys):
            raise UsageError(
                f"{what} has {len(tree)} entries, but params has {len(self.keys)}: "
                "give one array for each, in the same order"
            )

    def _misfit(self, entry: Entry, array: object, dtype: str, what: str) -> UsageError:
        """What it is, what it should be, what to do."""
        backend = self.backend
        if not backend.owns(array):
            got = f"a {type(array).__name__}"
            advice = f"make it a {backend.name} array with dtype={dtype}"
        elif (its := backend.describe(array))[0] != dtype:
            got, advice = its[0], f"convert it to {dtype}"
        else:
            got, advice = f"of shape {its[1]}", "give it the shape of its parameter"
        return UsageError(
            f"{_name(what, entry.key)} is {got}, expected a {dtype} array of shape {entry.shape}, "
            f"as {_name('params', entry.key)} is: {advice}"
        )


def _cut(sizes: Sequence[tuple[Key, int]], most: float) -> Iterator[list[Key]]:
    """Neighbours that have at most so many bytes together, or one alone, from the last one on.

    If these are several, the first and the last are small: nothing travels before the one is
    complete, and nothing is computed any more while the other travels.
    """
    few: list[Key] = []
    enough = most
    if sum(size for _, size in sizes) > most:
        enough, together = most / _FEW, 0
        for key, size in sizes:
            together += size
            if together > enough:
                break
            few.append(key)
    keys: list[Key] = []
    together = 0
    for key, size in reversed(sizes[len(few) :]):
        if keys and (together + size > most or together >= enough):
            yield keys[::-1]
            keys, together, enough = [], 0, most
        keys.append(key)
        together += size
    for last in (keys[::-1], few):
        if last:
            yield last


def _kind(tree: object, what: str) -> Any:
    for kind in (dict, list, tuple):
        if isinstance(tree, kind):
            return kind
    raise UsageError(
        f"{what} is a {type(tree).__name__}, expected a list, tuple or dict of arrays: "
        "put a single array into a list"
    )


def _backend_of_trainable(array: object, key: object) -> Backend:
    name = _name("params", key)
    if not isinstance(key, (int, str)):
        raise UsageError(f"{name} has a {type(key).__name__} for a key: use strings or integers")
    if isinstance(array, (list, tuple, dict)):
        raise UsageError(
            f"{name} is a {type(array).__name__}, expected an array: nested parameters are not "
            "supported, put all arrays into one list or dict"
        )
    try:
        return backend_of(array)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _the_one(backends: dict[Any, Backend]) -> Backend:
    """The one that all arrays belong to."""
    first, *others = backends
    for key in others:
        if backends[key] is not backends[first]:
            raise UsageError(
                f"{_name('params', key)} is a {backends[key].name} array, and "
                f"{_name('params', first)} a {backends[first].name} array: "
                "use one library for all parameters"
            )
    return backends[first]


def _name(what: str, key: object) -> str:
    return f'{what}["{key}"]' if isinstance(key, str) else f"{what}[{key!r}]"
