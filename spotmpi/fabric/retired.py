"""Communicators that nobody uses any more, kept until they may be freed.

Open MPI gives the number of a freed communicator to a later one. A message of the old one that is
still under way would then count as one of the new. So each is kept for longer than a message can be
under way: a worker that is silent for that long is lost. If they were never freed, they would cost
10 KB for each generation on each worker.

One leak remains, in Open MPI itself (5.0): a worker whose all-reduce is interrupted loses 10 KB.
`ompi_coll_base_sendrecv_actual` then cancels its receive and waits for it. A wait that ends with an
error does not free the request, and the request keeps its communicator alive, freed or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

QUIET = 30.0
"""Seconds after which no message of a communicator can be under way."""

T = TypeVar("T")


class Retired(Generic[T]):
    """Communicators to free, by ``free``, once they have been out of use for `QUIET` seconds."""

    def __init__(self, clock: Callable[[], float], free: Callable[[T], None]) -> None:
        self._clock = clock
        self._free = free
        self._waiting: deque[tuple[float, T]] = deque()

    def add(self, *communicators: T | None) -> None:
        """Add ``communicators``, which are out of use from now on. None is ignored."""
        now = self._clock()
        self._waiting.extend((now, one) for one in communicators if one is not None)

    def free(self) -> None:
        """Free the communicators that have been out of use for `QUIET` seconds. Local."""
        before = self._clock() - QUIET
        while self._waiting and self._waiting[0][0] <= before:
            self._free(self._waiting.popleft()[1])
