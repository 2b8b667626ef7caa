"""Sums without locks: memory of a host to which several workers add at any time.

The memory holds two sums, which take turns by rounds, and the numbers of their rounds. A worker
that adds for the first time in a round sets the next round's sum to zero. Nobody adds to that
memory any more for the round before, for all are done with it, and nobody adds for the next round
yet. So several workers may do this, at any time of the round, and not all need to.

Each worker shows in its header (`SharedHeader`) the memory to which it adds. All use the memory of
the first member that shows some with a sum of this round. A worker that finds none makes it. So
there may be several for a moment, until all have looked again: a worker that changes memory takes
its part out of one and puts it into the other. All users keep it open, so it outlives its maker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spotmpi.arrays.backend import HOST, Buffer, backend_of, fill, in_host_memory
from spotmpi.errors import SpotmpiError
from spotmpi.fabric.neighbours.published_model import ModelForm, counting
from spotmpi.fabric.neighbours.shared_header import Entry, SharedHeader, key_of
from spotmpi.fabric.neighbours.shared_memory import PAGE, Memory, Segment
from spotmpi.protocol.membership import WorkerId

__all__ = ["AddUp", "CommonSums"]

_ROUNDS = 64
"""Where the numbers of the two sums' rounds begin in the first page, a cache line each. The number
is one more than the round; 0: no round."""

_SETS = 2


@dataclass(frozen=True)
class AddUp:
    """Add ``part`` to a sum of this worker and its neighbours, and copy that sum to ``total``.

    ``part`` replaces what this worker had in the sum before. ``total`` gets the sum as it is at
    that moment. Local; waits for nobody.

    Replies how many of the workers ``among`` make up the sum: this one and its neighbours, which
    share memory with it. If this worker is the only one, nothing is done.

    There are no locks: all add to the same memory, element by element, at any time. If two workers
    add to an element at once, one addition may be lost, and ``total`` may hold part of what is
    being added. What a worker has in the sum stays there when it dies; if it dies while it adds,
    some elements have it and others do not. So use the sum for nothing that must be right. Each
    ``round`` has a sum of its own, which begins with zeros: no worker comes to a round before all
    are done with the round before.
    """

    part: Sequence[Buffer]
    total: Sequence[Buffer]
    """Arrays of the same dtypes and sizes."""
    round: int
    among: Sequence[WorkerId]


class _Sums:
    """The memory of the two sums, as one worker sees it."""

    def __init__(self, form: ModelForm, segment: Segment) -> None:
        self.segment = segment
        memory = Memory(_length(form), segment)
        self._rounds = [memory.address + _ROUNDS * (1 + turn) for turn in range(_SETS)]
        self._sums = [
            form.arrays_in(memory.array("uint8", form.bytes, PAGE + turn * form.bytes))
            for turn in range(_SETS)
        ]
        self._loops = counting()

    @classmethod
    def new(cls, form: ModelForm, number: int) -> _Sums:
        """Return new memory, with empty sums of this round and of the next. Raises SpotmpiError if
        there is no memory."""
        try:
            made = cls(form, Segment(_length(form)))
        except OSError as error:
            raise SpotmpiError(f"no memory for a model that workers share: {error}") from error
        for one in (number, number + 1):
            made.begin(one)
        return made

    def of(self, number: int) -> list[Buffer] | None:
        """Return the sum of this round; None if there is none here."""
        turn = number % _SETS
        known = int(self._loops.look(self._rounds[turn]))
        return self._sums[turn] if known == number + 1 else None

    def begin(self, number: int) -> None:
        """Set the sum of this round, which has not begun yet, to zero."""
        turn = number % _SETS
        fill(self._sums[turn], 0)
        self._loops.publish(self._rounds[turn], number + 1)


class CommonSums:
    """One worker's part in the sums without locks."""

    def __init__(self, header: SharedHeader) -> None:
        self._header = header
        self._entry: Entry | None = None
        """The entry of its memory in its header."""
        self._form: ModelForm | None = None
        self._used: _Sums | None = None
        self._round = -1
        self._within: list[Buffer] = []
        """What this worker has in the sum of `_round`."""

    def add(
        self,
        part: Sequence[Buffer],
        total: Sequence[Buffer],
        number: int,
        headers: Sequence[SharedHeader],
    ) -> None:
        """Put ``part`` into the sum of round ``number``, in place of what this worker had there,
        and copy the sum to ``total``. ``headers``: of all workers that may add, this one too."""
        form = ModelForm.of(part)
        if form != self._form:
            self.leave()
            self._form = form
            self._within = [HOST.zeros(*one) for one in form.arrays]
        sums = self._use(form, number, headers)
        for target, one, within, source in zip(total, sums, self._within, part, strict=True):
            _replace(one, within, in_host_memory(source))
            backend_of(target).from_host(target, one)

    def leave(self) -> None:
        """Forget what was added, and show no memory to others any more."""
        if self._entry is not None:
            self._entry.clear()
        self._entry = self._used = self._form = None
        self._round = -1

    def _use(self, form: ModelForm, number: int, headers: Sequence[SharedHeader]) -> list[Buffer]:
        """Return the sum of this round that all use; `_within` is what this worker has in it."""
        key = key_of("a common sum", form.arrays)
        found = next((one for one in self._shown(form, key, headers) if one.of(number)), None)
        used = found or _Sums.new(form, number)
        if used is not self._used or number != self._round:
            if number == self._round and self._used is not None:
                self._take_out()
            fill(self._within, 0)
            used.begin(number + 1)
            self._round = number
        if used is not self._used:
            self._used = used
            self._entry = self._header.enter(key, used.segment)
        sums = used.of(number)
        assert sums is not None
        return sums

    def _shown(self, form: ModelForm, key: int, headers: Sequence[SharedHeader]) -> Iterator[_Sums]:
        """Yield the memory that these headers show, where it can be reached."""
        for header in headers:
            if (entry := header.entry(key)) is None:
                continue
            there = entry.segment()
            if self._used is not None and there.mark == self._used.segment.mark:
                yield self._used
                continue
            try:
                yield _Sums(form, Segment.reach(there, _length(form)))
            except OSError:  # the memory is gone, or its entry is being changed
                continue

    def _take_out(self) -> None:
        assert self._used is not None
        if (sums := self._used.of(self._round)) is not None:
            for one, within in zip(sums, self._within, strict=True):
                HOST.kernels.blend(one, within, -1.0, 1.0)


def _replace(one: Buffer, within: Buffer, part: Buffer) -> None:
    """Put ``part`` into the sum ``one``, in place of ``within``; ``within`` becomes ``part``."""
    HOST.kernels.exchange(one, within, part)


def _length(form: ModelForm) -> int:
    return PAGE + _SETS * form.bytes
