"""Memory for rounds of steps, as a strategy needs it. All of it is local."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from spotmpi.arrays.backend import occupy
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.narrowing import NARROWED, Narrowing
from spotmpi.fabric import Arena, Buffer, DoubleBuffer, Shape
from spotmpi.operators import fragment
from spotmpi.strategies import RESTS, Strategy

__all__ = ["RoundCount", "StepArenas", "StepMemory"]


class StepArenas:
    """Arenas by the form of a round: how many parts of the model take turns, in which format sums
    travel, and if they travel for some steps.

    Arenas of earlier strategies stay: a worker that has yet to commit the last round may need the
    record in them.
    """

    def __init__(
        self,
        arena_of: Callable[..., Arena],
        strategies: Sequence[Strategy],
        doubled: DoubleBuffer | None,
    ) -> None:
        """``arena_of``: makes an arena, as `Fabric.arena` does. ``strategies``: all that the
        training may follow, alike on all workers. ``doubled``: parameters that an update may be
        fused with."""
        self._arena_of = arena_of
        self._doubled = doubled
        self._forms = [_form(one) for one in strategies]
        self._made: dict[int, list[Arena]] = {}
        """Arenas by the number of the first strategy whose rounds they fit."""

    def of(self, strategy: Strategy, shapes: Sequence[Shape]) -> list[Arena]:
        """Return the arenas of this strategy's rounds, one for each fragment. ``shapes``: of all
        buckets."""
        number = self._forms.index(_form(strategy))
        # The name is the same on all workers: they find the memory by it.
        name, many = f"data{number or ''}", min(strategy.fragments, len(shapes))
        cut = [[shapes[n] for n in fragment(len(shapes), many, part)] for part in range(many)]
        if number in self._made:
            for arena, layout in zip(self._made[number], cut, strict=True):
                arena.layout = layout
        elif many == 1:
            self._made[number] = [self._arena_of(shapes, name, self._doubled)]
        else:
            made = (self._arena_of(layout, f"{name}/{part}") for part, layout in enumerate(cut))
            self._made[number] = list(made)
        return self._made[number]


class RoundCount(Protocol):
    """Counts the rounds of steps."""

    rounds: int
    """Rounds of steps committed so far."""


class StepMemory:
    """What one strategy's rounds of steps carry, and where."""

    def __init__(
        self,
        strategy: Strategy,
        layout: Layout,
        progress: RoundCount,
        state: Mapping[str, Sequence[Buffer]],
    ) -> None:
        """``layout``: of what workers bring. ``state``: what the strategy remembers."""
        self._strategy = strategy
        self._layout = layout
        self._progress = progress
        self._narrowings = _narrowings(strategy, layout, state)
        """Narrowing of each bucket; None for a bucket that travels as it is."""
        self.arenas: Sequence[Arena] = ()
        """Arenas of the rounds of steps, one for each fragment; `furnish` gives them."""
        self._room: Sequence[Buffer] | None = None

    def furnish(self, arenas: StepArenas) -> None:
        """Get memory for rounds."""
        shapes = [
            Shape(bucket.dtype, bucket.size, self._layout.backend, narrowing)
            for bucket, narrowing in zip(self._layout.buckets, self._narrowings, strict=True)
        ]
        self.arenas = arenas.of(self._strategy, shapes)

    @property
    def arena(self) -> Arena:
        """The arena of the open round of steps, or of the next one."""
        arenas = self.arenas
        return arenas[0] if len(arenas) == 1 else arenas[self._progress.rounds % len(arenas)]

    def buckets_of(self, number: int) -> range:
        """Return the buckets that the round of steps of this number carries."""
        return fragment(len(self._layout.buckets), self._strategy.fragments, number)

    @property
    def _buckets(self) -> range:
        return self.buckets_of(self._progress.rounds)

    @property
    def holds_gradient(self) -> bool:
        """True if a contribution's memory may hold a whole gradient before its round: it has the
        model's size, and nothing is made in it earlier."""
        return len(self.arenas) == 1 and not self._strategy.delay

    @property
    def shared(self) -> Sequence[Buffer] | None:
        """Memory in which a gradient need not be packed: other workers read it there. None: there
        is none."""
        return self.arena.contributions if self.arena.weighs and self.holds_gradient else None

    def free(self) -> Sequence[Buffer]:
        """Return memory for what is made of the gradient before the round."""
        # The contribution's memory is free: nobody reads it until the round begins and makes it.
        if self.holds_gradient:
            return self.arena.contributions
        if self._room is None:  # not free: made early, or too small, for a part of the model
            self._room = self._layout.allocate()
        return self._room

    def occupy(self) -> None:
        """Have all memory in which contributions are made."""
        for arena in self.arenas:
            for _ in range(2):
                occupy(arena.contributions)
                arena.turn()
        occupy(self.free())

    def turn(self) -> None:
        """Note that the last sums count: what narrowing took from them is added to the next."""
        if self._strategy.wire is None:
            return
        for number in self._buckets:
            if (narrowing := self._narrowings[number]) is not None:
                narrowing.turn()

    def record(self) -> list[Buffer]:
        """Return the last sums, for reading only: other workers may share the memory."""
        layout = self._layout
        return [
            layout.backend.view(flat, 0, (layout.buckets[number].size,), read_only=True)
            for number, flat in zip(self._buckets, self.arena.record, strict=True)
        ]

    def first_not_finite(self, first: int = 0, last: int | None = None) -> str | None:
        """Return the name of an array of the contribution that holds NaN or infinity; None: there
        is none. ``first`` and ``last`` limit the buckets."""
        if not self.arena.weight:
            return None
        numbers = self._buckets[first:last]
        return self._layout.check_finite(self.arena.contributions[first:last], numbers)


def _form(strategy: Strategy) -> tuple[int, str | None, bool]:
    # What is sent early travels while the script computes the next gradient, maybe right into the
    # contributions of another strategy (`StepMemory.shared`).
    return strategy.fragments, strategy.wire, strategy.delay > 0


def _narrowings(
    strategy: Strategy, layout: Layout, state: Mapping[str, Sequence[Buffer]]
) -> list[Narrowing | None]:
    form = strategy.wire
    if form is None:
        return [None for _ in layout.buckets]
    rests = zip(*(state[name] for name in RESTS), strict=True)
    return [
        Narrowing(form, *both) if bucket.dtype == NARROWED else None
        for bucket, both in zip(layout.buckets, rests, strict=True)
    ]
