"""What a script has summed over all workers: arrays, as one flat array in parts. Local."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spotmpi.arrays.backend import BACKENDS, HOST, Array, Backend, Buffer
from spotmpi.arrays.flat_parts import pieces
from spotmpi.arrays.layout import Bucket, Layout
from spotmpi.arrays.word_view import WORDS_OF, WordView
from spotmpi.errors import UsageError
from spotmpi.protocol.control_word import SUMS, WORDS_OF_ALL, WORDS_OF_ONE

__all__ = ["GrowingSummand", "OwnWords", "Summand", "Words"]

_WORD = 4
"""Bytes of a word."""
_SOME = 3
"""Most arrays in a description."""


class Summand(NamedTuple):
    """One worker's part of a sum. Its arrays stay as they are until the sum is there."""

    tree: Any
    """A structure of arrays of one type, float32 or float64."""
    layout: Layout
    alone: bool
    """True if the script gave an array, and not a structure of some."""

    @classmethod
    def of(cls, x: Any) -> Summand:
        """Return what ``x`` brings: an array or a structure of arrays. Raises UsageError for what
        cannot be summed."""
        alone = any(backend.owns(x) for backend in BACKENDS)
        tree = [x] if alone else x
        layout = Layout.of(tree, bucket_mb=math.inf, what="x")
        if len(layout.buckets) > 1:
            raise UsageError("x has arrays of float32 and of float64: sum them in two calls")
        return cls(tree, layout, alone)

    @property
    def kind(self) -> int:
        """The kind of the rounds that sum it, by `control_word`."""
        return SUMS[self.bucket.dtype, self.backend is not HOST]

    @property
    def brings(self) -> bool:
        """True: this worker adds something."""
        return True

    @property
    def backend(self) -> Backend:
        """The library of the arrays."""
        return self.layout.backend

    @property
    def bucket(self) -> Bucket:
        """The type and the size of the flat array."""
        return self.layout.buckets[0]

    @property
    def bytes(self) -> int:
        """The size of the flat array."""
        return 4 * WORDS_OF[self.bucket.dtype] * self.bucket.size

    def pack(self, parts: Sequence[Buffer]) -> None:
        """Write all numbers into the parts of a flat array."""
        if len(parts) == 1:
            self.layout.pack(self.tree, parts, 1.0, "x")
            return
        (arrays,) = self.layout.by_bucket(self.tree, "x")
        for number, array in enumerate(arrays):
            self.pack_one(number, array, parts)

    def pack_one(self, number: int, array: Array, parts: Sequence[Buffer]) -> None:
        """Write the numbers of the array of this number, which was checked."""
        entry, flat = self.bucket.entries[number], array.reshape(-1)
        for where, there in pieces(parts, entry.start, entry.stop):
            self.backend.kernels.pack(there, [flat[where]], 1.0)

    @property
    def call(self) -> int:
        """A number of 32 bits that stands for names, shapes and type, the same on all workers."""
        return self.layout.signature

    @property
    def known_by(self) -> str:
        """What its sum is known by, alike on all workers."""
        return f"sum {self.call:08x}"

    def __str__(self) -> str:
        shapes = [shape for _, shape in self.layout.described.values()]
        some = ", ".join(map(str, shapes[:_SOME])) + ", .." * (len(shapes) > _SOME)
        many = "an array" if self.alone else f"{len(shapes)} array{'s' * (len(shapes) != 1)}"
        return f"{many} of {self.bucket.dtype} {some}"

    def result(self, parts: Sequence[Buffer]) -> Any:
        """Return the total in the form of what was given, in new memory. ``parts``: those of the
        flat array, of the same library or, as a worker is told a sum, in memory of the host."""
        dtype, size = self.bucket.dtype, self.bucket.size
        told = HOST.fit(parts, dtype, [(part.size,) for part in parts])
        alike = told or self.backend.fit(parts, dtype, [(part.size,) for part in parts])
        if not alike or sum(part.size for part in parts) != size:
            raise UsageError(f"the sum that is known here is not one of {self}")
        total = self.backend.zeros(dtype, size)
        write = self.backend.from_host if told else self.backend.assign
        for where, there in pieces(parts, 0, size):
            write(total[where], there)
        found = self.layout.views([total])
        return found[0] if self.alone else found


class GrowingSummand:
    """One worker's part of a sum whose arrays come one by one, in the order of their list. Those
    that are there stay as they are until the sum is there."""

    def __init__(self, whole: Summand) -> None:
        """``whole``: how all of them lie in the flat array; its own arrays are not looked at."""
        self._whole = whole
        self._arrays: list[Array] = []
        self.kind = whole.kind
        self.backend = whole.backend
        self.bucket = whole.bucket
        self.bytes = whole.bytes
        self.call, self.known_by, self._about = whole.call, whole.known_by, str(whole)

    def __str__(self) -> str:
        return self._about

    def __len__(self) -> int:
        """Return how many arrays are there."""
        return len(self._arrays)

    @property
    def brings(self) -> bool:
        """True: this worker adds something."""
        return True

    @property
    def size(self) -> int:
        """Numbers of the arrays that are there."""
        return self.bucket.entries[len(self) - 1].stop if self._arrays else 0

    def add(self, array: Array) -> None:
        """Take the next array. It must fit."""
        key = self.bucket.entries[len(self)].key
        self._whole.layout.check_array(key, array, "x")
        self._arrays.append(array)

    def pack(self, parts: Sequence[Buffer], first: int = 0) -> None:
        """Write the numbers of the arrays that are there, from number ``first`` on."""
        for number, array in enumerate(self._arrays[first:], first):
            self._whole.pack_one(number, array, parts)


class Words(NamedTuple):
    """Bytes that one worker has, as words of 32 bits to which the others add nothing."""

    bytes: int
    """How many there are."""
    about: str
    """Says what they are, alike on all workers."""
    write: Callable[[Any], None] | None
    """Writes them into an array of bytes, on the worker that has them; None on the others."""

    @property
    def kind(self) -> int:
        """The kind of the rounds that carry them, by `control_word`."""
        return WORDS_OF_ONE

    @property
    def backend(self) -> Backend:
        """They are in memory of the host."""
        return HOST

    @property
    def brings(self) -> bool:
        """True if this worker has them."""
        return self.write is not None

    @property
    def bucket(self) -> Bucket:
        """The type and the size of the flat array."""
        return Bucket(WordView.dtype, -(-self.bytes // _WORD), ())

    def pack(self, parts: Sequence[Buffer]) -> None:
        """Write all bytes into a flat array of words, in one part."""
        assert self.write is not None
        (flat,) = parts
        self.write(flat.view("uint8")[: self.bytes])

    @property
    def call(self) -> int:
        """A number of 32 bits that stands for what they are, and how many."""
        return zlib.crc32(f"{self}".encode())

    @property
    def known_by(self) -> str:
        """What the words are known by, alike on all workers."""
        return f"words {self.call:08x}"

    def __str__(self) -> str:
        return f"{self.about} ({self.bytes} bytes)"


class OwnWords(Words):
    """As many bytes of each worker, as words of 32 bits: each gets those of all."""

    @property
    def kind(self) -> int:
        """The kind of the rounds that carry them, by `control_word`."""
        return WORDS_OF_ALL
