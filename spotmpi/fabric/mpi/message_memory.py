"""Memory for messages, which is used again when nobody has a view of it."""

from __future__ import annotations

__all__ = ["MessageMemory"]

_LARGE = 1 << 16
"""Bytes. Memory of this size or more is used again, as new memory costs more than a copy."""

_MOST_KNOWN, _MOST_BYTES = 8, 1 << 28
"""Most pieces of memory that are used again, and the most bytes of all of them, if they are more
than two."""

_MOST_TOO_LARGE = 4
"""A message gets memory of at most this multiple of its size: large messages need it more."""


class MessageMemory:
    """The memory of one worker's messages."""

    def __init__(self) -> None:
        self._known: list[bytearray] = []
        """What may be used again. The last one was used last."""

    def take(self, size: int) -> memoryview:
        """Return memory of this size, which is in use as long as somebody has a view of it."""
        if size < _LARGE:
            return memoryview(bytearray(size))
        fit = [one for one in self._known if size <= len(one) <= _MOST_TOO_LARGE * size]
        found = min((one for one in fit if not _in_use(one)), key=len, default=None)
        if found is None:
            found = bytearray(size)
        self._known = [*(one for one in self._known if one is not found), found]
        while len(self._known) > _MOST_KNOWN or (
            len(self._known) > 2 and sum(map(len, self._known)) > _MOST_BYTES
        ):
            del self._known[0]
        return memoryview(found)[:size]


def _in_use(memory: bytearray) -> bool:
    """Return True if somebody has a view of this memory: then Python refuses to resize it."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return True
    return False
