"""The memory of one worker's rounds: which arenas the open round is made of, and the last one was.

A round of the model's size carries a gradient's place, and a page while somebody learns; one that
brings the rest of a mean carries only that. The control word goes with each. All of it is local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotmpi.arrays.backend import fill
from spotmpi.fabric import Arena, Buffer, Part, Shape
from spotmpi.protocol import control_word, exact_means
from spotmpi.training.teaching import Teaching

ROOM = 4
"""Numbers of which a mean is asked that go beside a control word; the others go one round later."""
_BESIDE = ROOM * exact_means.WORDS

ArenaOf = Callable[[Sequence[Shape]], Arena]


class RoundMemory:
    """Arenas, and their turns."""

    def __init__(self, arena_of: ArenaOf, data: Arena, school: Teaching) -> None:
        self._arena_of = arena_of
        self._data = data
        self._school = school
        self._open: Sequence[Arena] = ()
        self._last: Sequence[Arena] = ()
        self._word = arena_of([Shape("float64", control_word.WORDS + _BESIDE)])
        self._rest: Arena | None = None

    @property
    def parts(self) -> list[Part]:
        """The open round's data."""
        return [part for arena in self._open for part in arena.parts]

    @property
    def word(self) -> Part:
        """The control word, and numbers of which a mean is asked."""
        return self._word.parts[0]

    @property
    def in_place(self) -> bool:
        """As the data plane has it."""
        return any(arena.in_place for arena in (*self._open, *self._last))

    @property
    def record(self) -> list[Buffer]:
        """The results of the round committed last."""
        return [flat for arena in (*self._last, self._word) for flat in arena.record]

    @property
    def room(self) -> list[Buffer]:
        """Room for another's record."""
        return [flat for arena in (*self._last, self._word) for flat in arena.results]

    def open(self) -> None:
        """The next round begins."""
        self._school.open()
        self._open = (self._rest or self._data, *self._school.arena)

    def bring_nothing(self) -> None:
        """Nothing to add to the open round's sums."""
        for arena in self._open:
            fill(arena.contributions, 0)

    def turn(self) -> None:
        """The open round is committed: it is the last one now."""
        for arena in (*self._open, self._word):
            arena.turn()
        self._last = self._open

    # The control word, and numbers beside it.

    def speak(self, word: control_word.ControlWord, numbers: Buffer = ()) -> None:
        """Write both: of the ``numbers``, as `exact_means` encodes them, those that have room."""
        flat = self._word.contributions[0]
        beside = numbers[:_BESIDE]
        flat[control_word.WORDS + len(beside) :] = 0
        if len(beside):
            flat[control_word.WORDS : control_word.WORDS + len(beside)] = beside
        flat[: control_word.WORDS] = word.encode()

    def heard(self, workers: int) -> control_word.ControlSum:
        """The sum of the last round's control words."""
        return control_word.total(self._word.record[0][: control_word.WORDS], workers)

    # The rest of a mean.

    @property
    def rest(self) -> int:
        """Words that go alone with the open round, or the next one; 0 if the model's size does."""
        return 0 if self._rest is None else len(self._rest.record[0])

    @property
    def alone(self) -> Arena:
        """What goes alone with the open round, or the next one, or went with the last one."""
        assert self._rest is not None
        return self._rest

    def expect(self, shape: Shape | None) -> None:
        """The next round carries this and nothing else; None: it is a usual one."""
        self._rest = None if shape is None else self._arena_of([shape])

    def expect_rest(self, words: int) -> None:
        """The next round carries so many words of numbers, if any, and nothing else."""
        self.expect(Shape("float64", words) if words else None)

    def follow(self, word: control_word.ControlSum) -> None:
        """After a round with this word: does the rest of a mean come next?"""
        first_of_mean = word.kind == control_word.MEAN and self._rest is None
        self.expect_rest(max(0, word.numbers - ROOM) * exact_means.WORDS if first_of_mean else 0)

    def bring_rest(self, numbers: Buffer) -> None:
        """Those of all the ``numbers`` that had no room beside the word."""
        assert self._rest is not None
        self._rest.contributions[0][...] = numbers[_BESIDE:]

    def means(self, count: int, workers: int) -> list[float]:
        """What the last round carried of a mean of so many numbers."""
        if self._rest is not None:
            return exact_means.decode(self._rest.record[0], workers)
        beside = min(count, ROOM) * exact_means.WORDS
        return exact_means.decode(self._word.record[0][control_word.WORDS :][:beside], workers)
