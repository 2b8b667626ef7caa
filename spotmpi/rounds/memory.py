"""The memory of one worker's rounds: the arenas of the open round, and those of the last one.

A usual round carries the arenas that its owner names. While a worker learns it carries a page too:
right behind the first arena, so that both may start early. A round for the numbers of a mean or a
sum, for the value of a `once`, or for what a `gather` brings, carries only that. A round in which
all wait for the value of a `once` carries nothing. The control word goes with each. All is local.

Scripts mostly make the same calls in each step. So what a small mean or sum needs goes along with
the usual round in which all are likely to ask for it. Who asks for that brings it at once. If all
bring it, they need no second round; else nobody looks at it.

Where each worker brings words of its own, large ones have an array for each worker, and so nobody
adds zeros to the others'. Small ones lie in one array, one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.arrays.backend import DEVICE, HOST
from spotmpi.arrays.flat_parts import cut
from spotmpi.arrays.word_view import WORDS_OF, WordView
from spotmpi.fabric import Arena, Between, Buffer, Fabric, Part, Shape
from spotmpi.protocol import control_word
from spotmpi.protocol.boundary import Boundary, Payload
from spotmpi.protocol.host_ring import RING
from spotmpi.protocol.likely_calls import LikelyCalls
from spotmpi.rounds.state_transfer import StateTransfer

_MOST_SUMS = 4
"""Most arenas of sums that are kept, and of what workers give each other, apart from them: else
small tensors of many sizes would drive out those of the gradients."""

_LEAST_OWN = 1 << 14
"""Fewest words of each worker for which these are arrays of their own. Between hosts each array
takes a time of its own."""

_LEAST_WORDS = 1 << 20
"""Fewest words of a part of a sum. Parts are so small that most of a gradient has left before its
last array is there. They are so large that all of them go in rings between hosts, and that the
fixed cost of a part counts little."""
_MOST_PARTS = 64
"""Most parts of a sum."""

_MOST_ALONG = 1 << 14
"""Most words that go along with a round in which they may not be asked for."""


def parts_of_sum(dtype: str, size: int) -> list[int]:
    """Return the sizes of the parts of a sum of ``size`` numbers of this type, in their order. They
    follow from that alone, as a newcomer that learns knows no more."""
    return cut(size, _LEAST_WORDS // WORDS_OF[dtype], _MOST_PARTS)


class RoundMemory:
    """The arenas of a worker's rounds: the open one, which `turn` makes the last one."""

    def __init__(
        self, fabric: Fabric, usual: Callable[[], Sequence[Arena]], transfer: StateTransfer
    ) -> None:
        """``usual``: returns the arenas of the next round, if it is a usual one. ``transfer``: its
        page goes with the round, while a worker learns."""
        self._fabric = fabric
        self._usual = usual
        self.transfer = transfer
        """The pages from which newcomers learn."""
        self._open: Sequence[Arena] = ()
        self._last: Sequence[Arena] = ()
        self._word = fabric.arena([Shape("float64", control_word.WORDS)], "word")
        self.payload: Payload | None = None
        """What goes alone with the open round, or the next; None: it carries the model's size. From
        `hear` to `follow`: what the round has carried that workers had asked for."""
        self._along: Payload | None = None
        """What goes along with the model's size."""
        self._calls = LikelyCalls()
        self._alone: Arena | None = None
        """The arena of either."""
        self._sums: dict[Payload, Arena] = {}
        """The arenas of the last sums: a script mostly asks for the same ones again."""

    @property
    def parts(self) -> list[Part]:
        """The parts of the open round, without the control word."""
        return [part for arena in self._open for part in arena.parts]

    @property
    def data(self) -> list[Part]:
        """The parts of what the last round has summed for a step."""
        return (self._last[0] if self.payload is None else self.alone).parts

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
        self.transfer.open()
        alone = () if self._alone is None else (self._alone,)
        arenas = alone if self.payload is not None else (*self._usual(), *alone)
        self._open = (*arenas[:1], *self.transfer.arena, *arenas[1:])
        if self._along is not None:
            self.alone.bring_nothing()  # a step brings nothing to it, and it may be summed in place
        self.unfuse()

    def unfuse(self) -> None:
        """Leave the open round's sums as they are: no update is fused with them."""
        for arena in self._open:
            arena.unfuse()

    def bring_nothing(self) -> None:
        """Bring nothing to the open round's sums."""
        for arena in self._open:
            arena.bring_nothing()

    def turn(self) -> None:
        """Commit the open round: it is the last one now."""
        for arena in (*self._open, self._word):
            arena.turn()
        self._last = self._open

    # The control word.

    def speak(self, word: control_word.ControlWord) -> None:
        """Write the control word."""
        self._word.contributions[0][:] = word.encode()

    def hear(self, workers: int) -> control_word.ControlSum:
        """Return the sum of the last round's control words. If all have brought what they ask for,
        it is as if that round had carried nothing else."""
        word = control_word.total(self._word.record[0], workers)
        if word.brought and word.astray is None:
            self.payload, self._along = self._along, None
            self._calls.note(self.payload)
        return word

    # Rounds that carry one array alone, or none, and what goes along with others.

    def carries(self, kind: int, size: int) -> bool:
        """Return True if the open round, or the next one, carries what a call of this kind brings:
        ``size`` words or numbers, as `Payload` has them."""
        there = self.payload or self._along
        return there is not None and (there.kind, there.size) == (kind, size)

    @property
    def numbers(self) -> int:
        """Words that go alone with the open round, or the next; 0: it carries the model's size."""
        return 0 if self.payload is None else self.payload.size

    @property
    def alone(self) -> Arena:
        """What goes alone with the open round or along with it, or with the next one, or went with
        the last one."""
        assert self._alone is not None
        return self._alone

    def bring_to(self, place: int) -> Buffer:
        """Return what this worker brings to this place, for it to write; it brings nothing to the
        others."""
        arena = self.alone
        arena.bring_only(place if len(arena.layout) > 1 else 0)
        return self._at_places(arena.contributions)[place]

    @property
    def placed(self) -> Sequence[Buffer]:
        """What was brought to each place."""
        return self._at_places(self.alone.record)

    def _at_places(self, flats: Sequence[Buffer]) -> Sequence[Buffer]:
        there = self.payload or self._along
        assert there is not None
        many, size = there.places, there.size
        if len(flats) == many:
            return flats
        (flat,) = flats
        return [flat[place * size : (place + 1) * size] for place in range(many)]

    def expect(self, shape: Shape) -> None:
        """Make the next round carry this shape and nothing else, for all to read."""
        self.payload, self._along = Payload(control_word.MEAN, shape.size), None
        self._alone = self._fabric.arena([shape])

    def follow(self, after: Boundary) -> None:
        """Make the next round carry what follows from the last one."""
        if self.payload is None and after.astray is None:
            self._calls.note(after.payload)
        likely = None
        if not self.transfer.idle:  # a newcomer must come to the same
            self._calls.clear()
        # A newcomer might come now, which does not know of it. And where all stop there may be
        # rounds before the script has read the last answer.
        elif not (after.changes or after.stops or after.over):
            likely = self._calls.next
        self.carry(after.payload, likely if after.payload is None else None)

    def carry(self, payload: Payload | None, likely: Payload | None = None) -> None:
        """Make the next round carry this and nothing else; None: the model's size, and along with
        it what is ``likely`` to be asked for, if that is little."""
        along = likely if likely is not None and _is_little(likely) else None
        self.payload, self._along = payload, along
        there = payload or along
        self._alone = None if there is None else self._arena_for(there)

    def _arena_for(self, payload: Payload) -> Arena:
        if payload.kind == control_word.WORDS_OF_ALL and payload.size < _LEAST_OWN:
            return self._fabric.arena([Shape(_WORDS, payload.size * payload.places)])
        if payload.kind in _TYPES:
            found = self._sums.pop(payload, None) or self._arena_of_sum(payload)
            self._sums[payload] = found  # as the last one
            return found
        dtype = "float64" if payload.kind == control_word.MEAN else "uint8"
        return self._fabric.arena([Shape(dtype, payload.size)] * bool(payload.size))

    def _arena_of_sum(self, payload: Payload) -> Arena:
        """Make an arena that the plane may share between workers, in place of the oldest one."""
        dtype, on_device = _TYPES[payload.kind]
        words = dtype == _WORDS
        alike = [one for one in self._sums if (_TYPES[one.kind][0] == _WORDS) == words]
        if len(alike) == _MOST_SUMS:
            self._fabric.release(self._sums.pop(alike[0]))
        backend = DEVICE if on_device else HOST
        if words or on_device:  # these are there at once, and no sum on a device is begun early
            sizes = [payload.size] * payload.places
        else:
            sizes = parts_of_sum(dtype, payload.size)
        # All that tells it from others: of two arenas with one name only the last one is shared.
        name = f"sum/{payload.kind}/{payload.places}/{payload.size}"
        shapes = [Shape(dtype, size, backend, by_one=words) for size in sizes]
        return self._fabric.arena(shapes, name)


_ALONG = {
    control_word.MEAN: WORDS_OF["float64"],
    control_word.SUM32: WORDS_OF["float32"],
    control_word.SUM64: WORDS_OF["float64"],
    control_word.WORDS_OF_ONE: 1,
    control_word.WORDS_OF_ALL: 1,
}
"""Kinds of what may go along with a round, and the words that each number of it has."""


def _is_little(payload: Payload) -> bool:
    """Return True if this may go along with a round that does not need it."""
    return 0 < _ALONG.get(payload.kind, 0) * payload.size * payload.places <= _MOST_ALONG


_WORDS = WordView.dtype
_TYPES = {
    **{kind: what for what, kind in control_word.SUMS.items()},
    control_word.WORDS_OF_ONE: (_WORDS, False),
    control_word.WORDS_OF_ALL: (_WORDS, False),
}
