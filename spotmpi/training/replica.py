"""One worker's replica: what it holds, what it brings to rounds, what their results do to it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import BUCKET_MB, Key, Layout
from spotmpi.arrays.narrowing import NARROWED, Narrowing
from spotmpi.arrays.registry import Registry, Scope, State
from spotmpi.arrays.words import Tape
from spotmpi.errors import UsageError
from spotmpi.fabric import Arena, Buffer, Move, Shape, Twins
from spotmpi.fabric import Steps as Asks
from spotmpi.operators import RESTS, Contribute, Moment, Run, Step, Weighted, fragment
from spotmpi.optimizers import Optimizer
from spotmpi.protocol.paces import Pace, all_of
from spotmpi.strategies import Strategy, complete
from spotmpi.training.pieces import Pieces

P = TypeVar("P")


class Result(NamedTuple):
    """What all know of a round whose sums count."""

    rate: float
    """The learning rate that holds ..."""
    weight: int
    """... the samples that contributions stand for ..."""
    active: int
    """... of so many workers ..."""
    many: int
    """... in so many steps, ..."""
    after: int
    """... and the steps of the training that are taken with them."""
    round: int
    """Rounds of steps before this one."""

    def told(self, known: Sequence[Pace]) -> Result:
        """As it is where workers have told what they did."""
        many = all_of(self.many, known)
        return self._replace(
            weight=sum(one.samples for one in known),
            active=sum(one.samples > 0 for one in known),
            many=many,
            after=self.after - self.many + many,
        )


class Rounds(Protocol):
    """Who counts them."""

    rounds: int
    """Those of steps that are done."""


class Replica(Generic[P]):
    """Arrays that all workers hold, and what happens to them in a step. Local, all of it.

    ``optimizer``: moves them with each round's average; without one they are the caller's to move,
    and ``arrays`` say what is averaged. What is kept for a retry, if the data plane works in place,
    are the arrays that a contribution was packed from: they are the script's, and the script waits
    (docs/adr/0005).
    """

    def __init__(
        self,
        params: P,
        optimizer: Optimizer | None,
        strategy: Strategy,
        arrays: Any = None,
        bucket_mb: float = BUCKET_MB,
    ) -> None:
        self.optimizer = optimizer
        self.strategy = strategy
        self.bucket_mb = bucket_mb
        layout = Layout.of(cast(Any, params), bucket_mb)
        self._whole = layout
        self._layout = layout if arrays is None else Layout.of(arrays, bucket_mb)
        slots = () if optimizer is None else optimizer.slots
        self._twins = self._made_to_move(layout, 1 + len(slots))
        own = layout.allocate if self._twins is None else self._taken(layout, self._twins.live)
        self._params = own()
        layout.pack(cast(Any, params), self._params, 1.0, what="params")
        self.params = cast(P, layout.views(self._params, read_only=optimizer is not None))
        states = dict(strategy.init(self._layout))
        self._state = {name: state.flats for name, state in states.items()}
        self._model: Sequence[Buffer] = self._params
        """What all agree on after a round."""
        if strategy.centre is not None:
            self._model = states.pop(strategy.centre).flats
            layout.pack(cast(Any, params), self._model, 1.0, what="params")
        self.model = cast(P, layout.views(self._model, read_only=optimizer is not None))
        self.registry = Registry()
        self.registry.add("params", layout, State(self._model))
        self._memory = {name: own() for name in slots}
        scope = Scope.LOCAL if strategy.apart else Scope.REPLICATED
        for name, flats in self._memory.items():
            self.registry.add(f"optimizer/{name}", layout, State(flats, scope))
        for name in () if optimizer is None else optimizer.counts:
            self._memory[name] = [HOST.zeros("float64", 1)]
            state = State(self._memory[name], scope, paged=False)
            self.registry.add(f"optimizer/{name}", Layout.of(self._memory[name]), state)
        for name, state in states.items():
            self.registry.add(f"strategy/{name}", self._layout, state)
        self._narrowings = self._narrowed()
        """Of each bucket; None of what travels as it is."""
        self.size = layout.size
        """Parameters, counted as numbers."""
        self._signature = layout.signature, self._layout.signature
        self._run: Run
        self._contribute: Contribute | None = None
        self._open: Step
        self._weight = 0.0
        """Of the step that was begun before all of its gradient was there."""
        self.moved = False
        """Whether the last round of steps had a result: not if all who brought to it are lost."""
        self._arenas: list[Arena]
        """Of the rounds that carry contributions, one for each fragment; `furnish` makes them."""
        self._progress: Rounds
        self._own: Sequence[Buffer] | None = None
        self._gradients: P | None = None
        self.pieces = Pieces(self._layout)
        """Of the gradient of the step to come, if the script gives it array by array."""

    def furnish(self, arena: Callable[..., Arena]) -> None:
        """Get memory for rounds, from the data plane: ``arena`` is its `Fabric.arena`."""
        layout = self._layout
        shapes = [
            Shape(bucket.dtype, bucket.size, layout.backend, narrowing)
            for bucket, narrowing in zip(layout.buckets, self._narrowings, strict=True)
        ]
        if (fragments := min(self.strategy.fragments, len(shapes))) == 1:
            self._arenas = [arena(shapes, "data", self._twins)]
            return
        self._arenas = [
            arena([shapes[number] for number in self.buckets_of(part)], f"data/{part}")
            for part in range(fragments)
        ]

    def follow_rounds(self, progress: Rounds) -> None:
        """It counts them."""
        self._progress = progress

    @property
    def arena(self) -> Arena:
        """Of the open round of steps, or the next one."""
        return self._arenas[self._progress.rounds % len(self._arenas)]

    def buckets_of(self, number: int) -> range:
        """Those that the round of steps of this number carries."""
        return fragment(len(self._layout.buckets), self.strategy.fragments, number)

    @property
    def _buckets(self) -> range:
        return self.buckets_of(self._progress.rounds)

    def _made_to_move(self, layout: Layout, sets: int) -> Twins | None:
        """Room for parameters and slots in two copies, if a data plane can do all of a step."""
        optimizer = self.optimizer
        if optimizer is None or layout.backend is not HOST:
            return None
        if not (optimizer.at_once and self.strategy.at_once):
            return None
        return Twins([(bucket.dtype, bucket.size) for bucket in layout.buckets] * sets)

    @staticmethod
    def _taken(layout: Layout, flats: Sequence[Buffer]) -> Callable[[], list[Buffer]]:
        """Buckets of one set after the other, of those that lie there."""
        left, many = iter(flats), len(layout.buckets)
        return lambda: list(itertools.islice(left, many))

    def _narrowed(self) -> list[Narrowing | None]:
        form, layout = self.strategy.narrow, self._layout
        if form is None:
            return [None for _ in layout.buckets]
        rests = zip(*(self._state[name] for name in RESTS), strict=True)
        return [
            Narrowing(form, *both) if bucket.dtype == NARROWED else None
            for bucket, both in zip(layout.buckets, rests, strict=True)
        ]

    @property
    def library(self) -> str:
        """Whose its arrays are."""
        return self._layout.backend.name

    @property
    def signature(self) -> str:
        """Equal on two workers if their arrays have the same structure."""
        return str(self._signature)

    @property
    def moves_itself(self) -> bool:
        """What follows from a round's result is done here, and not by the script."""
        return self.optimizer is not None

    @property
    def ends(self) -> Sequence[int] | None:
        """Where a page of its state may end, in words of one set; None: anywhere.

        What becomes of the elements of a page must follow from what there is of them alone: each
        by itself, or with all others of its array, or with all there are.
        """
        if self.optimizer is None:
            return self._whole.ends[-1:]
        return None if self.optimizer.elementwise else self._whole.ends

    def first(self) -> Tape:
        """What the first worker gives to all at the beginning."""
        return Tape(self._model)

    def settle(self) -> None:
        """The model of all has come to this worker: train from there."""
        if self._model is not self._params:
            for flat, agreed in zip(self._params, self._model, strict=True):
                kernels_for(flat).pack(flat, [agreed], 1.0)

    def start(self) -> None:
        """All begin to train, with that."""
        self.strategy.start(self._step())

    def state(self, name: str) -> Any:
        """What an operator remembers under this name, in the user's structure."""
        return self._layout.views(self._state[name])

    def clear(self, name: str) -> None:
        """Make that zero."""
        fill(self._state[name], 0)

    @property
    def gradients(self) -> P:
        """Arrays to compute gradients into, in the user's structure, always the same ones.

        Those that others read, if the data plane weighs: then `begin` with them copies nothing.
        """
        if self._gradients is None:
            there = self.arena.weighs and self._alone
            flats = self.arena.contributions if there else self._layout.allocate()
            self._gradients = cast(P, self._layout.views(flats))
        return self._gradients

    @property
    def _alone(self) -> bool:
        """Contributions have room for all of the model, and none is made ahead of its round."""
        return len(self._arenas) == 1 and not self.strategy.ahead

    # A step.

    def begin(self, grads: Any, now: Moment) -> Asks[bool]:
        """A step, up to its round; whether it has one, as the last steps of rounds do. UsageError
        if the gradient does not fit."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            in_place = grads is self._gradients and flats is self.arena.contributions
            if not (in_place and times == 1.0 and self.arena.weighs):
                self._layout.pack(grads, flats, times, what)

        what = "arrays" if self.optimizer is None else "grads"
        return (yield from self._begin(Weighted(pack, now.samples), now))

    def _begin(self, bring: Weighted, now: Moment) -> Asks[bool]:
        self.moved = False
        self._open = self._step(now=now, bring=bring, rate=now.rate, many=now.many)
        self._contribute, self._run = yield from self.strategy.begin(self._open)
        if now.last and self._contribute is None:
            raise UsageError(f"{self.strategy} takes no part in the last step of a round")
        return self._contribute is not None

    def bring(self) -> None:
        """Make the contribution of the step that was begun."""
        assert self._contribute is not None
        bring, self.arena.weight = self._contribute.bring, 1.0
        if self.arena.weighs and isinstance(bring, Weighted):
            self.arena.weight = bring.weight
            if bring.weight:
                bring.pack(self.arena.contributions, 1.0)
        else:
            bring(self.arena.contributions)

    def first_not_finite(self, first: int = 0, last: int | None = None) -> str | None:
        """The name of an array of the contribution that holds a NaN or an infinity; of all its
        buckets, or some."""
        if not self.arena.weight:
            return None
        numbers = self._buckets[first:last]
        return self._layout.check_finite(self.arena.contributions[first:last], numbers)

    def send(self, now: Moment) -> None:
        """Make the contribution of a round whose last step is still to come."""
        self._contribute = self.strategy.early(self._step(now=now))
        self.bring()

    # A step whose gradient comes array by array.

    def begin_piecewise(self, now: Moment) -> Asks[None]:
        """Begin it before all is there, of a strategy that is piecewise; the rest is as `begin`."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            for key, array in self.pieces.items():
                self._lay(key, array, flats, times)

        weight = now.samples
        yield from self._begin(Weighted(pack, weight), now)
        self._weight = weight
        self.arena.weight = weight if self.arena.weighs else 1.0
        if not weight and not self.arena.weighs:
            fill(self.arena.contributions, 0)

    def give(self, key: Key, array: Any) -> None:
        """One array of the gradient, which was checked. It goes to where it is summed from, if the
        step was begun."""
        self.pieces.take(key, array)
        if self._contribute is not None and self._weight:
            times = 1.0 if self.arena.weighs else self._weight
            self._lay(key, array, self.arena.contributions, times)

    def gathered(self, grads: Any) -> Any:
        """The whole gradient: what was given array by array, if anything was, and ``grads``."""
        if not self.pieces:
            if grads is None:
                raise UsageError(
                    "step() was called without gradients, and ready() was given none: give each "
                    "one to ready() or to step()"
                )
            return grads
        for key, array in list(self.pieces.rest(grads)):
            self.give(key, array)
        return self.pieces.tree

    def _lay(self, key: Key, array: Any, flats: Sequence[Buffer], times: float) -> None:
        own: Any = self._gradients
        there = own is not None and array is own[key] and flats is self.arena.contributions
        if not (there and times == 1.0 and self.arena.weighs):
            self._layout.pack_one(key, array, flats, times)

    # Its end.

    def aim(self, rate: float, weight: float) -> None:
        """Have the sums of the open round go right into the next state, where the data plane can:
        `complete` will be given the same. Called again for a retry."""
        if self._twins is None:
            return
        optimizer, scale = self.optimizer, 1.0 / weight
        assert optimizer is not None

        def into(after: Sequence[Buffer], before: Sequence[Buffer]) -> Move:
            def move(part: slice, inputs: Sequence[Buffer], weights: Sequence[float]) -> None:
                new, old = ([flat[part] for flat in flats] for flats in (after, before))
                optimizer.move(new, old, inputs, weights, self._memory, rate, scale)

            return move

        many = len(self._layout.buckets)
        moves = [
            into(self._twins.next[number::many], self._twins.live[number::many])
            for number in range(many)
        ]
        if not self.arena.aim(moves, _mark(optimizer, self.registry.numbers(), rate, weight)):
            self.arena.leave()

    def leave(self) -> None:
        """Others are about to go on without this worker: what it has is its own from now on."""
        self.arena.leave()

    def complete(self, result: Result) -> None:
        """The round of the step that was begun is the record: do the rest of the step, at once."""
        self.moved = True
        self._know(self._open, result)
        self._turn()
        if self.arena.aimed:
            self.arena.advance()
            assert self.optimizer is not None
            self.optimizer.moved(self._memory)
        else:
            complete(self._run, self._record())
        self.close()

    def close(self) -> None:
        """The step is over, also if nothing came of it: let go of the script's arrays."""
        if self._contribute is not None:
            self._run.close()
            self._contribute = None
        self.pieces.clear()

    def follow(self, result: Result) -> None:
        """Do with the record what all do, without having brought anything to it."""
        self.moved = True
        now = Moment(samples=0.0, share=0.0, after=result.after, round=result.round)
        step = self._step(now=now)
        self._know(step, result)
        self._turn()
        complete(self.strategy.follow(step), self._record())

    def rehearse(self, grads: Any) -> None:
        """All that a step does here, of a replica whose state counts for nothing yet: so that
        nobody waits for kernels to load and for memory to come when it does."""
        for arena in self._arenas:
            for _ in range(2):
                if self._alone:
                    self._layout.pack(grads, arena.contributions, 1.0)
                arena.turn()
        self.pieces.clear()
        self.follow(Result(0.0, 1, 1, 1, 1, self._progress.rounds))
        self.registry.digest()

    def _turn(self) -> None:
        """The last sums count: what they were narrowed by belongs to the next ones."""
        for number in self._buckets:
            if (narrowing := self._narrowings[number]) is not None:
                narrowing.turn()

    def _record(self) -> list[Buffer]:
        """The last sums, for reading: neighbours may have them in the same memory."""
        backend = self._layout.backend
        return [
            backend.view(flat, 0, (self._layout.buckets[number].size,), read_only=True)
            for number, flat in zip(self._buckets, self.arena.record, strict=True)
        ]

    def _step(self, **known: Any) -> Step:
        mine = self._params, self._memory, self._state
        return Step(self._layout, self.optimizer, *mine, self._room, **known)

    def _room(self) -> Sequence[Buffer]:
        # Nobody reads it before the round begins, which makes its contribution in here anew ...
        if self._alone:
            return self.arena.contributions
        if self._own is None:  # ... unless that was made ahead, or is of a part of the model.
            self._own = self._layout.allocate()
        return self._own

    @staticmethod
    def _know(step: Step, result: Result) -> None:
        step.rate, step.weight = result.rate, result.weight
        step.active, step.many = result.active, result.many


def _mark(*how: Any) -> int:
    """Equal on workers that do the same with a round's sums, and not 0."""
    return 1 + zlib.crc32(repr(how).encode())
