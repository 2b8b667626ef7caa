"""Which worker holds up all others by itself: pure.

In a round all workers wait for the one that has not entered it. That one may be evaluating, or
it may never come back: a deadlock of its own, a driver that hangs. Only time can tell. Whoever
waits is never to blame, and while all are busy with their scripts nobody waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spotmpi.launcher_channel import IN_ROUND, IN_SCRIPT, Progress

__all__ = ["Stalled", "Stalls"]


@dataclass(frozen=True)
class Stalled:
    """A worker that others have waited for beyond the limit."""

    worker: int
    busy: float
    """Seconds since it left its last round."""
    waited: float
    """Seconds for which somebody has waited for it."""


class Stalls:
    """Looks for workers that keep others waiting for longer than ``limit`` seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._suspected: set[tuple[int, float]] = set()
        self._warned: set[tuple[int, float]] = set()

    def slow(self, progress: Mapping[int, Progress], now: float) -> list[Stalled]:
        """Return those for whom half the limit has passed, each once for each time in its script.

        They may be about to evaluate for longer than anybody meant to allow.
        """
        found = [one for one in waited_for(progress, now) if one.waited > self._limit / 2]
        new = [one for one in found if (one.worker, progress[one.worker].since) not in self._warned]
        self._warned = {(one.worker, progress[one.worker].since) for one in found}
        return new

    def look(self, progress: Mapping[int, Progress], now: float) -> list[Stalled]:
        """Return those that were found at this look and at the last one.

        Twice, because what is known may be old: the launcher may have been stopped itself.
        """
        found = [one for one in waited_for(progress, now) if one.waited > self._limit]
        before = self._suspected
        self._suspected = {(one.worker, progress[one.worker].since) for one in found}
        return [one for one in found if (one.worker, progress[one.worker].since) in before]


def waited_for(progress: Mapping[int, Progress], now: float) -> list[Stalled]:
    """Return the workers that others wait for; none if all are in a round, or all in scripts."""
    waiting = [one.since for one in progress.values() if one.doing == IN_ROUND]
    if not waiting:
        return []
    first = min(waiting)
    return [
        Stalled(worker, now - one.since, now - max(one.since, first))
        for worker, one in progress.items()
        if one.doing == IN_SCRIPT
    ]
