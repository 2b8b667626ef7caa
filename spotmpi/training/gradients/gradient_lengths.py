"""Lengths of gradients in rounds with a survey, for `protocol.gradient_noise`."""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.arrays.backend import HOST, Buffer, kernels_for
from spotmpi.fabric import Move
from spotmpi.protocol.gradient_noise import Lengths

__all__ = ["GradientLengths"]

_STRETCH = 1 << 16
"""Elements that are summed at a time where the sum is not kept."""


class GradientLengths:
    """One worker's measurement of one round. Local, all of it."""

    def __init__(self) -> None:
        self.known: Lengths | None = None
        """Lengths of the last round measured to its end. The next survey tells them."""
        self._own = 0.0
        self._sums = 0.0
        self._elements = 0

    def begin(self) -> None:
        """Begin to measure the sums of a round. Called again if the sums are made again."""
        self._sums, self._elements = 0.0, 0

    def bring(self, contributions: Sequence[Buffer], times: float, more: bool = False) -> None:
        """Measure the contribution times ``times``. ``more``: this is a further part of it."""
        self._own = (self._own if more else 0.0) + times**2 * _squares(contributions)

    def beside(self, move: Move) -> Move:
        """Return a move that does the same and measures the sums. They lie nowhere as a whole."""

        def both(part: slice, inputs: Sequence[Buffer], weights: Sequence[float]) -> None:
            move(part, inputs, weights)
            if inputs:
                self._sums += _squares_of_sum(inputs, weights)
                self._elements += len(inputs[0])

        return both

    def sum(self, record: Sequence[Buffer]) -> None:
        """Measure the sums of a round."""
        self._sums += _squares(record)
        self._elements += sum(len(flat) for flat in record)

    def end(self, samples: float, whole: float) -> None:
        """Keep the lengths: the round counts. This worker brought ``samples`` of the ``whole``."""
        own = self._own / samples**2 if samples else 0.0
        known = int(samples), own, int(whole), self._sums / whole**2, self._elements
        self.known = Lengths(*known)


def _squares(flats: Sequence[Buffer]) -> float:
    return sum(kernels_for(flat).sum_of_squares(flat) for flat in flats)


def _squares_of_sum(inputs: Sequence[Buffer], weights: Sequence[float]) -> float:
    """Return the squared length of a weighted sum of arrays in the memory of the host."""
    size, found = len(inputs[0]), 0.0
    room = HOST.zeros(str(inputs[0].dtype), min(size, _STRETCH))
    for start in range(0, size, _STRETCH):
        pieces = [one[start : start + _STRETCH] for one in inputs]
        some = room[: len(pieces[0])]
        HOST.kernels.scaled_sum(some, pieces, weights)
        found += HOST.kernels.sum_of_squares(some)
    return found
