"""Which newcomer is brought in next, and by whom. Pure, fed by the launcher.

A newcomer runs its script on its own until it needs the others, and then waits. One of those that
train, its *sponsor*, brings it in, one newcomer at a time: the sponsor has MPI start a stand-in
for it, and shows it the way into the membership, in which it learns and then trains
(`spotmpi.protocol.joining`).
"""

from __future__ import annotations

from spotmpi.protocol.joining import SPONSORED, Stage, after

__all__ = ["Growth"]

_MEMBERS = (Stage.LEARNING, Stage.TRAINING)


class Growth:
    """The workers of one job, as far as newcomers go."""

    def __init__(self, most: int | None = None) -> None:
        """``most``: with so many training (or learning) newcomers are spares, which wait."""
        self.most = most
        self.pair: tuple[int, int] | None = None
        """The sponsor and the newcomer that it brings in now."""
        self._stages: dict[int, Stage] = {}
        self._sponsors: list[int] = []
        """Those that may bring in others, the best one first."""
        self._waiting: list[int] = []

    @property
    def waits(self) -> bool:
        """Whether somebody waits to be brought in."""
        return bool(self._waiting)

    def stage(self, worker: int) -> Stage:
        """How far a worker has come."""
        return self._stages.get(worker, Stage.ASKED)

    def trains(self, worker: int) -> None:
        """A worker trains that was there from the beginning."""
        self._move(worker, Stage.TRAINING)

    def heard(self, worker: int, event: str) -> bool:
        """Take what is heard of a newcomer; whether it has come further by that."""
        stage = after(self.stage(worker), event)
        moved = stage is not self.stage(worker)
        if moved:
            self._move(worker, stage)
        return moved

    def leaves(self, worker: int) -> tuple[int, ...]:
        """A worker was told to leave. Returns newcomers that cannot be brought in any more."""
        return self._without(worker)

    def gone(self, worker: int) -> tuple[int, ...]:
        """A worker has come to its end. Returns newcomers that cannot be brought in any more."""
        self._stages[worker] = after(self.stage(worker), "gone")
        return self._without(worker)

    def failed(self, newcomer: int) -> tuple[int, ...]:
        """It could not be brought in: another sponsor is to bring in the next one, if there is
        another. Returns it, if that is news."""
        if self.pair is None or self.pair[1] != newcomer:
            return ()
        sponsor = self.pair[0]
        self._sponsors.remove(sponsor)
        self._sponsors.append(sponsor)
        self.pair = None
        return (newcomer,)

    def next(self) -> tuple[int, int] | None:
        """The `pair` that should be at it now."""
        members = sum(stage in _MEMBERS for stage in self._stages.values())
        room = self.most is None or members < self.most
        if self.pair is None and self._waiting and self._sponsors and room:
            self.pair = self._sponsors[0], self._waiting.pop(0)
            self.heard(self.pair[1], "chosen")
        return self.pair

    def _move(self, worker: int, stage: Stage) -> None:
        self._stages[worker] = stage
        if stage is Stage.READY:
            self._waiting.append(worker)
        elif stage is Stage.TRAINING:
            self._sponsors.append(worker)
        if self.pair is not None and self.pair[1] == worker and stage not in SPONSORED:
            self.pair = None

    def _without(self, worker: int) -> tuple[int, ...]:
        for known in (self._sponsors, self._waiting):
            if worker in known:
                known.remove(worker)
        if self.pair is None or worker not in self.pair:
            return ()
        sponsor, newcomer = self.pair
        self.pair = None
        return (newcomer,) if worker == sponsor else ()
