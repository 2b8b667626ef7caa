"""The memory of one worker's rounds: the arenas of the open round, and those of the last one.

A round of the model's size carries the arena of a gradient, and a page while a worker learns. A
round for the numbers of a mean, or for the value of a `once`, carries only those. A round in which
all wait for such a value carries nothing. The control word goes with each. All is local.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.fabric import Arena, Between, Buffer, Part, Shape
from spotmpi.protocol import control_word, gradient_noise, paces
from spotmpi.protocol.boundary import Payload
from spotmpi.protocol.gradient_noise import Lengths
from spotmpi.protocol.host_ring import RING
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.paces import Pace
from spotmpi.training.replica import Replica
from spotmpi.training.state_transfer import StateTransfer

ArenaOf = Callable[..., Arena]
"""Makes an arena, as `Fabric.arena` does."""


class RoundMemory:
    """The arenas of a worker's rounds: the open one, which `turn` makes the last one."""

    def __init__(self, arena_of: ArenaOf, replica: Replica[Any], school: StateTransfer) -> None:
        """``replica``: its arena goes with rounds of steps."""
        self._arena_of = arena_of
        self._replica = replica
        self._school = school
        self._open: Sequence[Arena] = ()
        self._last: Sequence[Arena] = ()
        self._word = arena_of([Shape("float64", control_word.WORDS)], "word")
        self._table: Arena | None = None
        """Table in which workers tell their pace; None if no strategy here is paced. It is there
        from the beginning, so that nobody waits for it when all change to such a strategy."""
        if any(strategy.asynchronous for strategy in replica.strategies):
            self._table = arena_of([Shape("float64", paces.WORDS)], "paces")
        self._survey: Arena | None = None
        """Table in which workers tell how they do, every few steps, with any strategy."""
        self._surveys = False
        """True if that table goes with the open round, or went with the last one."""
        self.payload: Payload | None = None
        """What goes alone with the open round, or the next; None: it carries the model's size."""
        self._alone: Arena | None = None

    @property
    def parts(self) -> list[Part]:
        """The parts of the open round, without the control word."""
        return [part for arena in self._open for part in arena.parts]

    @property
    def data(self) -> list[Part]:
        """The parts of the first arena of the last round, which was one of steps."""
        return self._last[0].parts

    def way(self, found: Between) -> dict[str, Any]:
        """Return for the trace how these parts were summed between hosts."""
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
        """True if a worker learns from the open round, by its sums."""
        return self._school.teaching

    def full(self, workers: Sequence[WorkerId]) -> Sequence[WorkerId]:
        """Return those of ``workers`` that do not learn."""
        return self._school.full(workers)

    @property
    def in_place(self) -> bool:
        """True if one of its arenas sums in place."""
        return any(arena.in_place for arena in (*self._open, *self._last))

    @property
    def record(self) -> list[Buffer]:
        """The results of the round committed last."""
        return [flat for arena in (*self._last, self._word) for flat in arena.record]

    @property
    def room(self) -> list[Buffer]:
        """Memory for another worker's record."""
        return [flat for arena in (*self._last, self._word) for flat in arena.results]

    def open(self) -> None:
        """Begin the next round."""
        self._school.open()
        self.unfuse()
        self._surveys = self._alone is None and self._replica.surveys
        first = [] if self._alone is None else [self._alone]
        if self._alone is None:
            first = [self._replica.arena, *self._told, *self._surveyed]
        self._open = (*first, *self._school.arena)

    def unfuse(self) -> None:
        """Leave the open round's sums as they are: no update is fused with them."""
        self._replica.arena.unfuse()

    def bring_nothing(self) -> None:
        """Bring nothing to the open round's sums."""
        for arena in self._open:
            arena.bring_nothing()

    def turn(self) -> None:
        """Commit the open round: it is the last one now."""
        for arena in (*self._open, self._word):
            arena.turn()
        self._last = self._open

    # The paces of workers.

    @property
    def _told(self) -> list[Arena]:
        if self._table is None or not self._replica.strategy.asynchronous:
            return []
        return [self._table]

    def tell(self, pace: Pace | None, place: int) -> None:
        """Bring the pace to the open round, if it tells paces. ``place`` < 0: there is none."""
        for table in self._told:
            table.weight = 1.0
            paces.write(table.contributions[0], place, pace if place >= 0 else None)

    @property
    def told(self) -> list[Pace] | None:
        """Paces of all from the last round, which was one of steps; None if none are told."""
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
        """Bring how this worker does, if the open round asks. No two workers have one place."""
        for table in self._surveyed:
            table.weight = 1.0
            does, knows = table.contributions
            paces.write(does, place, pace)
            gradient_noise.write(knows, place, pace.worker, lengths)

    @property
    def surveyed(self) -> tuple[list[Pace], list[Lengths]] | None:
        """How all do, and what they know of gradients; None if the last round did not ask."""
        for table in self._surveyed:
            return paces.read(table.record[0]), gradient_noise.read(table.record[1])
        return None

    # The control word.

    def speak(self, word: control_word.ControlWord) -> None:
        """Write the control word."""
        self._word.contributions[0][:] = word.encode()

    def heard(self, workers: int) -> control_word.ControlSum:
        """Return the sum of the last round's control words."""
        return control_word.total(self._word.record[0], workers)

    # Rounds that carry one array alone, or none.

    @property
    def numbers(self) -> int:
        """Words that go alone with the open round, or the next; 0: it carries the model's size."""
        return 0 if self.payload is None else self.payload.size

    @property
    def alone(self) -> Arena:
        """What goes alone with the open round, or the next one, or went with the last one."""
        assert self._alone is not None
        return self._alone

    @property
    def answering(self) -> bool:
        """True if the next round belongs to the same call of `once` as the last one."""
        return self.payload is not None and self.payload.kind == control_word.ONCE

    def expect(self, shape: Shape) -> None:
        """Make the next round carry this shape and nothing else, for all to read."""
        self.payload = Payload(control_word.MEAN, shape.size)
        self._alone = self._arena_of([shape])

    def follow(self, payload: Payload | None) -> None:
        """Make the next round carry this and nothing else; None: the model's size."""
        self.payload, self._alone = payload, None
        if payload is not None:
            dtype = "float64" if payload.kind == control_word.MEAN else "uint8"
            self._alone = self._arena_of([Shape(dtype, payload.size)] * bool(payload.size))
