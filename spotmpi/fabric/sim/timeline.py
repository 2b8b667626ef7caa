"""The time of a simulation: a queue of actions, each at a moment that is drawn."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Delays:
    """The longest that things take, in seconds. Each time is drawn between 0 and this."""

    message: float = 0.001
    notice: float = 0.02
    """Time until a worker learns of a loss."""
    revoke: float = 0.003
    collective: float = 0.002
    compute: float = 0.005
    """Time before each data collective, in place of the gradient."""
    write: float = 0.005
    """Time of work in the background."""
    spawn: float = 0.02
    """Time until a newcomer is connected to its sponsor."""


USUAL = Delays()


class Timeline:
    """The actions of a simulation, which are done one after the other at moments that are drawn."""

    def __init__(self, seed: int, delays: Delays) -> None:
        self.random = random.Random(seed)
        self.delays = delays
        self.now = 0.0
        """Simulated seconds."""
        self.events = 0
        """Number of actions that were begun."""
        self._ticket = 0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._soon: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Actions that come next, before time goes on."""

    def after(self, longest: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` within ``longest`` seconds."""
        # Squared, so that most things happen quickly and some much later.
        self.at(self.now + longest * self.random.random() ** 2, action, *arguments)

    def at(self, moment: float, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` when it is ``moment``."""
        self._ticket += 1
        heapq.heappush(self._queue, (moment, self._ticket, action, arguments))

    def soon(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call ``action`` before time goes on."""
        self._soon.append((action, arguments))

    def step(self) -> bool:
        """Do the next action. Returns False if there is none."""
        if self._soon:
            action, arguments = self._soon.popleft()
        elif self._queue:
            self.now, _, action, arguments = heapq.heappop(self._queue)
        else:
            return False
        self.events += 1
        action(*arguments)
        return True
