"""A flat array that lies in several parts. Local."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spotmpi.arrays.backend import Buffer

__all__ = ["cut", "pieces"]


_WHOLE = 1 << 14
"""Parts have a multiple of this number of elements, but for the last one. They fill whole pages,
and lie one behind the other where arrays have pages of their own."""


def cut(size: int, least: int, most: int) -> list[int]:
    """Return the sizes of the parts of an array of this size: about equal, of ``least`` or more,
    which is a multiple of `_WHOLE`, and ``most`` of them at most. One part if it is smaller."""
    many = min(most, max(1, size // least))
    whole, rest = divmod(size, _WHOLE)
    each, longer = divmod(whole, many)
    parts = [_WHOLE * (each + (number < longer)) for number in range(many)]
    parts[-1] += rest
    return parts


def pieces(parts: Sequence[Buffer], start: int, stop: int) -> Iterator[tuple[slice, Buffer]]:
    """Yield where the elements from ``start`` to ``stop`` lie: which of them, counted from
    ``start``, and their memory in one of the parts."""
    first = 0
    for part in parts:
        last = first + part.size
        begin, end = max(start, first), min(stop, last)
        if begin < end:
            yield slice(begin - start, end - start), part[begin - first : end - first]
        first = last
