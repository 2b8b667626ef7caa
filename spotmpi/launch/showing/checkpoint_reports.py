"""What workers say of checkpoints, as lines for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

from spotmpi.launch.messages import Checkpoint, Unsaved

__all__ = ["CheckpointReports"]


class CheckpointReports:
    """Each checkpoint is said once, whoever writes it; so is why one cannot be written."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._saved: set[Checkpoint] = set()
        self.why_not: str | None = None
        """Why the last one could not be written."""
        self._minutes: int | None = None
        """For how many more minutes the training's last one is tried, if users were told that."""
        self.given_up = False
        """True if the training's last one is not tried any more."""

    @property
    def last(self) -> int | None:
        """The last step of which there is one."""
        return max((one.step for one in self._saved), default=None)

    @property
    def ends(self) -> bool:
        """True if the training is over and its last one waits for room."""
        return self._minutes is not None

    def saved(self, said: Checkpoint) -> None:
        """One was written."""
        if said not in self._saved:
            self._saved.add(said)
            self.why_not = None
            self._say(f"checkpoint of step {said.step} written to {said.path}")

    def not_saved(self, said: Unsaved) -> None:
        """One could not be written; it is tried again."""
        if said.patience is not None:
            self._cannot_end(said.why, said.patience)
        elif self.why_not is None:  # each try says so
            self._say(f"{said.why}; make room: it is tried again, and training goes on")
        self.why_not = said.why

    def give_up(self) -> None:
        """The training's last one is not tried any more."""
        self.given_up = True

    def _cannot_end(self, why: str, patience: float) -> None:
        """Say it at once, and again each minute."""
        minutes = math.ceil(patience / 60)
        if minutes != self._minutes:
            self._minutes = minutes
            self._say(
                f"the training is over, but {why}; make room: it is tried again for "
                f"{minutes} min more, or end the job without it: Ctrl-C twice, or `spotmpi stop "
                "--now`"
            )
