"""Rounds of any arrays: a class for each kind, with what a worker brings and what the result does.

A round is committed the same way on all workers, even after network failures, and even if another
worker gave the record. `Round.commit` finds the result in the memory's record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from zlib import crc32

from spotmpi.arrays.backend import Buffer
from spotmpi.arrays.word_view import WordView
from spotmpi.fabric import Shape
from spotmpi.protocol import control_word, exact_means
from spotmpi.protocol.boundary import LENGTH
from spotmpi.protocol.control_word import ControlSum
from spotmpi.protocol.ending import Ending
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.summand import GrowingSummand, Summand, Words

__all__ = [
    "BeginRound",
    "EndRound",
    "GatherRound",
    "MeanRound",
    "OnceRound",
    "Reached",
    "Round",
    "SumRound",
    "Summed",
    "Taken",
]


class Taken(NamedTuple):
    """The steps that are committed with a round."""

    first: int
    steps: int
    samples: int
    """Samples of these steps."""
    describe: Callable[[int, dict[str, Any]], dict[str, Any]]
    """Returns what the trace says of the n-th of them, given what is known of the round."""


class Round:
    """One round of this worker, from its opening to its commit."""

    kind: int | None
    """Kind in the control word; None on a worker that does not know what round it is."""

    obeys = True
    """True if orders of the launcher are taken while the round is prepared."""

    levels = True
    """True if all workers' models are equal after the round."""

    call = 0
    """Stands for what is asked for: a number of 32 bits."""
    about = ""
    """Says what that is."""

    def __init__(self, memory: RoundMemory) -> None:
        self.memory = memory

    @property
    def adds(self) -> int:
        """The number of steps that are committed with the round, and not counted here before."""
        return 0

    def bring(self) -> None:
        """Make this worker's contribution."""
        self.memory.bring_nothing()

    def check(self, first: int, last: int | None = None) -> None:
        """Check parts ``first`` to ``last``, which are about to start. Raises UsageError if this
        worker must not bring what is in them."""

    def prepare(self, membership: Membership, me: WorkerId) -> None:
        """Prepare for the start among these members."""

    @property
    def carries(self) -> bool:
        """True if the open round carries what this worker asks for."""
        return False

    def says(self) -> dict[str, Any]:
        """Return what only this round says in the control word, by `ControlWord`'s names."""
        return {}

    def page(self, full: Sequence[WorkerId]) -> dict[str, Any] | None:
        """Return what a newcomer needs to apply the result as all do; None: it needs nothing."""
        return None

    @property
    def graduates(self) -> bool:
        """True if a newcomer can be told all the rest with this round, and go on as if it had taken
        the others' last step."""
        return False

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Commit the round, to which all of ``full`` brought. Return its steps or None."""
        raise NotImplementedError

    def graduate(self, rest: Any, full: Sequence[WorkerId]) -> None:
        """Take all the rest: this worker has learnt with this round. ``full``: who knew already."""
        raise NotImplementedError


class BeginRound(Round):
    """The first round: all get what the first worker holds, as words that are added to zeros."""

    kind = control_word.MEAN
    obeys = False  # before it there are no common parameters to stop with

    def __init__(self, memory: RoundMemory, first: WordView) -> None:
        super().__init__(memory)
        self._first = first
        memory.expect(Shape(first.dtype, first.size))

    def prepare(self, membership: Membership, me: WorkerId) -> None:
        """Bring the words of the first member that remains, and zeros from the others."""
        self.bring()
        if membership.ids[0] == me:
            self._first.read(0, self.memory.alone.contributions[0])

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Take the first worker's words: all hold the same now."""
        self._first.write(0, self.memory.alone.record[0])
        return None


