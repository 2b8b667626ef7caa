"""A worker that is slower than others, as one on an older or a shared machine is."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from spotmpi.errors import UsageError

__all__ = ["slowed"]

T = TypeVar("T")


def slowed(batches: Iterable[T], times: float) -> Iterator[T]:
    """The same ``batches``, of which each takes so many ``times`` as long: what its loop computes
    with one is waited for again. With 1 nothing changes.

    Counts the processor's time of this thread; what a step waits for others is not made longer.
    """
    if not times >= 1:
        raise UsageError(f"slowed(): times is {times!r}, expected at least 1")
    for batch in batches:
        began = time.thread_time()
        yield batch
        if times > 1:
            time.sleep((times - 1) * (time.thread_time() - began))
