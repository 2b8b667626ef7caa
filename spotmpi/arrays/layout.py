"""Parameters as flat buckets: arrays of one dtype each, and the user's structure as views of them.

A bucket holds neighbours in the user's structure, about ``bucket_mb`` megabytes of them. Buckets
stand in the order in which a backward pass completes their gradients: the last parameters first.

All functions are local. Only its backend knows what an array is (`spotmpi.arrays.backend`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from spotmpi.arrays.backend import Array, Backend, Buffer, backend_of
from spotmpi.arrays.structure import Key, Structure, called
from spotmpi.arrays.word_view import WORDS_OF
from spotmpi.errors import UsageError

__all__ = ["BUCKET_MB", "Bucket", "Entry", "Key", "Layout", "Room", "Tree"]

Tree: TypeAlias = Any
"""Arrays in the user's structure."""
Room: TypeAlias = Mapping[str, Buffer]

_SOME = 5
"""Most names in a message."""

DTYPES = tuple(WORDS_OF)
"""Dtypes of buckets."""

HALVES = ("float16", "bfloat16")
"""Dtypes that are trained in buckets of `HELD`: sums and updates are not rounded to them."""

HELD = "float32"

BUCKET_MB = 25.0
"""About the size of a bucket. It is so large that the fixed cost of a round does not count, and so
small that most of a large gradient can be summed before its last array is there."""

_FEW = 25
"""The buckets that are complete first and last are small. The first is closed as soon as it has one
part in `_FEW` of the others' bytes. The last has at most that part, if its arrays allow it."""


@dataclass(frozen=True)
class Entry:
    """One array of the user, and where its elements lie in its bucket."""

    key: Key
    shape: tuple[int, ...]
    start: int
    stop: int
    dtype: str
    """The user's dtype: the bucket's, or one of `HALVES`."""


