"""A model that a worker shows to others, who read it at any time and wait for nobody.

Its memory holds two copies, which take turns, and three counts: publications begun, publications
complete, and the last one that was read by a worker that wanted it for itself. Publication n is
written over publication n - 2, while others can read n - 1.
A reader copies, and then looks if the writer has begun to overwrite that copy: if so, it tries
again. So the writer waits for no reader. A writer that is killed or stopped in the middle leaves
the publication before for all to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from spotmpi.arrays.backend import HOST, Buffer, backend_of, in_host_memory
from spotmpi.errors import SpotmpiError
from spotmpi.fabric.neighbours.shared_memory import PAGE, Found, Memory, Segment

__all__ = ["PublishedModel", "ModelForm", "counting"]

_BEGUN, _THERE, _FIRST, _TAKEN = 64, 128, 192, 256
"""Bytes of the first page at which the counts and the number of earlier publications lie."""

_LINE = 64
"""Bytes on whose multiples arrays begin."""

_TRIES = 4
"""Times that a reader tries. A try fails if the writer publishes twice during one copy."""


@dataclass(frozen=True)
class ModelForm:
    """The dtypes and sizes of a model's arrays."""

    arrays: tuple[tuple[str, int], ...]
    """The dtype and the size of each array."""

    @classmethod
    def of(cls, model: Sequence[Buffer]) -> ModelForm:
        """Return the form of these arrays."""
        described = (backend_of(array).describe(array) for array in model)
        return cls(tuple((dtype, size) for dtype, (size,) in described))

    @property
    def starts(self) -> list[int]:
        """The byte of a copy at which each array begins; and last, where the copy ends."""
        found = [0]
        for dtype, size in self.arrays:
            found.append(found[-1] + -(-_bytes(dtype, size) // _LINE) * _LINE)
        return found

    @property
    def bytes(self) -> int:
        """Bytes of a copy."""
        return self.starts[-1]

    def room(self) -> Buffer:
        """Return memory for a copy, as bytes."""
        return HOST.zeros("uint8", self.bytes)

    def arrays_in(self, room: Buffer) -> list[Buffer]:
        """Return the arrays of the copy in ``room``."""
        return [
            room[start : start + _bytes(dtype, size)].view(dtype)
            for (dtype, size), start in zip(self.arrays, self.starts, strict=False)
        ]


class PublishedModel:
    """The published model of one worker, as it sees it or as another one does."""

    def __init__(self, form: ModelForm, segment: Segment, first: int | None = None) -> None:
        """Map the one in ``segment``. ``first``: given for a new one of this worker's; how many
        publications this worker had before."""
        self.form = form
        self.segment = segment
        memory = Memory(_length(form), segment)
        self._begun, self._there = memory.address + _BEGUN, memory.address + _THERE
        self._taken = memory.address + _TAKEN
        size = form.bytes
        self._copies = [memory.array("uint8", size, PAGE + copy * size) for copy in range(2)]
        self._targets = [form.arrays_in(copy) for copy in self._copies]
        numbers = memory.array("uint64", PAGE // 8)
        if first is not None:
            numbers[_FIRST // 8] = first
        self._first = int(numbers[_FIRST // 8])
        self._published = 0
        self._loops = counting()

    @classmethod
    def new(cls, form: ModelForm, first: int) -> PublishedModel:
        """Return a new one of this worker's. Raises SpotmpiError if there is no memory for it."""
        try:
            return cls(form, Segment(_length(form)), first)
        except OSError as error:
            raise SpotmpiError(f"no memory for models that others read: {error}") from error

    @classmethod
    def of(cls, found: Found, form: ModelForm) -> PublishedModel:
        """Return another worker's. OSError if it cannot be reached, or is of another form."""
        return cls(form, Segment.reach(found, _length(form)))

    @property
    def published(self) -> int:
        """How many publications this worker had, here and before."""
        return self._first + self._published

    def write(self, model: Sequence[Buffer]) -> None:
        """Publish these arrays. Never waits."""
        count = self._published + 1
        self._loops.announce(self._begun, count)
        for target, source in zip(self._targets[count % 2], model, strict=True):
            HOST.from_host(target, in_host_memory(source))
        self._loops.publish(self._there, count)
        self._published = count

    def read(self, room: Buffer, unread: bool = False) -> int | None:
        """Copy the last publication to ``room``; return how many the writer had published before.
        None if there is none yet, or if the writer was too fast. Never waits. ``unread``: None
        also if a reader that said ``unread`` has had this publication."""
        for _ in range(_TRIES):
            count = int(self._loops.look(self._there))
            if not count or (unread and self._loops.look(self._taken) >= count):
                return None
            room[...] = self._copies[count % 2]
            if self._loops.look(self._begun) < count + 2:
                if unread and not self._loops.claim(self._taken, count):
                    return None  # another reader was quicker
                return self._first + count - 1
        return None


def _bytes(dtype: str, size: int) -> int:
    found: int = HOST.zeros(dtype, 1).nbytes * size
    return found


def _length(form: ModelForm) -> int:
    return PAGE + 2 * form.bytes


def counting() -> SimpleNamespace:
    """Return the loops to write and read numbers that other processes read and write."""
    from spotmpi.fabric.neighbours import barrier_loops  # takes as long as Numba does

    return barrier_loops.compiled()
