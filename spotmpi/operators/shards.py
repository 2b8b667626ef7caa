"""Operators of a parameter server that the workers hold together.

In the equations a is the model after the last round, y_i is what worker i's own steps since then
have made of a, and u_i = y_i - a is what worker i pushes. Each push holds all of u_i, so the latest
push contains all earlier ones, and a push that nobody took costs nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from spotmpi.arrays.backend import HOST, Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators.models import OuterUpdate
from spotmpi.operators.operator import Asking, Kind, Meeting, Operator, Stage
from spotmpi.operators.step import Bring, Step
from spotmpi.optimizers.numbers import whole
from spotmpi.protocol.tables import MOST, check_room

__all__ = ["PushPull", "PushedSum"]

_ANCHOR, _OWN = "anchor", "own"
_PUSHED, _BEFORE, _HELD, _OTHERS, _TAKEN = "pushed", "pushed before", "held", "others", "taken"
_NUMBERS, _SIGHT = "numbers", "sight"
_ROUND, _AMONG, _PUSH, _COUNTS = 0, 1, 2, 3
"""Places in the numbers that a worker shows: the round plus one; a checksum of the members;
its pushes in the round; and from there on, for each worker by its place, the last push that was
taken."""
_SERVERS = 2
"""Servers of a shard: the worker that holds it, and the one that mirrors it."""


@dataclass(frozen=True)
class PushPull(Stage):
    """In each step a worker moves its own y_i with the optimizer, pushes, and pulls. There are p
    workers::

        y_i <- y_i - rate / p * g_i(w_i)
        v_s <- sum of the latest u_j that have come, of all workers j      where shard s is held
        w_i <- y_i + (v_s less the part of u_i that is in it)              for each shard s

    The model is cut into ``shards``, each of whole buckets. Members are ordered by their numbers:
    the one in place s (or s modulo their number) holds shard s, and the next one mirrors it. Both
    do the same work, each for itself. A worker pulls from the one of them that has more in its sum.
    So when one of them is lost, slow or stopped, nobody has to notice.

    No worker waits. A worker keeps showing a push until, for each shard, one of the two servers
    says that it has taken it. Only then does its next push replace it. So the worker always knows
    its own part in what it pulls.
    """

    moves: ClassVar[bool] = True
    works_on: ClassVar[Kind] = "gradients"
    asynchronous: ClassVar[bool] = True
    shards: int = 1

    def __post_init__(self) -> None:
        whole("shards", self.shards, 1)

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return this worker's state on the way to the next round. All of it is local."""
        found = {
            name: State(layout.allocate(), Scope.LOCAL)
            for name in (_OWN, _PUSHED, _BEFORE, _HELD, _OTHERS)
        }
        found[_TAKEN] = State([], Scope.LOCAL)
        found[_NUMBERS] = State([HOST.zeros("float64", _COUNTS + MOST)], Scope.LOCAL)
        shards = min(self.shards, len(layout.buckets))
        found[_SIGHT] = State([HOST.zeros("float64", shards) for _ in range(2)], Scope.LOCAL)
        return found

    def run(self, step: Step) -> Asking:
        """Move y_i, take and pull, and push, in this order."""
        if not step.now.samples:
            return
        if step.optimizer is None:
            raise UsageError(f"{self} needs an optimizer, and a group has none: use a Trainer")
        one = _Round(step)
        if one.numbers[_ROUND] != step.now.round + 1:
            one.begin()
        step.own()
        assert step.update is not None
        rate = step.rate / (1 + len(step.now.others))
        known = step.update, step.memory, rate, step.scale
        step.optimizer.apply(step.layout, step.state[_OWN], *known)
        for worker in one.useful:
            found = yield Fetch(worker)
            if found is not None:
                one.take(found)
        if one.useful:
            one.push()
            yield Publish([*step.state[_NUMBERS], *step.state[_PUSHED], *step.state[_HELD]])
        for w, own, others in zip(step.params, step.state[_OWN], step.state[_OTHERS], strict=True):
            kernels_for(w).scaled_sum(w, [own, others], [1.0, 1.0])


class PushedSum(Meeting):
    """All workers go on with the sum of all their changes. It stands behind `PushPull`::

        a   <- a + sum(u_i)
        w_i <- a

    Each worker brings its own u_i, so it does not matter who has taken which push. The pushes of a
    lost worker are in no model any more, and its samples are dealt again.
    """

    carries: ClassVar[Kind] = "models"
    needs: ClassVar[Sequence[type[Operator]]] = (PushPull,)
    centre: ClassVar[str] = _ANCHOR
    """a: all workers agree on it."""

    def init(self, layout: Layout) -> Mapping[str, State]:
        """Return a."""
        return {_ANCHOR: State(layout.allocate())}

    def contribute(self, step: Step) -> Bring:
        """Bring u_i."""

        def bring(flats: Sequence[Buffer]) -> None:
            if not step.now.share:
                fill(flats, 0)
                return
            _difference(flats, step.state[_OWN], step.state[_ANCHOR])

        return bring

    def apply(self, step: Step, sums: Sequence[Buffer]) -> None:
        """Go on with a. `PushPull` begins again after it."""
        for w, a, total in zip(step.params, step.state[_ANCHOR], sums, strict=True):
            kernels_for(a).accumulate(a, total)
            kernels_for(w).pack(w, [a], 1.0)