class MeanRound(Round):
    """One or two rounds: the first says how many numbers a mean is asked of. It carries them if a
    mean of this many was expected; else the second one does.

    Only the first may have the size that a worker expects that takes a step by mistake.
    """

    kind = control_word.MEAN

    def __init__(self, memory: RoundMemory, x: Any) -> None:
        super().__init__(memory)
        flat = exact_means.numbers_of(x)
        self._numbers, self._asked = exact_means.encode(flat), len(flat)
        self.answer: list[float] | None = None

    def bring(self) -> None:
        """Bring the numbers, if the round carries them."""
        super().bring()
        if self.carries:
            self.memory.alone.contributions[0][...] = self._numbers

    def says(self) -> dict[str, Any]:
        """Return how many numbers there are."""
        return {"numbers": self._asked}

    @property
    def carries(self) -> bool:
        """True if the open round carries the numbers."""
        return self.memory.carries(self.kind, len(self._numbers))

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Note the answer, if this round has carried the numbers."""
        word.check_numbers(self._asked, number)
        if self.memory.payload is not None:
            self.answer = exact_means.decode(self.memory.alone.record[0], len(full))
        return None


class OnceRound(Round):
    """Rounds until all have a value that one worker computes for them.

    The first says that all wait for the value. Then come rounds that carry nothing, until a worker
    has the value and says how large it is. The last one carries it. If the worker that had the
    value is lost, the next one computes another.
    """

    kind = control_word.ONCE

    def __init__(self, memory: RoundMemory) -> None:
        super().__init__(memory)
        self.mine: bytes | None = None
        """The value, packed, if this worker has it."""
        self.answer: bytes | None = None

    def bring(self) -> None:
        """Bring the value, if it is due and this worker has it."""
        if self.mine is not None and self.carries:
            self.memory.alone.contributions[0][:] = memoryview(self.mine)
        else:
            super().bring()

    def says(self) -> dict[str, Any]:
        """Return how large the value is."""
        return {"numbers": 0 if self.mine is None else len(self.mine)}

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Take the value, if the worker that had it lived to bring it."""
        if self.carries and word.size:
            self.answer = self.memory.alone.record[0].tobytes()
        return None

    @property
    def carries(self) -> bool:
        """True if the open round, or the last one, carries a value."""
        payload = self.memory.payload
        return payload is not None and payload.kind == control_word.ONCE and payload.size > 0


class GatherRound(Round):
    """Up to three rounds until all have a value of each worker.

    The first says that all ask. Unless all values are of one length, the next one carries a table
    of their lengths. The last one carries the values, unless all are empty. A worker that is lost
    before that one is complete has no value in it.
    """

    kind = control_word.GATHER

    def __init__(self, memory: RoundMemory, mine: bytes, about: str = "") -> None:
        """``mine``: this worker's value. ``about``: says what for, alike on all workers."""
        super().__init__(memory)
        self._mine = mine
        self.about = about
        self.call = crc32(about.encode())
        self._places: dict[WorkerId, slice] = {}
        """Where each worker's value lies among all of them."""
        self.answer: dict[WorkerId, bytes] | None = None
        """The workers' values, in ring order."""

    def prepare(self, membership: Membership, me: WorkerId) -> None:
        """Bring what the round carries to this worker's place in it, and zeros elsewhere."""
        if (payload := self.memory.payload) is None:
            return
        self.bring()
        room = self.memory.alone.contributions[0]
        if payload.lengths:
            first = LENGTH * self.memory.transfer.full(membership.ids).index(me)
            room[first : first + LENGTH] = memoryview(len(self._mine).to_bytes(LENGTH, "little"))
        else:
            room[self._places[me]] = memoryview(self._mine)

    def says(self) -> dict[str, Any]:
        """Return how large this worker's value is."""
        return {"numbers": len(self._mine)}

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Take the lengths, or the values."""
        payload = self.memory.payload
        if not word.size and (payload is None or payload.lengths):
            self.answer = dict.fromkeys(full, b"")
            return None
        if payload is None:
            if word.alike:
                self._place(full, [len(self._mine)] * len(full))
            return None
        came = memoryview(self.memory.alone.record[0])
        if payload.lengths:
            table = (came[at : at + LENGTH] for at in range(0, LENGTH * len(full), LENGTH))
            self._place(full, [int.from_bytes(length, "little") for length in table])
        else:
            self.answer = {worker: bytes(came[self._places[worker]]) for worker in full}
        return None

    def _place(self, workers: Sequence[WorkerId], lengths: Sequence[int]) -> None:
        """Note where each of these workers' values lies. ``lengths``: theirs, in this order."""
        ends = pairwise(accumulate(lengths, initial=0))
        self._places = {worker: slice(*at) for worker, at in zip(workers, ends, strict=True)}


