"""Memory for rounds of steps. All of it is local."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spotmpi.fabric import Arena, DoubleBuffer, Shape
from spotmpi.operators import fragment
from spotmpi.strategies import Strategy

__all__ = ["StepArenas"]


class StepArenas:
    """Arenas by the form of a round: how many parts of the model take turns, and in which format
    sums travel. Arenas of earlier strategies stay: a worker that has yet to commit the last round
    may need the record in them."""

    def __init__(self, arena_of: Callable[..., Arena], strategies: Sequence[Strategy]) -> None:
        """``arena_of``: makes an arena, as `Fabric.arena` does. ``strategies``: all that the
        training may follow, alike on all workers."""
        self._arena_of = arena_of
        self._forms = [(one.fragments, one.wire) for one in strategies]
        self._made: dict[int, list[Arena]] = {}
        """Arenas by the number of the first strategy whose rounds they fit."""

    def of(
        self, strategy: Strategy, shapes: Sequence[Shape], doubled: DoubleBuffer | None
    ) -> list[Arena]:
        """Return the arenas of this strategy's rounds, one for each fragment. ``shapes``: of all
        buckets. ``doubled``: parameters that an update may be fused with."""
        number = self._forms.index((strategy.fragments, strategy.wire))
        # The name is the same on all workers: they find the memory by it.
        name, many = f"data{number or ''}", min(strategy.fragments, len(shapes))
        cut = [[shapes[n] for n in fragment(len(shapes), many, part)] for part in range(many)]
        if number in self._made:
            for arena, layout in zip(self._made[number], cut, strict=True):
                arena.layout = layout
        elif many == 1:
            self._made[number] = [self._arena_of(shapes, name, doubled)]
        else:
            made = (self._arena_of(layout, f"{name}/{part}") for part, layout in enumerate(cut))
            self._made[number] = list(made)
        return self._made[number]
