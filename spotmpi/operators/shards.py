"""Operators of a parameter server that workers hold between them.

In the equations a is the model after the last round, y_i what a worker has made of a by its own
steps since then, and u_i = y_i - a what it pushes: all of it, again and again, so whoever takes the
latest has taken them all, and one that was not taken costs nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from spotmpi.arrays.backend import HOST, Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope, State
from spotmpi.errors import UsageError
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators.averages import OuterUpdate
from spotmpi.operators.stages import Operator
from spotmpi.operators.step import Contribute, Run, Step
from spotmpi.optimizers.numbers import whole
from spotmpi.protocol.tables import MOST, check_room

__all__ = ["PushPull", "PushedSum"]

_ANCHOR, _OWN = "anchor", "own"
_PUSHED, _BEFORE, _HELD, _OTHERS, _TAKEN = "pushed", "pushed before", "held", "others", "taken"
_NUMBERS, _SIGHT = "numbers", "sight"
_ROUND, _AMONG, _PUSH, _COUNTS = 0, 1, 2, 3
"""In the numbers that are shown: of the round, one more; what stands for its members; how often was
pushed in it; and from there on, of each worker by its place, the last push that was taken."""
_SERVERS = 2
"""Of a shard: who holds it, and who mirrors it."""


@dataclass(frozen=True)
class PushPull(Operator):
    """In each step a worker moves its own y_i with the optimizer, pushes, and pulls; there are p
    workers::

        y_i <- y_i - rate / p * g_i(w_i)
        v_s <- sum of the latest u_j that have come, of all workers j      where shard s is held
        w_i <- y_i + (v_s less what is in it of u_i)                       for each shard s

    The model is cut into ``shards`` (of whole buckets). Of members in the order of their numbers,
    the one in place s (or s modulo their number) holds shard s, and the next one mirrors it: both
    do the same, each for itself. A worker goes on with the one that has more in it, so when
    one of them is lost, slow or stopped, nobody has to notice.

    Nobody waits. What a worker has pushed stays shown until one of the two of each shard says
    that it has taken it; then its next push takes its place. So of its own part in what it pulls,
    it knows what that is.
    """

    shards: int = 1

    def __post_init__(self) -> None:
        whole("shards", self.shards, 1)

    @property
    def moves(self) -> bool:
        """It does."""
        return True

    @property
    def paced(self) -> bool:
        """Workers need not keep step."""
        return True

    @property
    def needs_behind(self) -> Sequence[type[Operator]]:
        """What keeps a."""
        return PushedSum, OuterUpdate

    def init(self, layout: Layout) -> Mapping[str, State]:
        """All of it is of this worker and of the round to come."""
        found = {
            name: State(layout.allocate(), Scope.LOCAL)
            for name in (_OWN, _PUSHED, _BEFORE, _HELD, _OTHERS)
        }
        found[_TAKEN] = State([], Scope.LOCAL)
        found[_NUMBERS] = State([HOST.zeros("float64", _COUNTS + MOST)], Scope.LOCAL)
        shards = min(self.shards, len(layout.buckets))
        found[_SIGHT] = State([HOST.zeros("float64", shards) for _ in range(2)], Scope.LOCAL)
        return found

    def run(self, step: Step) -> Run:
        """In the order: move, take and pull, push."""
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


class PushedSum(Operator):
    """All workers go on with all that they have done: behind `PushPull`::

        a   <- a + sum(u_i)
        w_i <- a

    Each brings its own, so it does not matter who has taken what; what a lost worker had
    pushed is in nobody's model any more, and its samples are dealt again.
    """

    @property
    def collective(self) -> bool:
        """It has a round."""
        return True

    @property
    def carries(self) -> Literal["models"]:
        """What was done to them."""
        return "models"

    @property
    def needs_before(self) -> Sequence[type[Operator]]:
        """What keeps y_i."""
        return (PushPull,)

    @property
    def centre(self) -> str:
        """It is a that all agree on."""
        return _ANCHOR

    def init(self, layout: Layout) -> Mapping[str, State]:
        """a."""
        return {_ANCHOR: State(layout.allocate())}

    def run(self, step: Step) -> Run:
        """What was done on the way is of no more use: `PushPull` begins anew."""

        def bring(flats: Sequence[Buffer]) -> None:
            if not step.now.share:
                fill(flats, 0)
                return
            _difference(flats, step.state[_OWN], step.state[_ANCHOR])

        sums = yield Contribute(bring)
        for w, a, total in zip(step.params, step.state[_ANCHOR], sums, strict=True):
            kernels_for(a).accumulate(a, total)
            kernels_for(w).pack(w, [a], 1.0)


class _Round:
    """What one worker knows on the way to a round, in the state of its step."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._members = sorted((step.now.me, *step.now.others))
        self._place = self._members.index(step.now.me)
        self.numbers: Any = step.state[_NUMBERS][0]
        self._arrived, self._most = (cast(Any, one) for one in step.state[_SIGHT])
        """Of each shard: whether the last push is known to have come there, and how much was in
        what was pulled last."""
        self._shards = len(self._arrived)
        self._buckets = len(step.params)

    def begin(self) -> None:
        """Nothing was done yet since the round. Raises UsageError if there are more workers than
        numbers to show."""
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
        # What was taken is only remembered where it is of use: by who holds or mirrors it.
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
        """Whose pushes are to be taken here, or who holds or mirrors something."""
        places = range(len(self._members))
        serving = [any(self._serves(one, shard) for shard in range(self._shards)) for one in places]
        return [
            self._members[one]
            for one in places
            if one != self._place and (serving[self._place] or serving[one])
        ]

    def take(self, found: Fetched) -> None:
        """Another worker's: what it pushes, and what it holds."""
        if len(found.model) != 1 + 2 * self._buckets:
            return  # of the strategy before
        numbers: Any = found.model[0]
        if any(numbers[:_PUSH] != self.numbers[:_PUSH]):
            return  # of another round, or of one that it began among others
        pushed, held = found.model[1 : 1 + self._buckets], found.model[1 + self._buckets :]
        place = self._members.index(found.worker)
        self._take(place, numbers[_PUSH], pushed)
        self._pull(place, numbers, held)

    def push(self) -> None:
        """Show all that was done since the round, if what is shown has come where it should."""
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
        """Whether who is in this place holds the shard, or mirrors it."""
        return (place - shard) % len(self._members) < _SERVERS

    def _take(self, place: int, push: float, pushed: Sequence[Buffer]) -> None:
        """Have in what is held what this worker has pushed, in place of what it had before."""
        if not push > self.numbers[_COUNTS + place]:
            return
        self.numbers[_COUNTS + place] = push
        state, first = self._step.state, place * self._buckets
        for number, new in enumerate(pushed):
            if self._serves(self._place, number % self._shards):
                taken, held = state[_TAKEN][first + number], state[_HELD][number]
                kernels_for(held).exchange(held, taken, new)

    def _pull(self, place: int, numbers: Any, held: Sequence[Buffer]) -> None:
        """Go on with what this worker holds, where that is more than what was pulled before."""
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
    """flats = one - less"""
    for flat, a, b in zip(flats, one, less, strict=True):
        kernels_for(flat).scaled_sum(flat, [a, b], [1.0, -1.0])
