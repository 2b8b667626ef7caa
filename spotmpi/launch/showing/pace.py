"""How fast a training goes, from what its workers say of themselves now and then: pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from spotmpi.launcher_channel import Measured

__all__ = ["Pace", "Speed"]

_WINDOW = 10.0
"""Seconds that are looked back on ..."""

_LEAST = 4
"""... and news, if steps are long."""


class _Standing(Protocol):
    """How far a worker has come."""

    @property
    def steps(self) -> int:
        """Committed."""

    @property
    def measured(self) -> Measured:
        """What it counts."""


class Speed(NamedTuple):
    """Of the last seconds."""

    steps: float
    """A second."""
    samples: float
    """A second, of all workers; 0 where they are not known."""


class _News(NamedTuple):
    at: float
    steps: int
    samples: int


class Pace:
    """One job's."""

    def __init__(self) -> None:
        self._news: deque[_News] = deque()
        self._seen: tuple[int, int] | None = None
        """The worker whose count of samples is followed, and that count."""
        self.samples = 0
        """That were used in all."""

    def see(self, now: float, workers: Mapping[int, _Standing]) -> None:
        """Take how far those have come that train."""
        if not workers:
            return
        steps = max(one.steps for one in workers.values())
        if self._seen is None or self._seen[0] not in workers:
            worker = max(workers, key=lambda one: (workers[one].steps, -one))
            if self._seen is not None:  # each counts from when it began itself
                self._seen = worker, workers[worker].measured.samples
        else:
            worker = self._seen[0]
        count = workers[worker].measured.samples
        self.samples += max(0, count - (0 if self._seen is None else self._seen[1]))
        self._seen = worker, count
        news = self._news
        if news and steps <= news[-1].steps:
            return
        news.append(_News(now, steps, self.samples))
        while len(news) > _LEAST and now - news[1].at >= _WINDOW:
            news.popleft()

    def speed(self, now: float) -> Speed | None:
        """How fast it goes; None before two looks have seen a difference."""
        if len(self._news) < 2:
            return None
        first, last = self._news[0], self._news[-1]
        apart = (last.at - first.at) / (len(self._news) - 1)
        # Who has said nothing for longer than usual goes slower than it did.
        until = last.at if now - last.at <= 2 * apart else now - apart
        seconds = until - first.at
        return Speed((last.steps - first.steps) / seconds, (last.samples - first.samples) / seconds)
