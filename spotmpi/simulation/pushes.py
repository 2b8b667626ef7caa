"""What a worker comes to that gives its model away along a ring, with weights: its side of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spotmpi.protocol.membership import WorkerId
from spotmpi.simulation.model import Array

__all__ = ["Pushes", "Ring", "Rings"]


class Ring(NamedTuple):
    """Which ring one is in."""

    round: int
    generation: int


@dataclass
class Pushes:
    """One worker's, in one ring."""

    ring: Ring
    source: WorkerId
    """Who gives to it."""
    given: Array
    taken: Array
    weight: float = 1.0
    given_weight: float = 0.0
    taken_weight: float = 0.0

    @classmethod
    def begin(cls, ring: Ring, source: WorkerId, like: Array) -> Pushes:
        """Nothing is given yet."""
        return cls(ring, source, np.zeros_like(like), np.zeros_like(like))

    @property
    def numbers(self) -> list[float]:
        """What goes with the sum of all that it has given."""
        return [float(self.ring.round), float(self.ring.generation), self.given_weight]

    def take(self, model: Array, shown: bytes, numbers: list[float]) -> Array:
        """It was given what another one has shown: what its model is then."""
        sums = np.frombuffer(shown, np.float32)
        *there, weight = numbers
        more = weight - self.taken_weight
        if there != self.numbers[:2] or more <= 0:
            return model
        whole = self.weight + more
        gained = np.float32(1.0) * sums - self.taken
        share = np.float32(self.weight / whole)
        self.taken, self.taken_weight, self.weight = sums.copy(), weight, whole
        found: Array = share * model + np.float32(1.0 / whole) * gained
        return found

    def give(self, model: Array) -> Array:
        """It gives half of what it has, if that is enough, and shows all that it has given."""
        if self.weight >= 1:
            self.weight /= 2
            self.given_weight += self.weight
            self.given = self.given + np.float32(self.weight) * model
        return self.given


@dataclass
class Rings:
    """Who gives to whom, in each ring."""

    _takers: dict[tuple[Ring, WorkerId], WorkerId] = field(default_factory=dict)
    _sources: dict[tuple[Ring, WorkerId], WorkerId] = field(default_factory=dict)

    def asks(self, worker: WorkerId, source: WorkerId, ring: Ring) -> str | None:
        """It looks for what ``source`` has given to it; what is wrong with that."""
        taker = self._takers.setdefault((ring, source), worker)
        if taker != worker:
            return f"workers {taker} and {worker} take what worker {source} gives"
        if self._sources.setdefault((ring, worker), source) != source or source == worker:
            return f"worker {worker} takes from worker {source} in the middle of a round"
        return None
