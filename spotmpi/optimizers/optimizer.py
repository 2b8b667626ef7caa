"""What an optimizer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.arrays.layout import Layout
from spotmpi.optimizers.schedules import Schedule

__all__ = ["Optimizer"]


class Optimizer(ABC):
    """A rule that moves parameters along gradients.

    It holds settings only. What it remembers from step to step belongs to the registered state:
    `slots` and `counts` name it.
    """

    lr: float | Schedule
    """The learning rate that was asked for; `update` is told the one that holds."""

    slots: ClassVar[tuple[str, ...]]
    """The names of what it remembers: sets of buckets like those of the parameters, zero at
    first."""

    counts: ClassVar[tuple[str, ...]] = ()
    """The names of numbers that it remembers beside them, as how often it has moved. Among the
    slots each is one array of one float64, in the memory of the host; zero at first."""

    elementwise: ClassVar[bool] = True
    """What becomes of an element follows from what there is of that element alone. If not,
    `update` is given the arrays of the model one by one, flat, instead of buckets of them."""

    @abstractmethod
    def update(
        self,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        slots: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        """Move ``params`` and ``slots`` by one step, in place, with the gradient scale * grads.

        Deterministic: equal inputs give equal bits, on every worker of one kind of machine.
        """

    def remember(self, layout: Layout) -> dict[str, list[Buffer]]:
        """Memory for all of it, for parameters of this layout."""
        slots = {name: layout.allocate() for name in self.slots}
        return slots | {name: [HOST.zeros("float64", 1)] for name in self.counts}

    def apply(
        self,
        layout: Layout,
        params: Sequence[Buffer],
        grads: Sequence[Buffer],
        memory: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        """`update`, of buckets of this layout, cut as this optimizer needs them."""
        if not self.elementwise:
            params, grads = layout.one_by_one(params), layout.one_by_one(grads)
            cut = {name: layout.one_by_one(memory[name]) for name in self.slots}
            memory = {**memory, **cut}
        self.update(params, grads, memory, rate, scale)

    @property
    def at_once(self) -> bool:
        """Whether `move` does what `update` does. (Not in a class that somebody has derived, which
        may have changed the one and knows nothing of the other.)"""
        return False

    def move(
        self,
        after: Sequence[Buffer],
        before: Sequence[Buffer],
        inputs: Sequence[Buffer],
        weights: Sequence[float],
        counts: Mapping[str, Sequence[Buffer]],
        rate: float,
        scale: float,
    ) -> None:
        """``after`` = ``before``, moved by one step with the gradient scale * sum(weights[i] *
        inputs[i]): parameters, and each slot after them, of some elements in the memory of the
        host. The bits are those of `update` with that sum. ``counts`` stay as they are, until
        `moved`."""
        raise NotImplementedError

    def moved(self, counts: Mapping[str, Sequence[Buffer]]) -> None:
        """All elements are: count the step, as `update` does."""
        for name in self.counts:
            counts[name][0][0] += 1
