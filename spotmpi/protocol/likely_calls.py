"""Which call of a script is likely to come next, from those before it. Pure, and alike on all."""

from __future__ import annotations

from spotmpi.protocol.boundary import Payload
from spotmpi.protocol.control_word import GATHER, ONCE

__all__ = ["LikelyCalls"]

_MOST = 256
"""Most pairs of calls whose next one is known."""

_SIZES_DIFFER = (ONCE, GATHER)
"""Kinds of calls that bring some bytes of each worker: of another number each time."""


class LikelyCalls:
    """The calls that came after each two calls: a script mostly makes the same ones in each step.

    A call is what its second round carries (`Payload`); None is a step, or a call without one.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[Payload | None, Payload | None], Payload | None] = {}
        self._last: tuple[Payload | None, Payload | None] = None, None
        """The last two calls."""

    def note(self, call: Payload | None) -> None:
        """Note the next call."""
        if call is not None and call.kind in _SIZES_DIFFER:
            call = Payload(call.kind, 0)
        if len(self._next) == _MOST:
            self._next.clear()
        self._next[self._last] = call
        self._last = self._last[1], call

    @property
    def next(self) -> Payload | None:
        """What the next call is likely to be; None: one without a second round, or not known."""
        return self._next.get(self._last)

    def clear(self) -> None:
        """Forget all calls."""
        self._next.clear()
        self._last = None, None
