"""The base class of optimizers."""

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
    """The learning rate that was asked for. `update` is given the rate that holds for the step."""

    slots: ClassVar[tuple[str, ...]]
    """Names of the sets of buckets that it remembers. They are like the parameters' buckets, and
    zero at first."""

    counts: ClassVar[tuple[str, ...]] = ()
    """Names of the numbers that it remembers as well, such as how often it has moved. Among the
    slots each is one array of one float64, in the memory of the host, and zero at first."""

    rises: ClassVar[int] = 0
    """Steps in which the rate rises from 0 to its value when what the optimizer remembers begins
    again in the middle of a training."""

    elementwise: ClassVar[bool] = True
    """True if each element changes by its own values alone. If not, `update` is given the arrays of
    the model one by one, flat, instead of buckets of them."""

    @property
    def kind(self) -> str:
        """A text that is equal on two workers if they have the same kind of optimizer."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

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

        It is deterministic: equal inputs give equal bits, on every worker of one kind of machine.
        """

    def remember(self, layout: Layout) -> dict[str, list[Buffer]]:
        """Return memory for all slots and counts, for parameters of this layout."""
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
        """Call `update` on buckets of this layout, cut as this optimizer needs them."""
        if not self.elementwise:
            params, grads = layout.one_by_one(params), layout.one_by_one(grads)
            cut = {name: layout.one_by_one(memory[name]) for name in self.slots}
            memory = {**memory, **cut}
        self.update(params, grads, memory, rate, scale)

    @property
    def at_once(self) -> bool:
        """True if `move` does what `update` does. It is False in a class that a script derives:
        that may have changed `update` and know nothing of `move`."""
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
        """Set ``after`` to ``before``, moved by one step. The gradient is scale * sum(weights[i] *
        inputs[i]). Both hold the parameters, and then each slot, of some elements in the memory of
        the host. The bits are the same as `update` gives with that sum. ``counts`` stay as they
        are, until `moved`."""
        raise NotImplementedError

    def moved(self, counts: Mapping[str, Sequence[Buffer]]) -> None:
        """Count the step, as `update` does: all elements are moved."""
        for name in self.counts:
            counts[name][0][0] += 1
