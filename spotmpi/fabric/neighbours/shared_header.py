"""Headers: pages of numbers of each worker, which all workers of its host can read.

A worker shows pieces of its memory in its header: arenas, a published model, sums without locks.
Each has an entry there, by which others find it. Behind the entries lie two rows for small sums.
"""

from __future__ import annotations

import hashlib

from spotmpi.arrays.backend import Buffer
from spotmpi.errors import SpotmpiError
from spotmpi.fabric.neighbours.shared_memory import PAGE, Found, Memory, Segment

__all__ = [
    "HOME",
    "HOME_MARK",
    "OPEN",
    "ROW",
    "STATE",
    "STATE_HOME",
    "STATE_MARK",
    "UPDATE",
    "Entry",
    "SharedHeader",
    "key_of",
]

ROW = 128 << 10
"""Bytes of a row, which holds what a worker adds to small sums."""

_ROWS = 2 * PAGE
_BYTES = _ROWS + 2 * ROW
_READY, _DONE, _BELL, _BROUGHT, _TABLE = 64, 128, 192, 256, 1024
"""Bytes of a header at which these lie: how many parts its worker has started; how many it has
summed; the bell by which all sleep, if it is the first of them; the number of the last small sum
for which it has filled a row; the table of entries."""

_ENTRY = 12
"""Numbers of one entry."""
_KEY, _DESCRIPTOR, _MARK, OPEN, HOME, HOME_MARK, _WEIGHT = range(7)
"""Places of these numbers: the key; the segment (descriptor, mark); which of an arena's two results
is the open round's; the segment of all workers' results (descriptor, mark), whose mark is 0
until this worker has found it; the weight of this worker's contributions."""
STATE, STATE_HOME, STATE_MARK, UPDATE, _ONLY = range(7, _ENTRY)
"""Places of more of these numbers: which of two copies of the state counts; the segment in which
they lie (descriptor, mark), whose mark is 0 while this worker's are its own; the mark of the update
by which sums go into the next state, or 0; one more than the number of the only array to whose sum
the worker adds something, or 0 if it does so to all."""
_ENTRIES = (_ROWS - _TABLE) // (8 * _ENTRY)


class Entry:
    """What a worker shows of one piece of its memory: some numbers in its header."""

    def __init__(self, header: SharedHeader, at: int) -> None:
        self._process = header.found.process
        self._numbers = header.numbers[at : at + _ENTRY]
        self._reals = self._numbers.view("float64")
        self._address = header.address + 8 * at

    def read(self, what: int) -> int:
        """Return one number."""
        return int(self._numbers[what])

    def write(self, what: int, number: int) -> None:
        """Set one number."""
        self._numbers[what] = number

    def segment(self, descriptor: int = _DESCRIPTOR, mark: int = _MARK) -> Found:
        """Return how to find the segment whose descriptor and mark are these two numbers."""
        return Found(self._process, self.read(descriptor), self.read(mark))

    @property
    def weight(self) -> float:
        """The weight of the worker's contributions to the open round of the arena."""
        return float(self._reals[_WEIGHT])

    @weight.setter
    def weight(self, weight: float) -> None:
        self._reals[_WEIGHT] = weight

    @property
    def only(self) -> int | None:
        """The one array of the arena to whose sum the worker adds something; None: to all."""
        return self.read(_ONLY) - 1 if self.read(_ONLY) else None

    @only.setter
    def only(self, number: int | None) -> None:
        self.write(_ONLY, 0 if number is None else 1 + number)

    def weight_in(self, number: int) -> float:
        """Return the weight of the worker's contribution to the sum of the array of this number."""
        return self.weight if self.only in (None, number) else 0.0

    def address(self, what: int) -> int:
        """Return the address of one number."""
        return self._address + 8 * what

    def clear(self) -> None:
        """Show the memory no more."""
        self._numbers[:] = 0


class SharedHeader:
    """The header of one worker: only it writes there, and its neighbours (workers of its host) read
    it."""

    def __init__(self, found: Found, segment: Segment) -> None:
        self.found = found
        self._segment = segment
        self._memory = Memory(_BYTES, segment)
        self.numbers = self._memory.array("uint64", _ROWS // 8)
        self.address = base = self._memory.address
        self.ready, self.done, self.bell = base + _READY, base + _DONE, base + _BELL
        self.brought = base + _BROUGHT

    @classmethod
    def new(cls) -> SharedHeader:
        """Return a new header of this worker's."""
        segment = Segment(_BYTES)
        return cls(segment.here, segment)

    @classmethod
    def of(cls, found: Found) -> SharedHeader:
        """Return another worker's header. OSError if it cannot be reached."""
        return cls(found, Segment.reach(found, _BYTES))

    def row(self, turn: int) -> Buffer:
        """Return the bytes of the row of this turn, 0 or 1."""
        return self._memory.array("uint8", ROW, _ROWS + turn * ROW)

    def entry(self, key: int) -> Entry | None:
        """Return the entry of this key; None if the worker shows nothing by this key."""
        for at in range(_TABLE // 8, _TABLE // 8 + _ENTRY * _ENTRIES, _ENTRY):
            if self.numbers[at + _KEY] == key:
                return Entry(self, at)
        return None

    def enter(self, key: int, segment: Segment) -> Entry:
        """Show a segment, in place of the last one of this key; return its entry."""
        entry = self.entry(key) or self.entry(0)
        if entry is None:
            raise SpotmpiError(f"{_ENTRIES} arenas are shared already")
        entry.clear()
        entry.write(_DESCRIPTOR, segment.descriptor)
        entry.write(_MARK, segment.mark)
        entry.write(_KEY, key)
        return entry


def key_of(*what: object) -> int:
    """Return the key, not 0, that stands for ``what`` in headers."""
    digest = hashlib.blake2b(repr(what).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little") + 1
