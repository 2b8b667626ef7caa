"""How long a worker's script computes and waits."""

from __future__ import annotations

from spotmpi.launcher_channel import Measured
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.paces import Pace

__all__ = ["Meter"]


class Meter:
    """Measures how long this worker's script computes and waits.

    `pace` covers the time since the last survey; `measured` covers all, for the launcher.
    """

    def __init__(self) -> None:
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._since: float | None = None
        self._waits_since: float | None = None
        self._used = 0
        self._computed = self._waited = self._stalled = self._stalling = 0.0

    def computes(self, now: float) -> None:
        """Begin to count computing: the script goes on."""
        if self._waits_since is not None:
            waited = now - self._waits_since
            self._waited += waited
            self._stalled += min(self._stalling, waited)
        self._since, self._waits_since, self._stalling = now, None, 0.0

    def waits(self, now: float) -> None:
        """Begin to count waiting: the script has come to a step, or to another call to spotmpi."""
        if self._since is not None:
            self._seconds += now - self._since
            self._computed += now - self._since
        self._since, self._waits_since = None, now

    def stalls(self, seconds: float) -> None:
        """Count ``seconds`` of the present wait as spent on a change of the membership."""
        self._stalling += seconds

    def used(self, samples: int) -> None:
        """Count committed samples, of all workers."""
        self._used += samples

    def measured(self, whole: int | None) -> Measured:
        """Return the measures of all that is over. ``whole``: steps of the training, if known."""
        return Measured(whole or 0, self._used, self._computed, self._waited, self._stalled)

    def took(self, samples: int) -> None:
        """Count a step of this worker with this number of samples."""
        self._steps += 1
        self._samples += samples

    def pace(self, me: WorkerId) -> Pace:
        """Return this worker's pace since the last survey."""
        return Pace(me, self._steps, self._steps, self._samples, self._seconds)

    def reset(self) -> None:
        """Begin again to measure the pace."""
        self._steps = self._samples = 0
        self._seconds = 0.0
