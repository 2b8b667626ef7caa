"""State as 32-bit words. Slices of it are copied to and from the memory of the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from spotmpi.arrays.backend import Backend, Buffer, backend_of

__all__ = ["WORDS_OF", "WordView"]

WORDS_OF = {"float32": 1, "float64": 2}
"""Words in one element of each dtype that can be trained."""

Row = tuple[Backend, Buffer, int]
"""A buffer with its backend, and the number of its words."""


class WordView:
    """Several sets of buffers as one row of words, bit by bit.

    In each set the larger elements come first, so that none of them begins at an odd word of it.
    """

    dtype = "uint32"
    """Dtype of the words."""

    def __init__(self, *sets: Sequence[Buffer]) -> None:
        self._rows: list[Row] = []
        for flats in sets:
            found = [(backend_of(flat), flat) for flat in flats]
            described = [(backend, flat, *backend.describe(flat)) for backend, flat in found]
            for backend, flat, dtype, (size,) in sorted(described, key=_largest_first):
                self._rows.append((backend, flat, size * WORDS_OF[dtype]))
        self.sets = len(sets)
        self.size = sum(words for _, _, words in self._rows)
        """Words of all sets together."""

    def read(self, start: int, page: Any) -> None:
        """Fill ``page``, in the memory of the host, with the words from ``start`` on."""
        for backend, flat, begin, words in self._meet(start, page):
            backend.read_words(flat, begin, words)

    def write(self, start: int, page: Any) -> None:
        """Replace the words from ``start`` on with those of ``page``."""
        for backend, flat, begin, words in self._meet(start, page):
            backend.write_words(flat, begin, words)

    def _meet(self, start: int, page: Any) -> Iterator[tuple[Backend, Buffer, int, Any]]:
        at = 0
        for backend, flat, size in self._rows:
            begin, end = max(start, at), min(start + len(page), at + size)
            if begin < end:
                yield backend, flat, begin - at, page[begin - start : end - start]
            at += size


def _largest_first(described: tuple[Backend, Buffer, str, tuple[int, ...]]) -> int:
    return -WORDS_OF[described[2]]
