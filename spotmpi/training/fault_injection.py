"""Injected revocations: workers kill themselves, as a provider would end them."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence
from typing import Protocol

from spotmpi.protocol.membership import WorkerId
from spotmpi.settings import Revocation

_FIRST_GUESS = 0.002
"""Seconds that an all-reduce is taken to last, until one has been measured."""


class Faults(Protocol):
    """Hears of a worker's rounds, and may end the worker on purpose."""

    def arm(self, steps: range) -> None:
        """Called before the all-reduce of these ``steps``, or in a step that follows after this
        worker has sent all that it brings."""

    def hold(self) -> None:
        """Called before the start of the part that completes it."""

    def reduced(self, seconds: float) -> None:
        """Called after it. ``seconds``: how long it took."""


class FaultInjection:
    """Ends this worker, if the settings name it. Does nothing to other workers."""

    def __init__(self, revocations: Sequence[Revocation], me: WorkerId) -> None:
        self._steps = {r.step for r in revocations if me in r.workers}
        self._end: threading.Timer | None = None
        self._usual = _FIRST_GUESS

    def arm(self, steps: range) -> None:
        """Start the clock if this worker is to die in one of these ``steps``.

        Called before their all-reduce. The moment is drawn at random each time, over the usual
        length of an all-reduce: the worker dies before it has sent anything, or in the middle.
        """
        if self._end is not None or self._steps.isdisjoint(steps):
            return
        delay = random.SystemRandom().uniform(0, self._usual)
        self._end = threading.Timer(delay, _die)
        self._end.daemon = True
        self._end.start()

    def hold(self) -> None:
        """Wait for the end of this worker, if it is to die in this all-reduce. Blocking.

        Called before the part that completes the all-reduce. If that were sent, others might have
        the step already, and would meet the loss in the next one.
        """
        if self._end is not None:
            self._end.join()

    def reduced(self, seconds: float) -> None:
        """Note how long an all-reduce took."""
        self._usual = seconds


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
