"""What the first calls of a script returned on all workers, for newcomers that make them again."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

__all__ = ["SUMS", "FirstAnswers"]

_MOST = 16384
"""Bytes of answers that are kept."""
_MANY = 256
"""Answers that are kept, at most."""
SUMS = 2
"""Sums of gradients until a script's first calls are over: after the first one DDP puts gradients
together in another way, and lets the first worker say how."""


class FirstAnswers:
    """Answers to calls of all workers, in order, each with what was asked."""

    def __init__(self) -> None:
        """Begin with none."""
        self._kept: list[tuple[str, str | None]] = []
        """What was asked, and the answer as text; None: there was no room for it."""
        self._room = _MOST
        self._had = 0
        """How many calls this worker has made again."""
        self._strays = False
        """True if one of them was another one than the others'."""
        self.sums = 0
        """Sums of gradients that this worker's script has made."""

    @property
    def over(self) -> bool:
        """True if the first calls are over."""
        return self.sums >= SUMS

    def has_room(self, size: int) -> bool:
        """Return True if an answer of so many bytes is kept now."""
        return not self.over and len(self._kept) < _MANY and size <= self._room

    def keep(self, asked: str, answer: bytes | None) -> None:
        """Keep an answer, if it is one of the first ones; None: one that there is no room for."""
        if self.over or len(self._kept) == _MANY:
            return
        if answer is None or not self.has_room(len(answer)):
            self._kept.append((asked, None))
            return
        self._room -= len(answer)
        self._kept.append((asked, base64.b64encode(answer).decode()))

    @property
    def used_up(self) -> bool:
        """True if nothing more can be recalled."""
        return self._strays or self._had >= len(self._kept)

    def recall(self, asked: str) -> bytes | None:
        """Return the next answer; None if it is not kept. If something else was asked than all
        others did then, nothing is recalled any more."""
        if self.over:
            return None
        self._had += 1  # also beyond those that are known: more may be told later
        if self._strays or self._had > len(self._kept):
            return None
        before, answer = self._kept[self._had - 1]
        self._strays = before != asked
        return base64.b64decode(answer) if answer and not self._strays else None

    def told(self) -> list[tuple[str, str | None]]:
        """Return what newcomers are told, as JSON values."""
        return self._kept

    def follow(self, told: Sequence[Any]) -> None:
        """Take what others have told."""
        self._kept = [(asked, answer) for asked, answer in told]
