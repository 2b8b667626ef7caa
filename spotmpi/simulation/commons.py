"""What workers come to that share a model without locks, worked out from what each of them was
given.

What a worker has in the sum must be just what it has done since the round; what it finds there must
be made up of what those of its host have put in, half of it at times; and it must train what
follows from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spotmpi.fabric import AddUp
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices
from spotmpi.simulation.model import RATE, Array, gradient
from spotmpi.simulation.shards import Exchanges

__all__ = ["Commons"]

_NEAR = 1e-4
"""By which a sum may differ that was made in another order."""


@dataclass
class _Mate:
    """One worker, on its way to a round."""

    first: int
    agreed: Array
    """The model of all, from which it began."""
    own: Array
    """What its own steps have made of it."""
    params: Array
    """What it trains."""
    velocity: Array


@dataclass
class _Part:
    """What a worker has in a sum, element by element at least and at most: while it puts another
    part in, or while somebody looks at the sum meanwhile."""

    least: Array
    most: Array

    def may_be(self, part: Array) -> _Part:
        """Also that."""
        return _Part(np.minimum(self.least, part), np.maximum(self.most, part))


_Parts = dict[WorkerId, _Part]


class Commons(Exchanges):
    """The models of all workers, with which of these strategies they go at the time."""

    def __init__(self, arrays: int) -> None:
        """Of models of so many arrays, each in a bucket of its own."""
        super().__init__(arrays)
        self._shares: dict[WorkerId, bool] = {}
        """Whether it shares a model."""
        self._mates: dict[WorkerId, _Mate] = {}
        self._parts: dict[tuple[int, int], _Parts] = {}
        """In the sum of each round and host, ..."""
        self._looks: dict[tuple[int, int], dict[WorkerId, _Parts]] = {}
        """... and what may have been found there by those who look at it now."""

    def among(self, worker: WorkerId, members: Sequence[WorkerId], strategy: str) -> None:
        """Its next step is with these, and with this strategy."""
        super().among(worker, members, strategy)
        self._shares[worker] = strategy.partition(":")[0] == "hogwild"

    def gradient(
        self, worker: WorkerId, first: int, agreed: Array, batch: Indices, grads: Array
    ) -> str | None:
        """As `Pairs.gradient`."""
        if not self._shares[worker]:
            return super().gradient(worker, first, agreed, batch, grads)
        mate = self._mates.get(worker)
        if mate is None or mate.first != first:
            velocity = self.velocity(worker, first - 1, agreed).copy()
            model = agreed.copy()
            mate = self._mates[worker] = _Mate(first, model, model.copy(), model.copy(), velocity)
        if grads.tobytes() != gradient(mate.params, batch).tobytes():
            return f"worker {worker} trains what is not the model that it shares"
        self.batches.setdefault((first, worker), []).extend(batch.tolist())
        slots = {"velocity": [mate.velocity]}
        self._rule.update([mate.own], [grads], slots, RATE, 1.0)
        self._velocities.setdefault(worker, {})[first] = mate.velocity.copy()
        self.ends[first, worker] = mate.own.copy()
        return None

    def adds(self, worker: WorkerId, host: int, asked: AddUp) -> str | None:
        """It is about to put this into a sum."""
        mate, done = self._mates[worker], _whole(asked.part)
        if done.tobytes() != (mate.own - mate.agreed).tobytes():
            return f"worker {worker} adds what it has not done"
        if self._firsts.setdefault(asked.round, mate.first) != mate.first:
            return f"worker {worker} adds to the sum of round {asked.round}, where it is not"
        if worker not in asked.among:
            return f"worker {worker} takes steps, and is not among {asked.among}"
        place = asked.round, host
        parts, looks = self._parts.setdefault(place, {}), self._looks.setdefault(place, {})
        nothing = np.zeros_like(done)
        for known in (parts, *looks.values()):
            known[worker] = known.get(worker, _Part(nothing, nothing)).may_be(done)
        looks[worker] = dict(parts)
        return None

    def added(self, worker: WorkerId, host: int, asked: AddUp, many: int) -> str | None:
        """It has, and found what is there now, of so many workers."""
        mate, done, place = self._mates[worker], _whole(asked.part), (asked.round, host)
        found = self._looks[place].pop(worker)
        if many == 1:
            del self._parts[place][worker]  # nothing was done
            mate.params = mate.own.copy()
            return None
        self._parts[place][worker] = found[worker] = _Part(done, done)
        total = _whole(asked.total)
        least = np.sum([one.least for one in found.values()], axis=0)
        most = np.sum([one.most for one in found.values()], axis=0)
        room = _NEAR * (1 + np.abs(least) + np.abs(most))
        if not np.all((least - room <= total) & (total <= most + room)):
            return f"worker {worker} finds what nobody has added to round {asked.round}"
        mate.params = np.float32(1.0 / many) * total + np.float32(1.0) * mate.agreed
        return None


def _whole(flats: Sequence[Array]) -> Array:
    """Of buckets that each hold an array, the last one first."""
    return np.concatenate([np.asarray(flat) for flat in flats[::-1]])
