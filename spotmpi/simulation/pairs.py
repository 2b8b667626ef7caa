"""What workers come to that exchange models in pairs, worked out from what each of them was given.

They take steps between rounds at their own pace, and average their models with those of others as
these were some time before. So what they come to follows from no record: it is followed here step
by step, and each model that a worker shows must be equal to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from spotmpi.fabric import Fetched
from spotmpi.optimizers import Momentum
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices
from spotmpi.simulation.model import RATE, Array, gradient

__all__ = ["Pairs"]


@dataclass
class _Own:
    """One worker's model, and all that it has shown."""

    model: Array
    velocity: Array
    shown: list[Array] = field(default_factory=list)
    known: dict[WorkerId, int] = field(default_factory=dict)
    """The latest model of each other worker that it was given, by its number."""
    first: int = -1
    """The step that its round begins with."""


class Pairs:
    """The models of all workers."""

    def __init__(self) -> None:
        self._optimizer = Momentum(lr=RATE)
        self._workers: dict[WorkerId, _Own] = {}
        self.batches: dict[tuple[int, WorkerId], list[int]] = {}
        """What a worker used on the way to a round, of which that is the first step ..."""
        self.ends: dict[tuple[int, WorkerId], Array] = {}
        """... and the model that it came to."""

    def gradient(
        self, worker: WorkerId, first: int, agreed: Array, batch: Indices, grads: Array
    ) -> str | None:
        """It brings this to a step on the way to a round; what is wrong with it. ``agreed``: the
        model of all, as it was before step ``first``."""
        zeros = np.zeros_like(agreed)
        own = self._workers.setdefault(worker, _Own(agreed.copy(), zeros))
        if first != own.first:
            own.first, own.model = first, agreed.copy()
        if grads.tobytes() != gradient(own.model, batch).tobytes():
            return f"worker {worker} trains from parameters that are not its own"
        self.batches.setdefault((first, worker), []).extend(batch.tolist())
        slots = {"velocity": [own.velocity]}
        self._optimizer.update([own.model], [grads], slots, RATE, 1.0)
        self.ends[first, worker] = own.model.copy()
        return None

    def fetched(self, worker: WorkerId, found: Fetched) -> str | None:
        """It was given another's model."""
        own, whose = self._workers[worker], self._workers.get(found.worker)
        if whose is None or found.number >= len(whose.shown):
            return f"worker {worker} was given a model that {found.worker} has not shown"
        if _bits(found.model) != whose.shown[found.number].tobytes():
            return f"worker {worker} was given a model that worker {found.worker} never had"
        if found.number < own.known.get(found.worker, 0):
            return f"worker {worker} was given an older model of worker {found.worker} than before"
        own.known[found.worker] = found.number
        half = np.float32(0.5)
        own.model = half * own.model + half * whose.shown[found.number]
        self.ends[own.first, worker] = own.model.copy()
        return None

    def shown(self, worker: WorkerId, model: object) -> str | None:
        """It shows this to others."""
        own = self._workers[worker]
        if _bits(model) != own.model.tobytes():
            return f"worker {worker} shows a model that does not follow from its steps"
        own.shown.append(own.model.copy())
        return None


def _bits(model: object) -> bytes:
    """Of buckets that each hold an array, the last one first."""
    assert isinstance(model, list | tuple)
    return b"".join(np.asarray(flat).tobytes() for flat in model[::-1])
