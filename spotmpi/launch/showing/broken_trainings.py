"""Trainings that are not finite any more: each is said once, and who has brought it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spotmpi.launch.messages import NotFinite

__all__ = ["BrokenTrainings"]


@dataclass
class _Broken:
    step: int
    by: list[str] = field(default_factory=list)
    """Workers that have brought such numbers to that step, and are not told of yet; ..."""
    others: list[str] = field(default_factory=list)
    """... and workers that have not."""


class BrokenTrainings:
    """All workers find it after the same step, and each says what it had brought."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._broken: dict[int, _Broken] = {}

    def told(self, training: int, worker: str, said: NotFinite) -> None:
        """One of them, as people know it, says so."""
        if training not in self._broken:
            self._broken[training] = _Broken(said.step)
            self._say(f"step {said.step}: {said.why}")
        broken = self._broken[training]
        if said.step != broken.step:
            return
        (broken.by if said.brought else broken.others).append(worker)
        if broken.others:  # if all have brought it, they may have it from an earlier step
            for one in broken.by:
                self._say(f"step {said.step}: {one} brought it to the others")
            broken.by.clear()
