"""A newcomer's lessons on one worker, whichever side it is on: pages that go with the rounds.

While anybody learns, each round reduces one page more: a slice of the registered state, of which
every worker that knows it brings a piece, and the newcomer zeros; and a few plain values, which the
first of them brings. Whole words are added to zeros, so every bit arrives as it was. A page is a
part of the round: it is retried, repaired and shared as the gradient is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from spotmpi.arrays.word_view import WordView
from spotmpi.fabric import Arena, Buffer, Shape
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.state_pages import PageOrder, cut, read, write

HEAD = 1 << 14
"""Words of a page that hold plain values."""

_SHARE = 8
"""A page holds as much of the state as this part of a gradient ..."""
_LEAST = 1 << 14
"""... or so many words of each set, if that is more."""


class StateTransfer:
    """Who learns, what goes with the open round, and what went with the last one."""

    def __init__(
        self,
        me: WorkerId,
        tape: WordView,
        arena: Callable[[Sequence[Shape]], Arena],
        ends: Sequence[int] | None = None,
    ) -> None:
        """``tape``: the registered state, in sets of the size of a gradient.

        ``arena`` makes memory for pages, once somebody learns. A slice holds the same elements of
        every set: what becomes of a parameter in a round depends on what the optimizer remembers of
        it, so both must be there. ``ends``: where in a set a slice may end, in words, if not
        everywhere: what lies between two of them is large or small, and goes whole.
        """
        self.me = me
        self._arena_of = arena
        self._arena: Arena | None = None
        self._teaches = False
        self._open = self._last = False
        """Whether a page goes with the open round, and went with the last one."""
        self.change(tape, ends)

    def change(self, tape: WordView, ends: Sequence[int] | None) -> None:
        """What is registered is this from now on. Only while `idle`, and on all workers alike."""
        self._tape = tape
        self._set = tape.size // tape.sets
        share = -(-self._set // (tape.sets * _SHARE))
        # An even number, as some elements have two words.
        self._slices = cut(self._set, max(_LEAST, share + share % 2), ends)
        """Words of each set that a page holds: from one to another."""
        self._lessons = PageOrder(len(self._slices))

    @property
    def idle(self) -> bool:
        """Nobody learns, nor did in the last round."""
        return not (self._teaches or self._open or self._last)

    @property
    def learns(self) -> bool:
        """Whether this worker is one that learns."""
        return self.me in self._lessons.learning

    @property
    def teaching(self) -> bool:
        """Whether a page goes with the open round."""
        return self._open

    @property
    def rest_due(self) -> bool:
        """Whether all else should go with the page, as somebody will have all slices."""
        return self._lessons.last_due

    def full(self, workers: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        """Those of ``workers`` that know everything."""
        learning = self._lessons.learning
        if not learning:  # as in almost every round
            return tuple(workers)
        return tuple(worker for worker in workers if worker not in learning)

    # Who learns.

    def admit(self, worker: WorkerId) -> None:
        """A newcomer takes part in the next round."""
        self._lessons.admit(worker)
        self._begin()

    def forget(self, workers: Collection[WorkerId]) -> None:
        """They are no members any more."""
        self._lessons.forget(workers)

    def charter(self) -> dict[str, Any]:
        """For a newcomer, to count along; plain values."""
        return self._lessons.state()

    def enrol(self, charter: dict[str, Any]) -> None:
        """Begin to learn, with the `charter` of who knows."""
        self._lessons.restore(**charter)
        self._begin()

    def _begin(self) -> None:
        self._teaches = True
        if self._arena is None:
            longest = max(end - begin for begin, end in self._slices)
            shape = Shape(self._tape.dtype, HEAD + self._tape.sets * longest)
            self._arena = self._arena_of([shape])

    # The pages.

    def open(self) -> None:
        """A round begins: a page goes with it if anybody learnt when the last one was committed.

        Not if anybody learns now: of a death some hear before they begin the round.
        """
        self._open = self._teaches

    @property
    def arena(self) -> Sequence[Arena]:
        """Of the open round's page, if it has one."""
        return () if self._arena is None or not self._open else (self._arena,)

    @property
    def _page(self) -> Buffer:
        assert self._arena is not None
        return self._arena.contributions[0]

    def bring_nothing(self) -> None:
        """Nothing to add to the page."""
        if self._open:
            self._page[...] = 0

    def bring(self, full: Sequence[WorkerId], fields: dict[str, Any], rest: dict[str, Any]) -> None:
        """This worker's piece of the slice; and the values, if it is the first of those ``full``.

        ``rest`` is left out if there is no room for it: it will be asked for again.
        """
        self.bring_nothing()
        page = self._page
        rank, many = full.index(self.me), len(full)
        for start, part in self._parts(page):
            begin, end = rank * len(part) // many, (rank + 1) * len(part) // many
            self._tape.read(start + begin, part[begin:end])
        head = page[:HEAD]
        if rank == 0 and not (rest and write(head, {**fields, "rest": rest})):
            write(head, fields)

    def turn(self) -> dict[str, Any]:
        """The round is committed, and its page a record. Returns the values on it.

        Who learns has its slice in its place then, as it was before the round.
        """
        self._last, self._open = self._open, False
        if not self._last:
            return {}
        assert self._arena is not None
        page = self._arena.record[0]
        if self.learns:
            for start, part in self._parts(page):
                self._tape.write(start, part)
        return read(page[:HEAD])

    def given(self, values: dict[str, Any]) -> tuple[WorkerId, ...]:
        """After `turn`, with what it returned: those who know everything now."""
        done = self._lessons.given("rest" in values) if self._last else ()
        self._teaches = bool(self._lessons.learning)
        if not self._teaches and not self._last:
            self._arena = None
        return done

    def _parts(self, page: Buffer) -> Iterator[tuple[int, Buffer]]:
        """Of each set: where the slice begins in the state, and its place on the page."""
        begin, end = self._slices[self._lessons.part]
        size = end - begin
        for number in range(self._tape.sets):
            place = HEAD + number * size
            yield number * self._set + begin, page[place : place + size]
