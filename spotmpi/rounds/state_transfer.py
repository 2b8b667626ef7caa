"""State for newcomers: pages that go with the rounds, on the side that gives and on the side that
learns.

While a newcomer learns, each round sums two more arrays: a page and its head. The page holds a
slice of the registered state, of which every worker that knows the state brings a piece. The head
holds a few plain values, which the first of these workers brings. The newcomer brings nothing.
Whole words are added to zeros, so every bit arrives as it was. Both are parts of the round: they
are retried, repaired and shared like the gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from spotmpi.arrays.word_view import WordView
from spotmpi.fabric import Arena, Buffer, Fabric, Shape
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.state_pages import PageOrder, cut, read, write

HEAD = 1 << 14
"""Words of a head."""

_SHARE = 8
"""A page holds as much of the state as a gradient divided by this number."""
_LEAST = 1 << 14
"""Fewest words of each set that a page holds, unless a slice ends before."""
_SHARED = 1 << 14
"""Fewest words of a set whose pages are summed as gradients are. Smaller gradients may be so small
that no worker has loaded Numba, and a newcomer is no reason to: their pages are not shared."""


class StateTransfer:
    """Which workers learn, and the page and the head of the open round and of the last one."""

    def __init__(
        self,
        me: WorkerId,
        words: WordView,
        fabric: Fabric,
        ends: Sequence[int] | None = None,
    ) -> None:
        """``words``: the registered state, in sets of the size of a gradient.

        ``fabric`` gives memory for pages, while a newcomer learns. A slice holds the same elements
        of every set: the result of a round for a parameter depends on what the optimizer remembers
        of it, so both must be there. ``ends``: the places in a set where a slice may end, in words;
        None: anywhere. The words between two of them go in one page, however many they are.
        """
        self.me = me
        self._fabric = fabric
        self._arena: Arena | None = None
        """The memory of a page and a head, while they are needed."""
        self._page_for = self._head_for = -1
        """The generations among whose members this worker has brought its piece of the open round's
        page, and its head."""
        self._teaches = False
        self._open = self._last = False
        """True if a page goes with the open round, or went with the last one (`_last`)."""
        self.change(words, ends)

    def change(self, words: WordView, ends: Sequence[int] | None) -> None:
        """Use another registered state from now on. Only while `idle`, on all workers alike."""
        self._words = words
        self._set = words.size // words.sets
        share = -(-self._set // (words.sets * _SHARE))
        # An even number, as some elements are two words long.
        self._slices = cut(self._set, max(_LEAST, share + share % 2), ends)
        """Words of each set that a page holds: begin and end of each slice."""
        self._pages = PageOrder(len(self._slices))

    @property
    def idle(self) -> bool:
        """True if no worker learns, and none did in the last round."""
        return not (self._teaches or self._open or self._last)

    @property
    def learns(self) -> bool:
        """True if this worker learns."""
        return self.me in self._pages.learning

    @property
    def teaching(self) -> bool:
        """True if a page goes with the open round."""
        return self._open

    @property
    def taught(self) -> bool:
        """True if a page went with the last round. Alike on all that had a part in it."""
        return self._last

    @property
    def rest_due(self) -> bool:
        """True if all other state should go with the page: a newcomer gets its last slice."""
        return self._pages.last_due

    def full(self, workers: Iterable[WorkerId]) -> tuple[WorkerId, ...]:
        """Return those of ``workers`` that do not learn: they know everything."""
        learning = self._pages.learning
        if not learning:  # as in almost every round
            return tuple(workers)
        return tuple(worker for worker in workers if worker not in learning)

    # Who learns.

    def admit(self, worker: WorkerId) -> None:
        """Begin to teach a newcomer, which takes part from the next round on."""
        self._pages.admit(worker)
        self._begin()

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Drop workers that are no members any more."""
        self._pages.forget(workers)

    def state(self) -> dict[str, Any]:
        """Return plain values that let a newcomer count pages like the others."""
        return self._pages.state()

    def enrol(self, pages: dict[str, Any]) -> None:
        """Begin to learn, with the `state` of a worker that knows everything."""
        self._pages.restore(**pages)
        self._begin()

    def _begin(self) -> None:
        self._teaches = True
        if self._arena is None:
            longest = max(end - begin for begin, end in self._slices)
            layout = [Shape(self._words.dtype, size) for size in (self._words.sets * longest, HEAD)]
            self._arena = self._fabric.arena(layout, "page" if self._set >= _SHARED else "")

    # The pages.

    def open(self) -> None:
        """Begin a round. A page goes with it if a worker learnt when the last round was committed.

        Who learns now does not count: only some workers hear of a death before they begin the
        round.
        """
        self._open = self._teaches
        self._page_for = self._head_for = -1

    @property
    def arena(self) -> Sequence[Arena]:
        """The arena of the open round's page and its head; empty if it has none."""
        return () if self._arena is None or not self._open else (self._arena,)

    def bring_nothing(self) -> None:
        """Bring nothing to the page and its head, if there is one."""
        for arena in self.arena:
            arena.bring_nothing()

    def bring_page(self, generation: int, full: Sequence[WorkerId]) -> None:
        """Bring this worker's piece of the page, among the members of this ``generation``. Does
        nothing if that is done: the page may be under way."""
        if self._page_for == generation:
            return
        self._page_for = generation
        for arena in self.arena:
            arena.weight = 1.0
            page = arena.contributions[0]
            page[...] = 0
            rank, many = full.index(self.me), len(full)
            for start, part in self._parts(page):
                begin, end = rank * len(part) // many, (rank + 1) * len(part) // many
                self._words.read(start + begin, part[begin:end])

    def bring_head(self, generation: int, fields: dict[str, Any], rest: dict[str, Any]) -> None:
        """Bring these values, if there are any, to the head of the page. Does nothing if that is
        done among the members of this ``generation``: the head may be under way.

        ``rest`` is left out if there is no room for it: it will be asked for again.
        """
        if self._head_for == generation:
            return
        self._head_for = generation
        for arena in self.arena:
            head = arena.contributions[1]
            head[...] = 0
            if (fields or rest) and not (rest and write(head, {**fields, "rest": rest})):
                write(head, fields)

    def turn(self) -> dict[str, Any]:
        """Commit the round: its page is a record now. Returns the values on it.

        A worker that learns then has the slice in its place, as it was before the round.
        """
        self._last, self._open = self._open, False
        if not self._last:
            return {}
        assert self._arena is not None
        page, head = self._arena.record
        if self.learns:
            for start, part in self._parts(page):
                self._words.write(start, part)
        return read(head)

    def given(self, values: dict[str, Any]) -> tuple[WorkerId, ...]:
        """Return who knows everything now. Called after `turn`, with what that returned."""
        done = self._pages.given("rest" in values) if self._last else ()
        self._teaches = bool(self._pages.learning)
        if not self._teaches and not self._last and self._arena is not None:
            self._fabric.release(self._arena)
            self._arena = None
        return done

    def _parts(self, page: Buffer) -> Iterator[tuple[int, Buffer]]:
        """Yield for each set where the slice begins in the state, and its place on the page."""
        begin, end = self._slices[self._pages.part]
        size = end - begin
        for number in range(self._words.sets):
            yield number * self._set + begin, page[number * size : (number + 1) * size]
