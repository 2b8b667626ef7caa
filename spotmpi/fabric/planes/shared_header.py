"""Headers: two pages of numbers of each worker, which all workers of its host can read."""

from __future__ import annotations

import hashlib

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.planes.shared_memory import PAGE, Found, Memory, Segment

__all__ = [
    "DESCRIPTOR",
    "HOME",
    "HOME_MARK",
    "MARK",
    "OPEN",
    "STATE",
    "STATE_HOME",
    "STATE_MARK",
    "UPDATE",
    "SharedHeader",
    "key_of",
]

_BYTES = 2 * PAGE
_READY, _DONE, _BELL, _TABLE = 64, 128, 192, 1024
"""Bytes of a header at which these lie: how many parts its worker has started; how many it has
summed; the bell by which all sleep, if it is the first of them; the table of its arenas."""

_ENTRY = 12
"""Numbers of one arena in that table."""
_KEY, DESCRIPTOR, MARK, OPEN, HOME, HOME_MARK, _WEIGHT = range(7)
"""Places of these numbers: the arena's key; its segment (descriptor, mark); which of its two
results is the open round's; the segment of all workers' results (descriptor, mark), whose mark is 0
until this worker has found it; the weight of this worker's contributions."""
STATE, STATE_HOME, STATE_MARK, UPDATE = range(7, 11)
"""Places of more of these numbers: which of two copies of the state counts; the segment in which
they lie (descriptor, mark), whose mark is 0 while this worker's are its own; the mark of the update
by which sums go into the next state, or 0."""
_ENTRIES = (_BYTES - _TABLE) // (8 * _ENTRY)


class SharedHeader:
    """The header of one worker: only it writes there, and its neighbours (workers of its host) read
    it."""

    def __init__(self, found: Found, segment: Segment) -> None:
        self.found = found
        self._segment = segment
        self._memory = Memory(_BYTES, segment)
        self._numbers = self._memory.array("uint64", _BYTES // 8)
        self._reals = self._memory.array("float64", _BYTES // 8)
        base = self._memory.address
        self.ready, self.done, self.bell = base + _READY, base + _DONE, base + _BELL

    @classmethod
    def new(cls) -> SharedHeader:
        """Return a new header of this worker's."""
        segment = Segment(_BYTES)
        return cls(segment.here, segment)

    @classmethod
    def of(cls, found: Found) -> SharedHeader:
        """Return another worker's header. OSError if it cannot be reached."""
        return cls(found, Segment.reach(found, _BYTES))

    def entry(self, key: int) -> int | None:
        """Return the entry of the arena of this key; None if the worker shares no such arena."""
        for at in range(_TABLE // 8, _TABLE // 8 + _ENTRY * _ENTRIES, _ENTRY):
            if self._numbers[at + _KEY] == key:
                return at
        return None

    def read(self, entry: int, what: int) -> int:
        """Return one number of an entry."""
        return int(self._numbers[entry + what])

    def write(self, entry: int, what: int, number: int) -> None:
        """Set one number of an entry."""
        self._numbers[entry + what] = number

    def weight(self, entry: int) -> float:
        """Return the weight of the worker's contributions to the open round of that arena."""
        return float(self._reals[entry + _WEIGHT])

    def weigh(self, entry: int, weight: float) -> None:
        """Set that weight."""
        self._reals[entry + _WEIGHT] = weight

    def address(self, entry: int, what: int) -> int:
        """Return the address of one number of an entry."""
        return self._memory.address + 8 * (entry + what)

    def enter(self, key: int, segment: Segment) -> int:
        """Show an arena, in place of the last one of this key; return its entry."""
        entry = self.entry(key)
        if entry is None:
            entry = self.entry(0)
        if entry is None:
            raise SpotmpiError(f"{_ENTRIES} arenas are shared already")
        self.clear(entry)
        self.write(entry, DESCRIPTOR, segment.descriptor)
        self.write(entry, MARK, segment.mark)
        self.write(entry, _KEY, key)
        return entry

    def clear(self, entry: int) -> None:
        """Show the arena no more."""
        self._numbers[entry : entry + _ENTRY] = 0


def key_of(*what: object) -> int:
    """Return the key, not 0, that stands for ``what`` in headers."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little") + 1
