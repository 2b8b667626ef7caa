"""Rehearsed revocations: ``--revoke 2,5@40`` makes workers die as a provider would end them."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Sequence

from spotmpi.protocol.membership import WorkerId
from spotmpi.settings import Revocation

_FIRST_GUESS = 0.002
"""Seconds that the all-reduce may take, before one has been seen."""


class FaultInjection:
    """This worker's own end, if it is named in one; it does nothing to others."""

    def __init__(self, revocations: Sequence[Revocation], me: WorkerId) -> None:
        self._steps = {r.step for r in revocations if me in r.workers}
        self._armed = False
        self._usual = _FIRST_GUESS

    def arm(self, steps: range) -> None:
        """About to enter the all-reduce of these ``steps``: if one is its last, start the clock.

        The moment is drawn anew each time, over the usual length of an all-reduce: the worker
        dies before it has sent anything, in the middle, or when all its peers have the result.
        """
        if self._armed or self._steps.isdisjoint(steps):
            return
        self._armed = True
        delay = random.SystemRandom().uniform(0, self._usual)
        timer = threading.Timer(delay, _die)
        timer.daemon = True
        timer.start()

    def reduced(self, seconds: float) -> None:
        """An all-reduce is through; whoever is to die in it does not live to commit it."""
        if self._armed:
            _die()
        self._usual = seconds


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
