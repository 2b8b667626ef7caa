"""Where a worker shows its model to others, who read it whenever they like and wait for nobody.

A board holds two copies, which take turns, and two counts: how many publications were begun, and
how many are there. Publication n is written over publication n - 2, while n - 1 can be read. Who
reads copies, and looks afterwards whether that copy was begun to be overwritten meanwhile: then it
tries again. So the writer waits for no reader, and one that is killed, or stopped, in the middle of
its writing leaves the publication before it for all to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from spotmpi.arrays.backend import HOST, Buffer, backend_of, in_host_memory
from spotmpi.errors import SpotmpiError
from spotmpi.fabric.planes.shared_memory import PAGE, Found, Memory, Segment

__all__ = ["PublishedModel", "ModelForm", "counting"]

_BEGUN, _THERE, _FIRST = 64, 128, 192
"""What lies where in the first page: the counts, and how many publications there were before."""

_LINE = 64
"""Bytes on which arrays begin."""

_TRIES = 4
"""A reader's. It is overtaken if the writer publishes twice while it copies once."""


@dataclass(frozen=True)
class ModelForm:
    """What a model is made of."""

    arrays: tuple[tuple[str, int], ...]
    """The dtype and the size of each."""

    @classmethod
    def of(cls, model: Sequence[Buffer]) -> ModelForm:
        """That of these arrays."""
        described = (backend_of(array).describe(array) for array in model)
        return cls(tuple((dtype, size) for dtype, (size,) in described))

    @property
    def starts(self) -> list[int]:
        """At which byte of a copy each array begins; and last, where the copy ends."""
        found = [0]
        for dtype, size in self.arrays:
            found.append(found[-1] + -(-_bytes(dtype, size) // _LINE) * _LINE)
        return found

    @property
    def bytes(self) -> int:
        """Of a copy."""
        return self.starts[-1]

    def room(self) -> Buffer:
        """Memory for a copy, as bytes."""
        return HOST.zeros("uint8", self.bytes)

    def arrays_in(self, room: Buffer) -> list[Buffer]:
        """The arrays of a copy that lies there."""
        return [
            room[start : start + _bytes(dtype, size)].view(dtype)
            for (dtype, size), start in zip(self.arrays, self.starts, strict=False)
        ]


class PublishedModel:
    """One worker's, as it sees it or as another one does."""

    def __init__(self, form: ModelForm, segment: Segment, first: int | None = None) -> None:
        """In ``segment``. ``first``: it is a new one of this worker's, who had published so often
        before."""
        self.form = form
        self.segment = segment
        memory = Memory(_length(form), segment)
        self._begun, self._there = memory.address + _BEGUN, memory.address + _THERE
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
        """This worker's. Raises SpotmpiError if there is no memory for it."""
        try:
            return cls(form, Segment(_length(form)), first)
        except OSError as error:
            raise SpotmpiError(f"no memory for models that others read: {error}") from error

    @classmethod
    def of(cls, found: Found, form: ModelForm) -> PublishedModel:
        """Another worker's. OSError if it cannot be reached, or is of another form."""
        return cls(form, Segment.reach(found, _length(form)))

    @property
    def published(self) -> int:
        """How often this worker has, on this board and before it."""
        return self._first + self._published

    def write(self, model: Sequence[Buffer]) -> None:
        """Publish these arrays. Never waits."""
        count = self._published + 1
        self._loops.announce(self._begun, count)
        for target, source in zip(self._targets[count % 2], model, strict=True):
            HOST.from_host(target, in_host_memory(source))
        self._loops.publish(self._there, count)
        self._published = count

    def read(self, room: Buffer) -> int | None:
        """Copy the last publication there; its number, or None if there is none yet, or if its
        writer was too fast. Never waits."""
        for _ in range(_TRIES):
            count = int(self._loops.look(self._there))
            if not count:
                return None
            room[...] = self._copies[count % 2]
            if self._loops.look(self._begun) < count + 2:
                return self._first + count - 1
        return None


def _bytes(dtype: str, size: int) -> int:
    found: int = HOST.zeros(dtype, 1).nbytes * size
    return found


def _length(form: ModelForm) -> int:
    return PAGE + 2 * form.bytes


def counting() -> SimpleNamespace:
    """Loops that write and read numbers which others read and write."""
    from spotmpi.fabric.planes import barrier_loops  # takes as long as Numba does

    return barrier_loops.compiled()
