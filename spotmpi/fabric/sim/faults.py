"""The faults of a simulation: what befalls its workers from outside, and at which event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spotmpi.fabric.sim.timeline import Timeline
from spotmpi.protocol.membership import WorkerId


@dataclass(frozen=True)
class Kill:
    """A fault: ``worker`` dies at event number ``at`` of the simulation."""

    worker: WorkerId
    at: int


@dataclass(frozen=True)
class Arrival:
    """A newcomer: ``worker`` comes at event number ``at`` of the simulation."""

    worker: WorkerId
    at: int


@dataclass(frozen=True)
class LeaveNotice:
    """A notice: ``worker`` is told to leave at event number ``at`` of the simulation."""

    worker: WorkerId
    at: int


class Faults:
    """All faults of one simulation, which happen after the events that they name."""

    def __init__(
        self,
        time: Timeline,
        kills: Iterable[Kill],
        arrivals: Iterable[Arrival],
        notices: Iterable[LeaveNotice],
        stop: int | None,
        arrived: Callable[[WorkerId], None],
    ) -> None:
        self._time = time
        self._kills = sorted(kills, key=lambda kill: kill.at)
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival.at)
        self._notices = {notice.worker: notice.at for notice in notices}
        self._stop = stop
        self.arrived = arrived
        """Called where the schedule has a newcomer."""

    def happen(self, kill: Callable[[WorkerId], None]) -> None:
        """Let all that is due happen. ``kill`` is called with each worker that dies."""
        events = self._time.events
        while self._kills and self._kills[0].at <= events:
            kill(self._kills.pop(0).worker)
        while self._arrivals and self._arrivals[0].at <= events:
            self.arrived(self._arrivals.pop(0).worker)

    def doom(self, worker: WorkerId) -> None:
        """Let ``worker`` die as soon as the present event is over."""
        self._kills.insert(0, Kill(worker, self._time.events))

    @property
    def deadly(self) -> bool:
        """True if a worker dies as soon as the present event is over."""
        return bool(self._kills) and self._kills[0].at <= self._time.events

    def noticed(self, worker: WorkerId) -> bool:
        """Return True if ``worker`` is told to leave."""
        events = self._time.events
        return self._notices.get(worker, events + 1) <= events

    @property
    def stopping(self) -> bool:
        """True if all are told to stop."""
        return self._stop is not None and self._stop <= self._time.events
