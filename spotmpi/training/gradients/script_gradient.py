"""The gradient of the next step, as the script gives it: whole, array by array, or by the parts of
a batch. All of it is local."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from spotmpi.arrays.backend import Buffer
from spotmpi.arrays.layout import Key, Layout
from spotmpi.arrays.micro_batches import MicroBatches
from spotmpi.arrays.views import Views
from spotmpi.errors import UsageError
from spotmpi.training.gradients.partial_gradient import PartialGradient

__all__ = ["ScriptGradient"]

P = TypeVar("P")


class ScriptGradient(Generic[P]):
    """One worker's gradient. The script leaves its arrays alone until the step is taken.

    ``what``: its name in messages.
    """

    def __init__(self, layout: Layout, what: str) -> None:
        self._layout = layout
        self._what = what
        self.pieces = PartialGradient(layout)
        """The arrays that were given one by one."""
        self.micro_batches = MicroBatches(layout)
        """The gradients of parts of the batch."""
        self._arrays: P | None = None
        self._by_key: dict[Key, Any] = {}
        """The same arrays by their keys."""
        self._born: Sequence[Buffer] | None = None
        """The buffers of these arrays."""

    def arrays(self, room: Sequence[Buffer] | None) -> P:
        """Return arrays to compute gradients into, in the user's structure; always the same ones.
        ``room``: memory that other workers read; None: there is none that can be used."""
        if self._arrays is None:
            rounds = any(bucket.halves for bucket in self._layout.buckets)
            there = None if rounds else room
            self._born = self._layout.allocate() if there is None else there
            views = Views(self._layout, self._born)
            self._by_key, self._arrays = views.by_key, views.tree
        return cast(P, self._arrays)

    def pack(self, grads: Any, flats: Sequence[Buffer], times: float, weighs: bool) -> None:
        """Pack a whole gradient. ``weighs``: the plane multiplies, so that nothing is left to do if
        the gradient was computed there."""
        in_place = grads is self._arrays and flats is self._born
        if not (in_place and times == 1.0 and weighs):
            self._layout.pack(grads, flats, times, self._what)

    def pack_one(
        self, key: Key, array: Any, flats: Sequence[Buffer], times: float, weighs: bool
    ) -> None:
        """Pack one array of it."""
        in_place = array is self._by_key.get(key) and flats is self._born
        if not (in_place and times == 1.0 and weighs):
            self._layout.pack_one(key, array, flats, times)

    def completed(self, grads: Any, give: Callable[[Key, Any], None]) -> Any:
        """Return the whole gradient: the arrays that were given one by one, and ``grads``. ``give``
        takes those that are new. Raises UsageError if something is missing."""
        if not self.pieces:
            if grads is None:
                raise UsageError(
                    "step() was called without gradients, and ready() was given none: give each "
                    "one to ready() or to step()"
                )
            return grads
        for key, array in list(self.pieces.rest(grads)):
            give(key, array)
        return self.pieces.tree

    def clear(self) -> None:
        """Let go of the script's arrays."""
        self.pieces.clear()
        self.micro_batches.clear()
