"""What workers of a host know of each other: a page of numbers of each that all can read."""

from __future__ import annotations

import hashlib

from spotmpi.errors import SpotmpiError
from spotmpi.fabric.planes.shared_memory import PAGE, Found, Memory, Segment

__all__ = [
    "AIM",
    "DESCRIPTOR",
    "HOME",
    "HOME_MARK",
    "MARK",
    "OPEN",
    "STATE",
    "STATE_HOME",
    "STATE_MARK",
    "SharedHeader",
    "key_of",
]

_DESK = 2 * PAGE
_READY, _DONE, _BELL, _TABLE = 64, 128, 192, 1024
"""What lies where in a desk: how many parts its worker has started, how many it has summed, the
bell by which all sleep if it is the first of them, and its arenas."""

_ENTRY = 12
"""Numbers of an arena in that table; and what they are: ..."""
_KEY, DESCRIPTOR, MARK, OPEN, HOME, HOME_MARK, _WEIGHT = range(7)
"""... which arena it is, its segment, which of the two results there is the open round's, the
segment in which the results of all lie (its mark is 0 as long as this worker has not found it), the
weight of what is brought, ..."""
STATE, STATE_HOME, STATE_MARK, AIM = range(7, 11)
"""... which of two copies of the state is the one that counts, the segment in which they lie (its
mark is 0 as long as this worker's are its own), and by what sums go into the next state (0: they
do not)."""
_ENTRIES = (_DESK - _TABLE) // (8 * _ENTRY)


class SharedHeader:
    """What the others can read of one worker; it alone writes there."""

    def __init__(self, found: Found, segment: Segment) -> None:
        self.found = found
        self._segment = segment
        self._memory = Memory(_DESK, segment)
        self._numbers = self._memory.array("uint64", _DESK // 8)
        self._reals = self._memory.array("float64", _DESK // 8)
        base = self._memory.address
        self.ready, self.done, self.bell = base + _READY, base + _DONE, base + _BELL

    @classmethod
    def new(cls) -> SharedHeader:
        """This worker's."""
        segment = Segment(_DESK)
        return cls(segment.here, segment)

    @classmethod
    def of(cls, found: Found) -> SharedHeader:
        """Another worker's. OSError if it cannot be reached."""
        return cls(found, Segment.reach(found, _DESK))

    def entry(self, key: int) -> int | None:
        """Where the arena of this key is; None: it shares none of that."""
        for at in range(_TABLE // 8, _TABLE // 8 + _ENTRY * _ENTRIES, _ENTRY):
            if self._numbers[at + _KEY] == key:
                return at
        return None

    def read(self, entry: int, what: int) -> int:
        """One number of it."""
        return int(self._numbers[entry + what])

    def write(self, entry: int, what: int, number: int) -> None:
        """Set it."""
        self._numbers[entry + what] = number

    def weight(self, entry: int) -> float:
        """Of what is brought to the open round of that arena."""
        return float(self._reals[entry + _WEIGHT])

    def weigh(self, entry: int, weight: float) -> None:
        """Set it."""
        self._reals[entry + _WEIGHT] = weight

    def address(self, entry: int, what: int) -> int:
        """Where that number is."""
        return self._memory.address + 8 * (entry + what)

    def enter(self, key: int, segment: Segment) -> int:
        """Show an arena, in place of the last one of this key."""
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
        """Show it no more."""
        self._numbers[entry : entry + _ENTRY] = 0


def key_of(*what: object) -> int:
    """By which desks tell that from all others."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little") + 1