class Summed(NamedTuple):
    """The sum of what workers have brought."""

    total: Any
    """Arrays; in a round's answer the parts of the flat array, which stay as they are until the
    next round."""
    workers: tuple[WorkerId, ...]
    """The workers that it is of, in ring order."""


class SumRound(Round):
    """One or two rounds until all have the sum of an array of each worker.

    The first says that all ask for it, and that they mean the same. It carries the arrays if such a
    call was expected; else the second one does. A worker that is lost before that one is complete
    is not in it.
    """

    def __init__(
        self,
        memory: RoundMemory,
        mine: Summand | GrowingSummand | Words,
        step: Callable[[], Taken] | None = None,
    ) -> None:
        """``mine``: what this worker brings. ``step``: counts the step that the sum stands for;
        None: it stands for none."""
        super().__init__(memory)
        self.kind = mine.kind
        self._mine = mine
        self.call, self.about = mine.call, str(mine)
        self._step = step
        self.answer: Summed | None = None

    @property
    def adds(self) -> int:
        """One step with the round that carries the array, if the sum stands for one."""
        return int(self._step is not None and self.carries)

    def bring(self) -> None:
        """Bring the array, if there is one and the round carries it."""
        if self.memory.payload is None or not self._mine.brings:
            super().bring()
        if self.carries and self._mine.brings:
            self.memory.alone.weight = 1.0
            self._mine.pack(self.room)

    @property
    def room(self) -> Sequence[Buffer]:
        """The parts of the flat array that this worker brings, in as few arrays as possible."""
        return self._mine.backend.joined(self.memory.alone.contributions)

    def give_up(self) -> None:
        """Say that this worker does not bring what all have asked for: the answer is rubbish. All
        say so, or all raise ReplicaMismatch."""
        self.call, self.about = ~self._mine.call & 0xFFFFFFFF, f"no more of {self._mine}"
        self._step = None

    def says(self) -> dict[str, Any]:
        """Return how many numbers there are."""
        return {"numbers": self._mine.bucket.size}

    @property
    def carries(self) -> bool:
        """True if the open round carries the array, and all of it is there."""
        if self.memory.payload is None and isinstance(self._mine, GrowingSummand):
            return False
        return self.memory.carries(self._mine.kind, self._mine.bucket.size)

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Take the sum, if this round has carried the array."""
        if self.memory.payload is None:
            return None
        self.answer = Summed(self._total(len(full)), tuple(full))
        return None if self._step is None else self._step()

    def _total(self, workers: int) -> Sequence[Buffer]:
        """Return what this number of workers has brought."""
        return self._mine.backend.joined(self.memory.alone.record)


Reached = Callable[[ControlSum], None]
"""Called when all have come to the end, with the sum of their control words."""


class EndRound(Round):
    """All have come to the end: nothing is brought. The last round is one, as may be some
    before."""

    kind = control_word.END

    def __init__(self, memory: RoundMemory, reached: Reached, ending: Ending) -> None:
        super().__init__(memory)
        self._reached, self._ending = reached, ending

    def says(self) -> dict[str, Any]:
        """Return 1 if this worker's script is at its end, and 0 if it stops."""
        return {"numbers": int(self._ending.finishes)}

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Call `reached`: all have come to the end."""
        self._reached(word)
        return None
