"""The trainings of one process, one after another, and their memberships."""

from __future__ import annotations

from typing import Any

from spotmpi.errors import UsageError
from spotmpi.protocol.membership import Membership
from spotmpi.training.briefing import Briefing

__all__ = ["History"]


class History:
    """The trainings of one process. Local, all of it."""

    def __init__(self) -> None:
        self.number = -1
        """Number of the training that this process is in, or was in last; the first one is 0."""
        self.membership: Membership | None = None
        """Membership at the end of the last training, if this process took part in it."""
        self.workers: int | None = None
        """Number of workers that the job began with, for which learning rates are meant."""
        self.past: list[dict[str, Any]] = []
        """For each training that is over: what a newcomer needs to come through it by itself."""
        self.briefing: Briefing | None = None
        """For a newcomer: what it was told last of the training that the others are in."""
        self._inside = False

    def enter(self) -> int:
        """Begin the next training and return its number. UsageError if the last one is not over."""
        if self._inside:
            raise UsageError(
                "the last Trainer has not come to its end: leave its `with` block before the next "
                "one begins; a process is in one training at a time"
            )
        self._inside = True
        self.number += 1
        return self.number

    def give_up(self) -> None:
        """Forget this training: it came to nothing, and does not count."""
        self._inside = False
        self.number -= 1

    def over(self, told: dict[str, Any], membership: Membership) -> None:
        """Note that the training is over. ``membership``: its members, this process among them."""
        self._inside = False
        self.past.append(told)
        self.membership = membership

    def passed_by(self) -> None:
        """Note that this process has come through a training that was over before."""
        self._inside = False

    def follow(self, briefing: Briefing) -> None:
        """Take from ``briefing`` which training the others are in. Those before it are over."""
        self.briefing = briefing
        self.past = list(briefing.past)
        self.workers = briefing.workers
