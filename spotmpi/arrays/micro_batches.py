"""The gradient of one step, made of the gradients of parts of a worker's batch. Local."""

from __future__ import annotations

import operator
from typing import Any

from spotmpi.arrays.backend import Buffer
from spotmpi.arrays.layout import Layout, Room
from spotmpi.errors import UsageError

__all__ = ["MicroBatches"]


class MicroBatches:
    """The micro-batches of the step to come: their mean gradient, weighted by their samples.

    It has memory of its own, as large as the parameters, from the first one on. So the script may
    use its arrays again for the next one.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._mean: list[Buffer] | None = None
        self._room: Room = {}
        self.samples = 0
        """Samples of the mean."""
        self._loss = 0.0
        self._losses = 0
        """Samples for which a loss was given."""

    def __bool__(self) -> bool:
        return self.samples > 0

    @property
    def loss(self) -> float | None:
        """The mean of the losses that were given; None if there were none."""
        return self._loss / self._losses if self._losses else None

    @property
    def gradient(self) -> Any:
        """The mean, in the structure of the parameters. It holds until more is added."""
        assert self._mean is not None
        return self._layout.views(self._mean)

    def add(self, grads: Any, samples: Any, loss: Any = None) -> None:
        """Add a gradient, the mean over ``samples`` samples; without any it counts for nothing.
        UsageError if it does not fit."""
        try:
            count = operator.index(samples)
        except TypeError:
            count = -1
        if count < 0:
            raise UsageError(
                f"accumulate() was given {samples!r} for the number of samples: give it how many "
                "the gradient is the mean of"
            )
        if not count:
            return
        if self._mean is None:
            self._mean, self._room = self._layout.allocate(), self._layout.room()
        if self.samples:
            whole = self.samples + count
            times, keep = count / whole, self.samples / whole
            self._layout.blend(grads, self._mean, times, keep, self._room)
        else:
            self._layout.pack(grads, self._mean, 1.0)
        self.samples += count
        if loss is not None:
            self._loss += count * float(loss)
            self._losses += count

    def clear(self) -> None:
        """Begin again: the step is taken, or will not be."""
        self.samples = self._losses = 0
        self._loss = 0.0
