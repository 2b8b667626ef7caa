"""Recoveries, of which each survivor tells: heard once, from whoever went on last. Pure."""

from __future__ import annotations

from collections.abc import Callable

from spotmpi.launch.messages import Recovery

__all__ = ["Recoveries"]


class Recoveries:
    """``say`` is given each one once, as soon as all have told of it, or will not any more."""

    def __init__(self, say: Callable[[Recovery], object]) -> None:
        self._say = say
        self._said: set[int] = set()
        """Generations."""
        self._slowest: Recovery | None = None
        """What is to be said next, as the last one of those saw it who have told of it ..."""
        self._told: set[int] = set()
        """... and who they are."""
        self._looked_at: Recovery | None = None

    def told(self, worker: int, said: Recovery) -> None:
        """A survivor tells of one."""
        if said.generation in self._said:
            return
        if self._slowest is None or self._slowest.generation != said.generation:
            self.end()
            self._slowest = said
        elif (said.total_ms or 0.0) > (self._slowest.total_ms or 0.0):
            self._slowest = said
        self._told.add(worker)
        if len(self._told) >= said.workers:
            self.end()

    def look(self) -> None:
        """To be called each second: who has told nothing since the last time will not."""
        if self._slowest is self._looked_at:
            self.end()
        self._looked_at = self._slowest

    def end(self) -> None:
        """Wait for nobody any more."""
        said, self._slowest = self._slowest, None
        self._told.clear()
        if said is not None:
            self._said.add(said.generation)
            self._say(said)
