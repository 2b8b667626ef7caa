"""What a script has summed over all workers: arrays, as one flat array. Local."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from spotmpi.arrays.backend import BACKENDS, HOST, Backend, Buffer
from spotmpi.arrays.layout import Bucket, Layout
from spotmpi.arrays.word_view import WORDS_OF, WordView
from spotmpi.errors import UsageError

__all__ = ["Summand", "Words"]

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

    def pack(self, flat: Buffer) -> None:
        """Write all numbers into a flat array."""
        self.layout.pack(self.tree, [flat], 1.0, "x")

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

    def result(self, total: Buffer) -> Any:
        """Return the total in the form of what was given. It shares the memory of ``total``, if
        that is of the same library: a worker is told a sum in memory of the host."""
        dtype, size = self.bucket.dtype, self.bucket.size
        if self.backend is not HOST and HOST.fit([total], dtype, [(size,)]):
            said, total = total, self.backend.zeros(dtype, size)
            self.backend.from_host(total, said)
        if not self.backend.fit([total], dtype, [(size,)]):
            raise UsageError(f"the sum that is known here is not one of {self}")
        found = self.layout.views([total])
        return found[0] if self.alone else found


class Words(NamedTuple):
    """Bytes that one worker has, as words of 32 bits to which the others add nothing."""

    bytes: int
    """How many there are."""
    about: str
    """Says what they are, alike on all workers."""
    write: Callable[[Any], None] | None
    """Writes them into an array of bytes, on the worker that has them; None on the others."""

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

    def pack(self, flat: Buffer) -> None:
        """Write all bytes into a flat array of words."""
        assert self.write is not None
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
