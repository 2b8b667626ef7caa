"""Which newcomer is brought in next, and by whom. Pure, fed by the launcher.

A newcomer runs its script on its own until it needs the others, and then waits. One of those that
train, its *sponsor*, brings it in, one newcomer at a time: the sponsor has MPI start a stand-in
for it, and shows it the way into the membership, in which it learns and then trains.
"""

from __future__ import annotations

__all__ = ["Growth"]


class Growth:
    """The workers of one job, as far as newcomers go."""

    def __init__(self, most: int | None = None) -> None:
        """``most``: with so many training (or learning) newcomers are spares, which wait."""
        self.most = most
        self.pair: tuple[int, int] | None = None
        """The sponsor and the newcomer that it brings in now."""
        self._sponsors: list[int] = []
        self._members: set[int] = set()
        self._waiting: list[int] = []

    def trains(self, worker: int) -> None:
        """A worker trains from now on."""
        self._members.add(worker)
        if worker not in self._sponsors:
            self._sponsors.append(worker)

    def waits(self, worker: int) -> None:
        """A newcomer waits to be brought in."""
        if worker not in self._members and worker not in self._waiting:
            self._waiting.append(worker)

    def admitted(self, worker: int) -> None:
        """It is one of the others now, and learns."""
        self._members.add(worker)
        if self.pair is not None and self.pair[1] == worker:
            self.pair = None

    def leaves(self, worker: int) -> tuple[int, ...]:
        """A worker was told to leave. Returns newcomers that cannot be brought in any more."""
        return self._without(worker)

    def gone(self, worker: int) -> tuple[int, ...]:
        """A worker has come to its end. Returns newcomers that cannot be brought in any more."""
        self._members.discard(worker)
        return self._without(worker)

    def gave_up(self, newcomer: int) -> tuple[int, ...]:
        """Its sponsor could not bring it in. Returns it, if that is news."""
        if self.pair is None or self.pair[1] != newcomer:
            return ()
        self.pair = None
        return (newcomer,)

    def next(self) -> tuple[int, int] | None:
        """The `pair` that should be at it now."""
        room = self.most is None or len(self._members) < self.most
        if self.pair is None and self._waiting and self._sponsors and room:
            self.pair = self._sponsors[0], self._waiting.pop(0)
        return self.pair

    def _without(self, worker: int) -> tuple[int, ...]:
        for known in (self._sponsors, self._waiting):
            if worker in known:
                known.remove(worker)
        if self.pair is None or worker not in self.pair:
            return ()
        sponsor, newcomer = self.pair
        self.pair = None
        return (newcomer,) if worker == sponsor else ()
