"""How far a training has come, and how far it is to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.protocol.membership import WorkerId
from spotmpi.training.script.script_position import ScriptPosition

__all__ = ["Outlook", "Progress"]

_MOST = (1 << 63) - 1
"""Largest number of steps that the launcher can be told."""


class Progress:
    """How far the training has come: steps, rounds of steps, the last loss."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.steps = 0
        """Steps done, which is also the number of the next step."""
        self.rounds = 0
        """Rounds of steps committed so far."""
        self.adds = 1
        """Steps that the next round of steps adds to `steps`; 0 if `steps` has all of them."""
        self.loss: float | None = None
        """Mean loss of all workers in the last round of steps, weighted as their gradients are."""

    def kept(self) -> Mapping[str, Any]:
        """Return the steps, the rounds, the seed, and the last loss if there is one."""
        loss = {} if self.loss is None else {"loss": float(self.loss)}
        return {"steps": self.steps, "rounds": self.rounds, "seed": self.seed, **loss}

    def resume(self, found: Mapping[str, Any], where: str) -> None:
        """Go on from a checkpoint's step. Raises UsageError if its seed is another one."""
        if found.get("seed") != self.seed:
            raise UsageError(
                f"{where} was written with seed={found.get('seed')!r} and this run has "
                f"seed={self.seed}: samples would be used twice or never; resume with the same seed"
            )
        self.steps, self.rounds = int(found["steps"]), int(found.get("rounds", 0))
        self.loss = float(found["loss"]) if "loss" in found else None

    def snapshot(self, contributors: Sequence[WorkerId] | None) -> Any:
        """Return steps, rounds, loss; with ``contributors``, as after the drawn round: no loss."""
        after = contributors is not None
        return [self.steps + after * self.adds, self.rounds + after, None if after else self.loss]

    def restore(self, told: Any) -> None:
        """Take the other workers' numbers."""
        *numbers, loss = told
        self.steps, self.rounds = map(int, numbers)
        if loss is not None:
            self.loss = float(loss)


class Outlook:
    """How many steps the training has in all, as far as it can be known."""

    def __init__(self, progress: Progress, position: ScriptPosition) -> None:
        self._progress = progress
        self._position = position
        self._counted: tuple[int, int] | None = None
        """Rounds and workers at the time when `_whole` was computed."""
        self._whole: int | None = None

    def whole(self, workers: int) -> int | None:
        """Return the steps in all, if ``workers`` workers take those to come; None: not known."""
        now = self._progress.rounds, workers
        if now != self._counted:  # in the middle of a round's steps it would be too large
            left = self._position.left(workers)
            self._counted = now
            self._whole = None if left is None else min(self._progress.steps + left, _MOST)
        return self._whole
