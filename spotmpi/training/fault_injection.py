"""Rehearsed revocations: workers die as a provider would end them."""

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
"""Seconds that the all-reduce may take, before one has been seen."""


class Rehearsal(Protocol):
    """What a session tells of its rounds to whatever ends its worker on purpose."""

    def arm(self, steps: range) -> None:
        """About to enter the all-reduce of these ``steps``."""

    def hold(self) -> None:
        """About to start what completes it."""

    def reduced(self, seconds: float) -> None:
        """It is through, and took so long."""


class FaultInjection:
    """This worker's own end, if it is named in one; it does nothing to others."""

    def __init__(self, revocations: Sequence[Revocation], me: WorkerId) -> None:
        self._steps = {r.step for r in revocations if me in r.workers}
        self._end: threading.Timer | None = None
        self._usual = _FIRST_GUESS

    def arm(self, steps: range) -> None:
        """About to enter the all-reduce of these ``steps``: if one is its last, start the clock.

        The moment is drawn anew each time, over the usual length of an all-reduce: the worker
        dies before it has sent anything, or in the middle.
        """
        if self._end is not None or self._steps.isdisjoint(steps):
            return
        delay = random.SystemRandom().uniform(0, self._usual)
        self._end = threading.Timer(delay, _die)
        self._end.daemon = True
        self._end.start()

    def hold(self) -> None:
        """About to start what completes the all-reduce: whoever is to die in it waits for that.

        Else others might have the step already, and would meet the loss in the next one.
        """
        if self._end is not None:
            self._end.join()

    def reduced(self, seconds: float) -> None:
        """An all-reduce is through, and took so long."""
        self._usual = seconds


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
