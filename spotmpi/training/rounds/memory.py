"""The memory of one worker's rounds: which arenas the open round is made of, and the last one was.

A round of the model's size carries a gradient's place, and a page while somebody learns. One that
carries the numbers of a mean, or the value of a `once`, carries only those, and one in which all
wait for such a value nothing at all. The control word goes with each. All is local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.fabric import Arena, Between, Buffer, Part, Shape
from spotmpi.protocol import control_word, exact_means, gradient_noise, paces
from spotmpi.protocol.gradient_noise import Lengths
from spotmpi.protocol.host_ring import RING
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.training.replica import Replica
from spotmpi.training.state_transfer import StateTransfer

ArenaOf = Callable[..., Arena]
"""As `Fabric.arena`."""


class RoundMemory:
    """Arenas, and their turns."""

    def __init__(self, arena_of: ArenaOf, replica: Replica[Any], school: StateTransfer) -> None:
        """``replica``: its arena goes in the round of steps to come."""
        self._arena_of = arena_of
        self._replica = replica
        self._school = school
        self._open: Sequence[Arena] = ()
        self._last: Sequence[Arena] = ()
        self._word = arena_of([Shape("float64", control_word.WORDS)], "word")
        self._table: Arena | None = None
        """Of what workers tell of their pace, if they may ever have each its own: there from the
        beginning, so that nobody waits for it where all change to such a strategy."""
        if any(strategy.paced for strategy in replica.strategies):
            self._table = arena_of([Shape("float64", paces.WORDS)], "paces")
        self._survey: Arena | None = None
        """Of what they tell now and then, whatever the strategy."""
        self._surveys = False
        """It goes with the open round, or went with the last one."""
        self._alone: Arena | None = None
        self._answering = False

    @property
    def parts(self) -> list[Part]:
        """The open round's data."""
        return [part for arena in self._open for part in arena.parts]

    @property
    def data(self) -> list[Part]:
        """What went in the last round, which was one of steps."""
        return self._last[0].parts

    def way(self, found: Between) -> dict[str, Any]:
        """For the trace: how these parts were summed between hosts."""
        known: dict[str, Any] = {"hosts": found.hosts, "ways": found.ways}
        for part, way in zip(self.data, found.ways, strict=True):
            if part.narrowing is not None and way == RING:
                known["narrow"] = part.narrowing.form
        return known

    @property
    def word(self) -> Part:
        """The control word."""
        return self._word.parts[0]

    @property
    def teaches(self) -> bool:
        """Somebody learns from the open round, by its sums."""
        return self._school.teaching

    def full(self, workers: Sequence[WorkerId]) -> Sequence[WorkerId]:
        """Those of ``workers`` who do not learn."""
        return self._school.full(workers)

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
        self.unfuse()
        self._surveys = self._alone is None and self._replica.surveys
        first = [] if self._alone is None else [self._alone]
        if self._alone is None:
            first = [self._replica.arena, *self._told, *self._surveyed]
        self._open = (*first, *self._school.arena)

    def unfuse(self) -> None:
        """The open round's sums are to be left as they are."""
        self._replica.arena.unfuse()

    def bring_nothing(self) -> None:
        """Nothing to add to the open round's sums."""
        for arena in self._open:
            arena.bring_nothing()

    def turn(self) -> None:
        """The open round is committed: it is the last one now."""
        for arena in (*self._open, self._word):
            arena.turn()
        self._last = self._open

    # The paces of workers.

    @property
    def _told(self) -> list[Arena]:
        if self._table is None or not self._replica.strategy.paced:
            return []
        return [self._table]

    def tell(self, pace: Pace | None, place: int) -> None:
        """Bring it to the open round, where that is told. A negative place: there is none."""
        for table in self._told:
            table.weight = 1.0
            paces.write(table.contributions[0], place, pace if place >= 0 else None)

    @property
    def told(self) -> list[Pace] | None:
        """What all have told in the last round, which was one of steps; None where nothing is."""
        return next((paces.read(table.record[0]) for table in self._told), None)

    @property
    def _surveyed(self) -> list[Arena]:
        if not self._surveys:
            return []
        if self._survey is None:
            sizes = paces.WORDS, gradient_noise.WORDS
            self._survey = self._arena_of([Shape("float64", size) for size in sizes], "survey")
        return [self._survey]

    def answer(self, pace: Pace, lengths: Lengths | None, place: int) -> None:
        """Bring to the open round how this worker does, if that is asked. No two have one place."""
        for table in self._surveyed:
            table.weight = 1.0
            does, knows = table.contributions
            paces.write(does, place, pace)
            gradient_noise.write(knows, place, pace.worker, lengths)

    @property
    def surveyed(self) -> tuple[list[Pace], list[Lengths]] | None:
        """How all do, and what they know of gradients, if it was asked with the last round."""
        for table in self._surveyed:
            return paces.read(table.record[0]), gradient_noise.read(table.record[1])
        return None

    # The control word.

    def speak(self, word: control_word.ControlWord) -> None:
        """Write it."""
        self._word.contributions[0][:] = word.encode()

    def heard(self, workers: int) -> control_word.ControlSum:
        """The sum of the last round's control words."""
        return control_word.total(self._word.record[0], workers)

    # Rounds that carry one array alone, or none.

    @property
    def numbers(self) -> int:
        """Words that go alone with the open round, or the next one; 0 if the model's size does."""
        return 0 if self._alone is None else sum(len(flat) for flat in self._alone.record)

    @property
    def alone(self) -> Arena:
        """What goes alone with the open round, or the next one, or went with the last one."""
        assert self._alone is not None
        return self._alone

    @property
    def answering(self) -> bool:
        """The next round belongs to the call of `once` that the last one belonged to."""
        return self._answering

    def expect(self, *shapes: Shape) -> None:
        """The next round carries these and nothing else."""
        self._alone = self._arena_of(shapes)

    def expect_numbers(self, words: int) -> None:
        """The next round carries so many words of a mean's numbers, if any, and nothing else."""
        self._alone = None
        if words:
            self.expect(Shape("float64", words))

    def follow(self, word: control_word.ControlSum) -> None:
        """After a round with this word: does what was asked for come next?"""
        last, self._alone, self._answering = self._alone, None, False
        if word.kind == control_word.MEAN and last is None:
            self.expect_numbers(word.numbers * exact_means.WORDS)
        elif word.kind == control_word.ONCE and not (
            word.size and last is not None and last.record
        ):
            self._answering = True
            self.expect(*[Shape("uint8", word.size)] * bool(word.size))