@dataclass(frozen=True)
class Bucket:
    """Arrays of one dtype, one after the other. ``size`` counts elements."""

    dtype: str
    size: int
    entries: tuple[Entry, ...]

    @cached_property
    def halves(self) -> tuple[Entry, ...]:
        """Entries that the user has in half precision."""
        return tuple(entry for entry in self.entries if entry.dtype != self.dtype)

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the entries."""
        return [entry.shape for entry in self.entries]


@dataclass(frozen=True)
class Layout:
    """Where each array of a structure lies in flat buckets.

    A layout is immutable and has no memory of its own: `allocate` makes any number of sets of
    buckets ("flats"). Entries keep the order of lists, and the order in which dicts were filled.
    """

    structure: Structure
    buckets: tuple[Bucket, ...]
    backend: Backend
    """The backend of all the arrays."""

    @classmethod
    def of(
        cls,
        params: Tree,
        bucket_mb: float = BUCKET_MB,
        halves: bool = False,
        what: str = "params",
    ) -> Layout:
        """Return the layout of these parameters; UsageError for what cannot be trained.

        An array larger than ``bucket_mb`` has a bucket of its own. ``halves``: True if there may be
        arrays of half precision. ``what``: their name in messages.
        """
        structure, items = Structure.of(params, what)
        backends = {key: _backend_of(array, key) for key, array in items.items()}
        backend = _the_one(backends)
        described = {key: backend.describe(array) for key, array in items.items()}
        known = (*DTYPES, *HALVES) if halves else DTYPES
        held = {key: HELD if dtype in HALVES else dtype for key, (dtype, _) in described.items()}
        for key, (dtype, _) in described.items():
            if dtype not in known:
                expected = " or ".join(known)
                name = called(what, key)
                raise UsageError(f"{name} is {dtype}, expected {expected}: convert it first")
        cut = [
            keys
            for dtype in DTYPES
            for keys in _cut(
                [
                    (key, 4 * WORDS_OF[dtype] * math.prod(shape))
                    for key, (_, shape) in described.items()
                    if held[key] == dtype
                ],
                1e6 * bucket_mb,
            )
        ]
        place = {key: number for number, key in enumerate(items)}
        buckets = []
        for keys in sorted(cut, key=lambda keys: place[keys[0]], reverse=True):
            entries, start = [], 0
            for key in keys:
                its, shape = described[key]
                entries.append(Entry(key, shape, start, start + math.prod(shape), its))
                start = entries[-1].stop
            buckets.append(Bucket(held[keys[0]], start, tuple(entries)))
        return cls(structure, tuple(buckets), backend)

    @property
    def keys(self) -> tuple[Key, ...]:
        """Names of the arrays, in the order of the structure."""
        return self.structure.keys

    @cached_property
    def signature(self) -> int:
        """32 bits, equal on two workers if and (but for chance) only if their layouts are."""
        return zlib.crc32(repr((str(self.structure), self.buckets)).encode())

    @cached_property
    def described(self) -> dict[Key, tuple[str, tuple[int, ...]]]:
        """Dtype and shape of each array as it lies in its bucket, in the order of `keys`."""
        found = {e.key: (bucket.dtype, e.shape) for bucket in self.buckets for e in bucket.entries}
        return {key: found[key] for key in self.keys}

    @cached_property
    def size(self) -> int:
        """Elements of all arrays."""
        return sum(bucket.size for bucket in self.buckets)

    def allocate(self) -> list[Buffer]:
        """Return new buckets full of zeros."""
        return [self.backend.zeros(bucket.dtype, bucket.size) for bucket in self.buckets]

    @cached_property
    def ends(self) -> list[int]:
        """Where the arrays end in a `WordView` of one set of buckets, in words."""
        found, words = [0], 0
        for bucket in sorted(self.buckets, key=lambda bucket: -WORDS_OF[bucket.dtype]):
            size = WORDS_OF[bucket.dtype]
            found += [words + size * entry.stop for entry in bucket.entries]
            words += size * bucket.size
        return found[1:]

    def one_by_one(self, flats: Sequence[Buffer]) -> list[Buffer]:
        """Return the arrays that lie in ``flats``, each of them flat, bucket by bucket."""
        view = self.backend.view
        return [
            view(flat, entry.start, (entry.stop - entry.start,))
            for bucket, flat in zip(self.buckets, flats, strict=True)
            for entry in bucket.entries
        ]

    def named(self, flats: Sequence[Buffer], read_only: bool = False) -> dict[Key, Array]:
        """Return arrays that share memory with ``flats``, in the order of the user's structure.
        Arrays of half precision are as they lie there."""
        view, found = self.backend.view, {}
        for bucket, flat in zip(self.buckets, flats, strict=True):
            for entry in bucket.entries:
                found[entry.key] = view(flat, entry.start, entry.shape, read_only)
        return {key: found[key] for key in self.keys}

    def views(self, flats: Sequence[Buffer], read_only: bool = False) -> Tree:
        """Return the user's structure, of arrays that share memory with ``flats``.

        ``read_only``: a stray write is an error, if the backend can see to that.
        """
        return self.structure.build(self.named(flats, read_only))

    def pack(self, tree: Tree, flats: Sequence[Buffer], scale: float, what: str = "grads") -> None:
        """flats = scale * tree; UsageError unless ``tree`` fits the parameters.

        ``what`` is the name of ``tree`` in messages. A dict may be filled in any order, and a list
        passes for a tuple. After an error the contents of ``flats`` are undefined.
        """
        for arrays, flat in zip(self.by_bucket(tree, what), flats, strict=True):
            self.backend.kernels.pack(flat, arrays, scale)

    def blend(
        self, tree: Tree, flats: Sequence[Buffer], times: float, keep: float, room: Room
    ) -> None:
        """flats = keep * flats + times * tree. ``tree`` must fit as for `pack`. ``room``: a buffer
        for each dtype, as large as its largest bucket, that is overwritten."""
        kernels, view = self.backend.kernels, self.backend.view
        for bucket, arrays, flat in zip(
            self.buckets, self.by_bucket(tree, "grads"), flats, strict=True
        ):
            added = view(room[bucket.dtype], 0, (bucket.size,))
            kernels.pack(added, arrays, 1.0)
            kernels.blend(flat, added, times, keep)

    def room(self) -> Room:
        """Return new room for `blend`."""
        largest: dict[str, int] = {}
        for bucket in self.buckets:
            largest[bucket.dtype] = max(bucket.size, largest.get(bucket.dtype, 0))
        return {dtype: self.backend.zeros(dtype, size) for dtype, size in largest.items()}

    def by_bucket(self, tree: Tree, what: str) -> Iterator[list[Array]]:
        """Yield the arrays of each bucket, in order; UsageError unless ``tree`` fits params."""
        by_key = self.structure.arrays(tree, what)
        for bucket in self.buckets:
            arrays = [by_key[entry.key] for entry in bucket.entries]
            if not self.backend.fit(arrays, bucket.dtype, bucket.shapes):
                for entry, array in zip(bucket.entries, arrays, strict=True):
                    self.check_array(entry.key, array, what)
                arrays = [self._held(array, bucket) for array in arrays]
            yield arrays

    def _held(self, array: Array, bucket: Bucket) -> Array:
        """Return the array in the dtype of its bucket."""
        if self.backend.describe(array)[0] == bucket.dtype:
            return array
        return self.backend.converted(array, bucket.dtype)

    def pack_one(self, key: Key, array: Array, flats: Sequence[Buffer], scale: float) -> None:
        """Do what `pack` does for one array, which was checked."""
        number, entry = self.place(key)
        out = self.backend.view(flats[number], entry.start, (entry.stop - entry.start,))
        self.backend.kernels.pack(out, [self._held(array, self.buckets[number])], scale)

    def place(self, key: object) -> tuple[int, Entry]:
        """Return this array's bucket, by number, and its entry; UsageError if there is none."""
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
        """Raise UsageError unless ``array`` fits the parameter of this name. If that is of half
        precision, an array that is not rounded fits, too."""
        number, entry = self.place(key)
        for dtype in {entry.dtype, self.buckets[number].dtype}:
            if self.backend.fit([array], dtype, [entry.shape]):
                return
        raise self._misfit(entry, array, entry.dtype, what)

    def check_finite(
        self, flats: Sequence[Buffer], numbers: Iterable[int] | None = None, what: str = "grads"
    ) -> str | None:
        """Return the name of the first entry that holds a NaN or an infinity, or None. ``numbers``:
        the buckets' numbers, where ``flats`` are some of all."""
        found = self.not_finite(flats, numbers)
        return next((called(what, key) for key in found), None)

    def not_finite(
        self, flats: Sequence[Buffer], numbers: Iterable[int] | None = None
    ) -> Iterator[Key]:
        """Yield the keys of all entries that hold a NaN or an infinity, as they are found."""
        finite, view = self.backend.kernels.finite, self.backend.view
        which = range(len(flats)) if numbers is None else numbers
        for number, flat in zip(which, flats, strict=True):
            bucket = self.buckets[number]
            if finite(flat):
                continue
            for entry in bucket.entries:
                if not finite(view(flat, entry.start, (entry.stop - entry.start,))):
                    yield entry.key

    def is_finite(self, flats: Sequence[Buffer], part: slice) -> bool:
        """Return True if ``part`` of all elements, bucket after bucket, is finite."""
        finite, view = self.backend.kernels.finite, self.backend.view
        start = 0
        for bucket, flat in zip(self.buckets, flats, strict=True):
            first, last = max(part.start - start, 0), min(part.stop - start, bucket.size)
            if first < last:
                piece = flat if last - first == bucket.size else view(flat, first, (last - first,))
                if not finite(piece):
                    return False
            start += bucket.size
        return True

    def _misfit(self, entry: Entry, array: object, dtype: str, what: str) -> UsageError:
        """Return an error: what the array is, what it should be, what to do."""
        backend = self.backend
        if not backend.owns(array):
            got = f"a {type(array).__name__}"
            advice = f"make it a {backend.name} array with dtype={dtype}"
        elif (its := backend.describe(array))[0] != dtype:
            got, advice = its[0], f"convert it to {dtype}"
        else:
            got, advice = f"of shape {its[1]}", "give it the shape of its parameter"
        return UsageError(
            f"{called(what, entry.key)} is {got}, expected a {dtype} array of shape {entry.shape}, "
            f"as {called('params', entry.key)} is: {advice}"
        )


def _cut(sizes: Sequence[tuple[Key, int]], most: float) -> Iterator[list[Key]]:
    """Yield neighbours with at most ``most`` bytes together, or one alone, from the last one on.

    If there are several groups, the first and the last are small (`_FEW`): nothing travels before
    the one is complete, and nothing is computed any more while the other travels.
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


def _backend_of(array: object, key: object) -> Backend:
    try:
        return backend_of(array)
    except UsageError as error:
        raise UsageError(f"{called('params', key)}: {error}") from None


def _the_one(backends: dict[Any, Backend]) -> Backend:
    """Return the backend of all arrays; UsageError if there are several."""
    first, *others = backends
    for key in others:
        if backends[key] is not backends[first]:
            raise UsageError(
                f"{called('params', key)} is a {backends[key].name} array, and "
                f"{called('params', first)} a {backends[first].name} array: "
                "use one library for all parameters"
            )
    return backends[first]
