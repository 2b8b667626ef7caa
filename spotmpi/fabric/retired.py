"""Communicators that nobody uses any more, kept until they may be freed.

Open MPI gives the number of a freed communicator to one of the next. A message of the old one that
is still on its way then would be taken for one of the new. So each is kept for longer than anything
can be on its way: whoever is silent for so long is lost. Never freed, they would cost 10 KB a
generation on each worker.

One leak remains, and is Open MPI's own (5.0): a worker whose all-reduce is interrupted loses 10 KB.
`ompi_coll_base_sendrecv_actual` cancels its receive then and waits for it, but a wait that ends
with an error does not free the request; and that keeps its communicator alive, freed or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

QUIET = 30.0
"""Seconds after which nothing of a communicator can be on its way."""

T = TypeVar("T")


class Retired(Generic[T]):
    """What is to be freed, by ``free``, once it has been out of use for long enough."""

    def __init__(self, clock: Callable[[], float], free: Callable[[T], None]) -> None:
        self._clock = clock
        self._free = free
        self._waiting: deque[tuple[float, T]] = deque()

    def add(self, *communicators: T | None) -> None:
        """Out of use from now on; None is nothing."""
        now = self._clock()
        self._waiting.extend((now, one) for one in communicators if one is not None)

    def free(self) -> None:
        """Free those that have been out of use for `QUIET` seconds. Local."""
        before = self._clock() - QUIET
        while self._waiting and self._waiting[0][0] <= before:
            self._free(self._waiting.popleft()[1])
