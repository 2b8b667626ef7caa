"""The trainings of one process, one after another, and with whom they were."""

from __future__ import annotations

from typing import Any

from spotmpi.errors import UsageError
from spotmpi.protocol.membership import Membership

__all__ = ["History"]


class History:
    """One process's. Local, all of it."""

    def __init__(self) -> None:
        self.number = -1
        """Of the training that this process is in, or was in last; the first one is 0."""
        self.membership: Membership | None = None
        """The others after the last one, if this process took part in it."""
        self.workers: int | None = None
        """How many the job began with: what learning rates are meant for."""
        self.past: list[dict[str, Any]] = []
        """Of each that is over, what a newcomer needs to come through it by itself."""
        self.prospectus: dict[str, Any] | None = None
        """Of a newcomer: what it was told last, of the training that the others are in."""
        self._inside = False

    def enter(self) -> int:
        """The next training begins; its number. UsageError if the last one is not over."""
        if self._inside:
            raise UsageError(
                "the last Trainer has not come to its end: leave its `with` block before the next "
                "one begins; a process is in one training at a time"
            )
        self._inside = True
        self.number += 1
        return self.number

    def give_up(self) -> None:
        """The training came to nothing, and does not count."""
        self._inside = False
        self.number -= 1

    def over(self, told: dict[str, Any], membership: Membership) -> None:
        """The training is over for its members, of which this process is one."""
        self._inside = False
        self.past.append(told)
        self.membership = membership

    def passed_by(self) -> None:
        """This process has come through a training that was over before."""
        self._inside = False

    def follow(self, prospectus: dict[str, Any]) -> None:
        """The others are in that training; those before it are over."""
        self.prospectus = prospectus
        self.past = list(prospectus["past"])
        self.workers = int(prospectus["workers"])

    def told(self) -> dict[str, Any]:
        """For a newcomer, beside what it needs of this training."""
        return {"training": self.number, "past": self.past, "workers": self.workers}