PushPull.needs = PushedSum, OuterUpdate  # both keep a


class _Round:
    """What one worker knows on the way to a round, in the state of its step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._members = sorted((step.now.me, *step.now.others))
        self._place = self._members.index(step.now.me)
        self.numbers: Any = step.state[_NUMBERS][0]
        self._arrived, self._most = (cast(Any, one) for one in step.state[_SIGHT])
        """Two numbers for each shard: 1 if this worker's last push is known to have arrived there;
        and how much was in the sum that was pulled last."""
        self._shards = len(self._arrived)
        self._buckets = len(step.params)

    def begin(self) -> None:
        """Reset all: this worker has done nothing since the round. Raises UsageError if there are
        more workers than there are numbers to show."""
        check_room(len(self._members))
        state, layout = self._step.state, self._step.layout
        for own, a in zip(state[_OWN], state[_ANCHOR], strict=True):
            kernels_for(own).pack(own, [a], 1.0)
        for name in (_PUSHED, _BEFORE, _HELD, _OTHERS):
            fill(state[name], 0)
        self.numbers[:] = 0
        self.numbers[_ROUND] = self._step.now.round + 1
        self.numbers[_AMONG] = zlib.crc32(repr(self._members).encode())
        self._arrived[:] = 1
        self._most[:] = 0
        # Only the workers that hold or mirror a shard have a use for what was taken.
        kept = [
            bucket.size if self._serves(self._place, number % self._shards) else 0
            for number, bucket in enumerate(layout.buckets)
        ] * len(self._members)
        taken = cast(list[Buffer], state[_TAKEN])
        if list(map(len, taken)) == kept:
            fill(taken, 0)
        else:
            dtypes = [bucket.dtype for bucket in layout.buckets] * len(self._members)
            taken[:] = map(layout.backend.zeros, dtypes, kept)

    @property
    def useful(self) -> list[int]:
        """The workers to fetch from: all if this worker is a server, otherwise the servers."""
        places = range(len(self._members))
        serving = [any(self._serves(one, shard) for shard in range(self._shards)) for one in places]
        return [
            self._members[one]
            for one in places
            if one != self._place and (serving[self._place] or serving[one])
        ]

    def take(self, found: Fetched) -> None:
        """Take another worker's push, and pull from what it holds."""
        if len(found.model) != 1 + 2 * self._buckets:
            return  # shown by an earlier strategy
        numbers: Any = found.model[0]
        if any(numbers[:_PUSH] != self.numbers[:_PUSH]):
            return  # of another round, or begun among other members
        pushed, held = found.model[1 : 1 + self._buckets], found.model[1 + self._buckets :]
        place = self._members.index(found.worker)
        self._take(place, numbers[_PUSH], pushed)
        self._pull(place, numbers, held)

    def push(self) -> None:
        """Push all changes since the round, if the last push has arrived for every shard. In any
        case take and pull from what this worker itself pushes and holds."""
        state = self._step.state
        if all(self._arrived):
            self.numbers[_PUSH] += 1
            for before, pushed in zip(state[_BEFORE], state[_PUSHED], strict=True):
                kernels_for(before).pack(before, [pushed], 1.0)
            _difference(state[_PUSHED], state[_OWN], state[_ANCHOR])
            self._arrived[:] = [self._serves(self._place, one) for one in range(self._shards)]
        self._take(self._place, self.numbers[_PUSH], state[_PUSHED])
        self._pull(self._place, self.numbers, state[_HELD])

    def _serves(self, place: int, shard: int) -> bool:
        """Return True if the worker in this place holds the shard or mirrors it."""
        return (place - shard) % len(self._members) < _SERVERS

    def _take(self, place: int, push: float, pushed: Sequence[Buffer]) -> None:
        """Put the new push of the worker in this place where its earlier one was, in the sums that
        are held here."""
        if not push > self.numbers[_COUNTS + place]:
            return
        self.numbers[_COUNTS + place] = push
        state, first = self._step.state, place * self._buckets
        for number, new in enumerate(pushed):
            if self._serves(self._place, number % self._shards):
                taken, held = state[_TAKEN][first + number], state[_HELD][number]
                kernels_for(held).exchange(held, taken, new)

    def _pull(self, place: int, numbers: Any, held: Sequence[Buffer]) -> None:
        """Go on with the sums of the worker in this place: those of its shards that have at least
        as much in them as the last ones. Not if it is unknown how much of them is this worker's
        own."""
        state, much = self._step.state, numbers[_COUNTS:].sum()
        missing = self.numbers[_PUSH] - numbers[_COUNTS + self._place]
        mine = {0: _PUSHED, 1: _BEFORE}.get(missing)
        for shard in range(self._shards):
            if mine is None or not self._serves(place, shard):
                continue
            self._arrived[shard] = self._arrived[shard] or not missing
            if much >= self._most[shard]:
                self._most[shard] = much
                which = slice(shard, None, self._shards)
                _difference(state[_OTHERS][which], held[which], state[mine][which])


def _difference(flats: Sequence[Buffer], one: Sequence[Buffer], less: Sequence[Buffer]) -> None:
    """Set flats = one - less."""
    for flat, a, b in zip(flats, one, less, strict=True):
        kernels_for(flat).scaled_sum(flat, [a, b], [1.0, -1.0])
