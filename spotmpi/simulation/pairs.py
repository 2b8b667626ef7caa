"""What workers come to that exchange models, worked out from what each of them was given.

They take steps between rounds at their own pace, and average their models with those of others, or
with what these have given away (`pushes`), as that was some time before. So what they come to
follows from no record: it is followed here step by step, and each model that a worker shows must be
equal to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from spotmpi.fabric import Fetched
from spotmpi.optimizers import Momentum
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices
from spotmpi.simulation.model import RATE, Array, gradient
from spotmpi.simulation.pushes import Pushes, Ring, Rings

__all__ = ["Pairs", "Shown"]


class Shown(NamedTuple):
    """What a worker has shown."""

    arrays: bytes
    numbers: list[float]
    first: int
    """The first step of the round that it was on the way to."""
    pushed: bool
    """It is what the worker has given away."""


@dataclass
class _Own:
    """One worker's model, and all that it has shown."""

    model: Array
    velocity: Array
    shown: list[Shown] = field(default_factory=list)
    known: dict[WorkerId, int] = field(default_factory=dict)
    """The latest model of each other worker that it was given, by its number."""
    given: set[int] = field(default_factory=set)
    """The models that it has shown and another worker was given to average with."""
    first: int = -1
    """The step that its round begins with."""
    pushes: Pushes | None = None
    """What it gives and takes, if it does not average in pairs."""


class Pairs:
    """The models of all workers."""

    def __init__(self) -> None:
        self._optimizer = Momentum(lr=RATE)
        self._workers: dict[WorkerId, _Own] = {}
        self._rings = Rings()
        self._firsts: dict[int, int] = {}
        """The first step on the way to each round, by the round's number."""
        self.batches: dict[tuple[int, WorkerId], list[int]] = {}
        """What a worker used on the way to a round, of which that is the first step ..."""
        self.ends: dict[tuple[int, WorkerId], Array] = {}
        """... and the model that it came to."""
        self._velocities: dict[WorkerId, dict[int, Array]] = {}
        """What each came to remember on the way to the round that begins with some step."""
        self._begun: dict[int, dict[WorkerId, Array]] = {}

    def begins(self, worker: WorkerId, step: int, velocity: Array) -> None:
        """It goes at its own pace from this step on, and remembers this from before."""
        self._begun.setdefault(step, {})[worker] = velocity.copy()
        self._velocities.setdefault(worker, {})[step - 1] = velocity.copy()
        own = self._workers.setdefault(worker, _Own(velocity, velocity))
        own.velocity, own.first = velocity.copy(), -1

    def begun(self, step: int) -> Mapping[WorkerId, Array]:
        """What workers said that they remember who go at their own pace from this step on."""
        return self._begun.get(step, {})

    def velocity(self, worker: WorkerId, first: int, like: Array) -> Array:
        """What it remembers after the round that begins with this step."""
        known = self._velocities.get(worker, {})
        latest = max((one for one in known if one <= first), default=None)
        return np.zeros_like(like) if latest is None else known[latest]

    def gradient(
        self, worker: WorkerId, first: int, agreed: Array, batch: Indices, grads: Array
    ) -> str | None:
        """It brings this to a step on the way to a round; what is wrong with it. ``agreed``: the
        model of all, as it was before step ``first``."""
        zeros = np.zeros_like(agreed)
        own = self._workers.setdefault(worker, _Own(agreed.copy(), zeros))
        if first != own.first:
            own.first, own.model = first, agreed.copy()
            own.velocity = self.velocity(worker, first - 1, agreed).copy()
        if grads.tobytes() != gradient(own.model, batch).tobytes():
            return f"worker {worker} trains from parameters that are not its own"
        self.batches.setdefault((first, worker), []).extend(batch.tolist())
        slots = {"velocity": [own.velocity]}
        self._optimizer.update([own.model], [grads], slots, RATE, 1.0)
        self._velocities.setdefault(worker, {})[first] = own.velocity.copy()
        self.ends[first, worker] = own.model.copy()
        return None

    def asks(self, worker: WorkerId, source: WorkerId, ring: Ring | None) -> str | None:
        """It looks for what another one shows. ``ring``: in which that gives models away."""
        own = self._workers[worker]
        if ring is None:
            own.pushes = None
            return None
        if own.pushes is None or own.pushes.ring != ring:
            own.pushes = Pushes.begin(ring, source, own.model)
        return self._rings.asks(worker, source, ring)

    def fetched(self, worker: WorkerId, found: Fetched) -> str | None:
        """It was given another's model."""
        own, whose = self._workers[worker], self._workers.get(found.worker)
        *arrays, numbers = found.model
        if whose is None or found.number >= len(whose.shown):
            return f"worker {worker} was given a model that {found.worker} has not shown"
        shown = whose.shown[found.number]
        if (_bits(arrays), numbers.tolist()) != (shown.arrays, shown.numbers):
            return f"worker {worker} was given a model that worker {found.worker} never had"
        if found.number < own.known.get(found.worker, 0):
            return f"worker {worker} was given an older model of worker {found.worker} than before"
        own.known[found.worker] = found.number
        if (shown.first, shown.pushed) != (own.first, own.pushes is not None):
            return None  # from before a round that all have gone on from
        half = np.float32(0.5)
        if own.pushes is None:
            if found.number in whose.given:
                return f"worker {worker} was given a model of {found.worker} that another one had"
            whose.given.add(found.number)
            own.model = half * own.model + half * np.frombuffer(shown.arrays, np.float32)
        elif found.worker == own.pushes.source:
            own.model = own.pushes.take(own.model, shown.arrays, shown.numbers)
        self.ends[own.first, worker] = own.model.copy()
        return None

    def shown(self, worker: WorkerId, model: Sequence[Any]) -> str | None:
        """It shows this to others: its model, or what it has given away; and numbers, of which
        that of the round is the first."""
        own = self._workers[worker]
        *arrays, numbers = model
        expected = own.model if own.pushes is None else own.pushes.give(own.model)
        if _bits(arrays) != expected.tobytes():
            return f"worker {worker} shows a model that does not follow from its steps"
        said: list[float] = numbers.tolist()
        if self._firsts.setdefault(int(said[0]), own.first) != own.first:
            return f"worker {worker} shows a model as one of round {said[0]}, which it is not of"
        if own.pushes is not None and said != own.pushes.numbers:
            return f"worker {worker} says {said} of what it gives, and it is {own.pushes.numbers}"
        known = own.first, own.pushes is not None
        own.shown.append(Shown(expected.tobytes(), said, *known))
        return None


def _bits(model: Sequence[Any]) -> bytes:
    """Of buckets that each hold an array, the last one first."""
    return b"".join(np.asarray(flat).tobytes() for flat in model[::-1])
