"""One host's beats, as the head hears them by its link and by UDP, and what its silence means."""

from __future__ import annotations

from spotmpi.launch.event_loop import Loop
from spotmpi.launch.link import AT_START, HostLink
from spotmpi.launch.liveness import Hearing, Pulses, Silences, bounds
from spotmpi.launch.udp_beats import UdpBeats

__all__ = ["HostBeats"]

_BETWEEN_DATAGRAMS = 1.0
"""Seconds between two of the head's own beats by UDP: they keep firewalls open, no more."""

_LINK, _UDP = "link", "udp"
"""The ways by which a host's beats come."""


class HostBeats:
    """The beats of one host, judged in the time of the head's `Hearing`.

    ``detect_ms`` is how long it may be silent; None: that is found out. After ``fence`` seconds
    without its link it is lost in any case.
    """

    def __init__(
        self,
        loop: Loop,
        link: HostLink,
        hearing: Hearing,
        detect_ms: int | None,
        fence: float,
    ) -> None:
        self._link = link
        self._hearing = hearing
        self._fence = fence
        self._pulses = Pulses(*bounds(detect_ms))
        self._pulses.beat(_LINK, hearing.time, hearing.clock)
        self._heard = self._heard_by_udp = 0.0
        self._awake = hearing.awake
        """How long the head had been awake when the link was heard."""
        self._taken = hearing.clock
        """When what was heard was last taken into account."""
        self.udp = UdpBeats(loop, link.seal, _BETWEEN_DATAGRAMS)
        self.settled = False
        """All of the job, or a newcomer of its own, had started: it may be silent for less now."""
        self.silences = Silences()
        """Since then."""

    def send(self, now: float) -> None:
        """Let the host know that the head lives."""
        self._link.beat()
        self.udp.beat(now)

    @property
    def news(self) -> bool:
        """Whether something was heard that was not taken into account."""
        return self._link.heard != self._heard or self.udp.heard != self._heard_by_udp

    def take(self) -> float:
        """Take into account what was heard. Returns the seconds since the last time."""
        if self._link.heard != self._heard:
            self._heard, self._awake = self._link.heard, self._hearing.awake
            self._pulses.beat(_LINK, self._hearing.time, self._hearing.clock)
        if self.udp.heard != self._heard_by_udp:
            self._heard_by_udp = self.udp.heard
            self._pulses.beat(_UDP, self._hearing.time, self._hearing.clock)
        before, self._taken = self._taken, self._hearing.clock
        return self._taken - before

    def settle(self) -> None:
        """From now on its silence is short."""
        if not self.settled:
            self.settled = True
            self._pulses.restart(self._hearing.time, self._hearing.clock)

    def lost_after(self, now: float, certain: bool) -> float | None:
        """Seconds of the silence after which the host counts as lost; None: it does not.

        ``certain``: silences may be judged now.
        """
        if not self.udp.at_work:
            self._pulses.forget(_UDP)
        silence = self._pulses.silence(self._hearing.time)
        # Without its link it is of no use, however well its datagrams are heard.
        unheard = self._hearing.awake - self._awake
        least = 0.0 if self.settled else AT_START
        self.silences.allowed = self._pulses.limit(least)
        lost = certain and self._pulses.lost(self._hearing.time, least)
        longest = self.settled and self.silences.news(silence, now)
        # What has come but was not read yet is the head's own delay, and no silence.
        if not (longest or lost or unheard > self._fence) or self._link.readable:
            return None
        if unheard > self._fence:
            return unheard
        self.udp.hear()
        if self.udp.heard != self._heard_by_udp:
            return None
        if lost:
            return silence
        self.silences.saw(silence)
        return None
