"""What workers come to that hold a parameter server between them, worked out from what each of them
was given.

What a worker says that it holds must be the sum of just the pushes that it says are in it: of each
worker one, the latest that came. And what a worker trains must be what it has done itself and what
others have, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spotmpi.fabric import Fetched
from spotmpi.optimizers import Momentum
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices
from spotmpi.simulation.model import RATE, Array, gradient
from spotmpi.simulation.pairs import Pairs, Shown
from spotmpi.simulation.pushes import Ring
from spotmpi.simulation.truths import options_of

__all__ = ["Exchanges"]

_NEAR = 1e-4
"""By which a sum may differ that was made in another order."""
_HEAD = 3
"""Numbers before the counts: of the round and its members, and of the push."""


_NOTHING = Shown(b"", [], -1, False)
"""In the place of what was shown with another strategy."""


@dataclass(frozen=True)
class _Shown:
    """What a worker has shown once."""

    first: int
    members: tuple[WorkerId, ...]
    push: int
    held: Array
    counts: dict[WorkerId, int]
    bits: bytes


@dataclass
class _Side:
    """One worker, on its way to a round."""

    model: Array
    velocity: Array
    first: int = -1
    members: tuple[WorkerId, ...] = ()
    agreed: Array = field(default_factory=lambda: np.empty(0, np.float32))
    others: Array = field(default_factory=lambda: np.empty(0, np.float32))
    push: int = 0
    counts: dict[WorkerId, int] = field(default_factory=dict)
    """Of each worker, the last push that came."""
    arrived: list[bool] = field(default_factory=list)
    """Of each shard, whether the last push is known to have."""
    much: list[int] = field(default_factory=list)
    """Of each shard, the pushes that were in what was pulled last."""
    shards: int = 1
    shown: dict[int, _Shown] = field(default_factory=dict)
    known: dict[WorkerId, int] = field(default_factory=dict)


class Exchanges(Pairs):
    """The models of all workers, with which of these strategies they go at the time."""

    def __init__(self, arrays: int) -> None:
        """Of models of so many arrays, each in a bucket of its own."""
        super().__init__()
        self._rule = Momentum(lr=RATE)
        self._sides: dict[WorkerId, _Side] = {}
        self._among: dict[WorkerId, tuple[WorkerId, ...]] = {}
        self._cut: dict[WorkerId, int] = {}
        """Into how many shards a worker's server is cut; 0: it has none."""
        self._count: dict[WorkerId, int] = {}
        """What each has shown."""
        self._pushes: dict[tuple[WorkerId, int, tuple[WorkerId, ...], int], Array] = {}
        """All that there were: whose, on the way from which step, among whom, and which."""
        self._arrays = arrays

    def among(self, worker: WorkerId, members: Sequence[WorkerId], strategy: str) -> None:
        """Its next step is with these, and with this strategy."""
        self._among[worker] = tuple(sorted(members))
        self._cut[worker] = min(int(options_of(strategy).get("shards", 0)), self._arrays)

    def gradient(
        self, worker: WorkerId, first: int, agreed: Array, batch: Indices, grads: Array
    ) -> str | None:
        """As `Pairs.gradient`."""
        if not self._cut[worker]:
            return super().gradient(worker, first, agreed, batch, grads)
        zeros = np.zeros_like(agreed)
        side = self._sides.setdefault(worker, _Side(agreed, zeros.copy()))
        if first != side.first:
            side.velocity = self.velocity(worker, first - 1, agreed).copy()
            side.shards = self._cut[worker]
            side.first, side.members = first, self._among[worker]
            side.agreed, side.model, side.others = agreed.copy(), agreed.copy(), zeros.copy()
            side.push, side.counts = 0, {}
            side.arrived, side.much = [True] * side.shards, [0] * side.shards
            self._pushes[worker, first, side.members, 0] = zeros
        if grads.tobytes() != gradient(side.model + side.others, batch).tobytes():
            return f"worker {worker} trains what does not follow from all that came to it"
        self.batches.setdefault((first, worker), []).extend(batch.tolist())
        slots = {"velocity": [side.velocity]}
        rate = RATE / len(side.members)
        self._rule.update([side.model], [grads], slots, rate, 1.0)
        self._velocities.setdefault(worker, {})[first] = side.velocity.copy()
        self.ends[first, worker] = side.model.copy()
        return None

    def asks(self, worker: WorkerId, source: WorkerId, ring: Ring | None) -> str | None:
        """As `Pairs.asks`."""
        return None if self._cut[worker] else super().asks(worker, source, ring)

    def fetched(self, worker: WorkerId, found: Fetched) -> str | None:
        """As `Pairs.fetched`."""
        served = len(found.model) == 1 + 2 * self._arrays
        if served != bool(self._cut[worker]):
            return None  # of the strategy before
        if not self._cut[worker]:
            return super().fetched(worker, found)
        side, whose = self._sides[worker], self._sides.get(found.worker)
        if whose is None or found.number not in whose.shown:
            return f"worker {worker} was given what {found.worker} has not shown"
        shown = whose.shown[found.number]
        if _bits(found.model) != shown.bits:
            return f"worker {worker} was given what worker {found.worker} never had"
        if found.number < side.known.get(found.worker, 0):
            return f"worker {worker} was given something older of {found.worker} than before"
        side.known[found.worker] = found.number
        if (shown.first, shown.members) == (side.first, side.members):
            side.counts[found.worker] = max(side.counts.get(found.worker, 0), shown.push)
            self._pull(worker, found.worker, shown)
        return None

    def shown(self, worker: WorkerId, model: Sequence[Any]) -> str | None:
        """As `Pairs.shown`."""
        number = self._count.get(worker, 0)
        self._count[worker] = number + 1
        if not self._cut[worker]:
            own = self._workers[worker]
            own.shown += [_NOTHING] * (number - len(own.shown))
            return super().shown(worker, model)
        side = self._sides[worker]
        if all(side.arrived):
            side.push += 1
            pushed = side.model - side.agreed
            self._pushes[worker, side.first, side.members, side.push] = pushed
            side.arrived = [self._serves(side.members, worker, one) for one in range(side.shards)]
        side.counts[worker] = side.push
        numbers, many = model[0], self._arrays
        pushed = np.concatenate(model[many:0:-1])
        held = np.concatenate(model[:many:-1])
        counts = [side.counts.get(one, 0) for one in side.members]
        if [numbers[_HEAD - 1], *numbers[_HEAD : _HEAD + len(counts)]] != [side.push, *counts]:
            return f"worker {worker} says that it holds other pushes than came to it"
        if pushed.tobytes() != self._push(worker, side, side.push).tobytes():
            return f"worker {worker} pushes what it has not done"
        right = np.zeros(len(held))
        for one, count in side.counts.items():
            right += self._push(one, side, count)
        for shard in range(side.shards):
            here = self._part(shard, side.shards, len(held))
            if not self._serves(side.members, worker, shard):
                right[here] = 0
        if not np.allclose(held, right, rtol=_NEAR, atol=_NEAR):
            return f"worker {worker} holds what is not the sum of the pushes that came to it"
        found = _Shown(side.first, side.members, side.push, held, dict(side.counts), _bits(model))
        side.shown[number] = found
        self._pull(worker, worker, found)
        return None

    def _pull(self, worker: WorkerId, source: WorkerId, shown: _Shown) -> None:
        """It goes on with what that one holds, where it has more in it than what it had before."""
        side, much = self._sides[worker], sum(shown.counts.values())
        count = shown.counts.get(worker, 0)
        for shard in range(side.shards):
            if side.push - count > 1 or not self._serves(side.members, source, shard):
                continue
            side.arrived[shard] |= count == side.push
            if much >= side.much[shard]:
                side.much[shard] = much
                here = self._part(shard, side.shards, len(shown.held))
                side.others[here] = (shown.held - self._push(worker, side, count))[here]

    def _push(self, worker: WorkerId, side: _Side, push: int) -> Array:
        return self._pushes[worker, side.first, side.members, push]

    def _part(self, shard: int, shards: int, size: int) -> Any:
        """Elements of a shard; buckets hold an array each, the last one first."""
        here = np.zeros(size, np.bool_)
        for number, piece in enumerate(np.array_split(here, self._arrays)[::-1]):
            piece[:] = number % shards == shard
        return here

    def _serves(self, members: tuple[WorkerId, ...], worker: WorkerId, shard: int) -> bool:
        """It holds the shard, or mirrors it."""
        place = members.index(worker)
        return place == shard % len(members) or place == (shard + 1) % len(members)


def _bits(model: Sequence[Any]) -> bytes:
    return b"".join(np.asarray(flat).tobytes() for flat in model)
