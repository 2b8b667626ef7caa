"""How near a host came to counting as lost: the silences that its head has judged."""

from __future__ import annotations

__all__ = ["WINDOW", "Silences"]

WINDOW = 5
"""Seconds of one window; they begin at the multiples of this on ``time.monotonic()``'s clock."""


class Silences:
    """One host's, in seconds. Pure: whoever judges says when it does.

    Only what comes to be known by being the longest so far is looked at closely, so a host that
    answers in time costs no more than a comparison.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        """Of all."""
        self.recent: float | None = None
        """The longest in the last whole window; None before there was one."""
        self.allowed = 0.0
        """After which it would count as lost, now."""
        self._window = -2  # not the one before any
        self._so_far = 0.0

    def news(self, silence: float, now: float) -> bool:
        """Whether nothing as long was seen in this window: if it is a silence, `saw` is next."""
        window = int(now // WINDOW)
        if window != self._window:
            # A head that slept over a whole window has seen nothing in it.
            self.recent = self._so_far if window == self._window + 1 else None
            self._window, self._so_far = window, 0.0
        return silence > self._so_far

    def saw(self, silence: float) -> None:
        """Nothing was heard of the host for so long."""
        self._so_far = silence
        self.longest = max(self.longest, silence)
