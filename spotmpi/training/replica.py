"""One worker's replica: its arrays, what it brings to rounds, and what their results do to it."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from spotmpi.arrays.backend import HOST, fill, kernels_for
from spotmpi.arrays.layout import BUCKET_MB, Key, Layout
from spotmpi.arrays.micro_batches import MicroBatches
from spotmpi.arrays.narrowing import NARROWED, Narrowing
from spotmpi.arrays.registry import Registry, Scope, State
from spotmpi.arrays.views import Views
from spotmpi.arrays.word_view import WordView
from spotmpi.errors import UsageError
from spotmpi.fabric import Arena, Buffer, DoubleBuffer, Move, Shape
from spotmpi.fabric import Steps as Asks
from spotmpi.operators import Bring, Step, StepPosition, Weighted, fragment
from spotmpi.optimizers import Optimizer
from spotmpi.protocol.paces import Pace, all_of, furthest
from spotmpi.strategies import RESTS, Strategy
from spotmpi.training.gradients.gradient_lengths import GradientLengths
from spotmpi.training.gradients.partial_gradient import PartialGradient

P = TypeVar("P")

_SURVEY = 16
"""Steps from one survey to the next, or the steps of a round if it has more."""


class Result(NamedTuple):
    """What all workers know of a round whose sums count."""

    rate: float
    """The learning rate in force."""
    weight: int
    """Samples that the contributions stand for."""
    active: int
    """Workers whose contributions stand for samples."""
    many: int
    """Steps of the training that are taken with the round."""
    after: int
    """Steps of the training that are taken, those of this round included."""
    round: int
    """Rounds of steps before this one."""

    def told(self, known: Sequence[Pace], strategy: Strategy) -> Result:
        """Return this result, corrected by what workers have told of their steps. A round with a
        quorum counts for as many steps as one without: a late worker must not be in another loop of
        its script afterwards."""
        many = (furthest if strategy.quorum else all_of)(self.many, known)
        return self._replace(
            weight=sum(one.samples for one in known),
            active=sum(one.samples > 0 for one in known),
            many=many,
            after=self.after - self.many + many,
        )


class Rounds(Protocol):
    """Counts the rounds of steps."""

    rounds: int
    """Rounds of steps committed so far."""


class Replica(Generic[P]):
    """Arrays that all workers hold, and what happens to them in a step. All of it is local.

    ``optimizer``: moves the parameters with each round's average. Without one the caller moves
    them, and ``arrays`` says what is averaged. ``others``: strategies to which it may `switch`. If
    the data plane works in place, a retry packs the contribution again from the script's arrays.
    They are unchanged, as the script waits (docs/adr/0005).
    """

    def __init__(
        self,
        params: P,
        optimizer: Optimizer | None,
        strategy: Strategy,
        arrays: Any = None,
        bucket_mb: float = BUCKET_MB,
        others: Sequence[Strategy] = (),
    ) -> None:
        self.optimizer = optimizer
        self.strategies = strategy, *others
        """The first strategy, and those to which the replica may switch."""
        self.bucket_mb = bucket_mb
        layout = Layout.of(params, bucket_mb, halves=optimizer is not None)
        self._whole = layout
        self._layout = layout if arrays is None else Layout.of(arrays, bucket_mb)
        slots = () if optimizer is None else optimizer.slots
        self._twins = self._made_to_move(layout, 1 + len(slots))
        own = layout.allocate if self._twins is None else self._taken(layout, self._twins.live)
        self._params = own()
        layout.pack(params, self._params, 1.0, what="params")
        self._seen = self._seen_model = Views(layout, self._params, self.moves_itself)
        """What the script sees of the parameters (`_seen`) and of the model (`_seen_model`)."""
        self._seen_after: object = None
        self.params: P = self._seen.tree
        self.memory = {name: own() for name in slots}
        """What the optimizer remembers, by name: the live arrays."""
        for name in () if optimizer is None else optimizer.counts:
            self.memory[name] = [HOST.zeros("float64", 1)]
        self.registry = Registry()
        self.size = layout.size
        """Number of parameters."""
        self._signature = layout.signature, self._layout.signature
        self._bring: Bring | None = None
        """Makes this worker's contribution to the open round."""
        self._open: Step
        self._weight = 0.0
        """Weight of a step that was begun before all of its gradient was there."""
        self.moved = False
        """True if the last round of steps had a result: not if all that brought to it are lost."""
        self.surveyed = False
        """True if workers say regularly how they do: see `surveys`."""
        self.lengths = GradientLengths()
        """Lengths of gradients in rounds with a survey."""
        self._arena_of: Callable[..., Arena]
        self._made: dict[int, list[Arena]] = {}
        """Arenas by the number of the first strategy whose rounds they fit."""
        self._arenas: list[Arena]
        """Arenas of the rounds of steps, one for each fragment; `furnish` makes them."""
        self._progress: Rounds
        self._own: Sequence[Buffer] | None = None
        self._gradients: P | None = None
        self._by_key: dict[Key, Any] = {}
        """The arrays of `_gradients` by their keys."""
        self._born: Sequence[Buffer] | None = None
        """Buffers of the arrays of `_gradients`."""
        self.pieces = PartialGradient(self._layout)
        """Gradient of the next step, if the script gives it array by array."""
        self.micro_batches = MicroBatches(self._layout)
        """Gradient of the next step, if the script gives it part by part of the batch."""
        self._hold(strategy)

    def _hold(self, strategy: Strategy) -> None:
        """Make the state of this strategy, with its first values."""
        self.strategy = strategy
        layout, states = self._whole, dict(strategy.init(self._layout))
        self._state = {name: state.flats for name, state in states.items()}
        self._model: Sequence[Buffer] = self._params
        """The model on which all workers agree after a round."""
        if (centre := strategy.meeting.centre) is not None:
            self._model = states.pop(centre).flats
            _copy(self._model, self._params)
        self._seen_model = self._seen
        if self._model is not self._params:
            self._seen_model = Views(layout, self._model, self.moves_itself)
        self.model: P = self._seen_model.tree
        self.registry.begin_anew()
        self.registry.add("params", layout, State(self._model))
        scope = Scope.LOCAL if strategy.local_models else Scope.REPLICATED
        counts = () if self.optimizer is None else self.optimizer.counts
        for name, flats in self.memory.items():
            held = State(flats, scope, paged=name not in counts)
            there = layout if held.paged else Layout.of(flats)
            self.registry.add(f"optimizer/{name}", there, held)
        for name, state in states.items():
            self.registry.add(f"strategy/{name}", self._layout, state)
        self._narrowings = self._narrowed()
        """Narrowing of each bucket; None for a bucket that travels as it is."""
        self._own = None

    def switch(self, strategy: Strategy) -> None:
        """Go on with another strategy, after a round in which all workers agree on a model.

        All train from that model. Each worker keeps what its optimizer remembers; but that begins
        again if workers had different ones and will have the same from now on. What the strategy
        remembers begins again.
        """
        before = self.strategy
        self.leave()
        self.settle()
        if before.local_models and not strategy.local_models:
            self._forget()
        self._hold(strategy)
        self._provide()
        self.start()

    def _forget(self) -> None:
        for flats in self.memory.values():
            fill(flats, 0)

    def furnish(self, arena: Callable[..., Arena]) -> None:
        """Get memory for rounds from the data plane: ``arena`` is its `Fabric.arena`."""
        self._arena_of = arena
        self._made.clear()
        self._provide()

    def _provide(self) -> None:
        """Have memory for the rounds of this strategy."""
        forms = [(one.fragments, one.wire) for one in self.strategies]
        number = forms.index((self.strategy.fragments, self.strategy.wire))
        # The name is the same on all workers: they find the memory by it.
        name, layout = f"data{number or ''}", self._layout
        shapes = [
            Shape(bucket.dtype, bucket.size, layout.backend, narrowing)
            for bucket, narrowing in zip(layout.buckets, self._narrowings, strict=True)
        ]
        fragments = min(self.strategy.fragments, len(shapes))
        if number in self._made:
            # They stay: a worker that has yet to commit the last round may need the record in them.
            for part, arena in enumerate(self._made[number]):
                arena.layout = [shapes[one] for one in self.buckets_of(part)]
        elif fragments == 1:
            self._made[number] = [self._arena_of(shapes, name, self._twins)]
        else:
            self._made[number] = [
                self._arena_of([shapes[one] for one in self.buckets_of(part)], f"{name}/{part}")
                for part in range(fragments)
            ]
        self._arenas = self._made[number]

    def follow_rounds(self, progress: Rounds) -> None:
        """Read the number of rounds from ``progress``."""
        self._progress = progress

    @property
    def arena(self) -> Arena:
        """The arena of the open round of steps, or of the next one."""
        return self._arenas[self._progress.rounds % len(self._arenas)]

    @property
    def surveys(self) -> bool:
        """True if workers say how they do in the open round of steps, or in the next one."""
        every = max(1, _SURVEY // self.strategy.every)
        return self.surveyed and self._progress.rounds % every == every - 1

    @property
    def _measures(self) -> bool:
        """True if the lengths of the open round's gradients are measured."""
        return self.surveys and self.strategy.meeting.averages

    def buckets_of(self, number: int) -> range:
        """Return the buckets that the round of steps of this number carries."""
        return fragment(len(self._layout.buckets), self.strategy.fragments, number)

    @property
    def _buckets(self) -> range:
        return self.buckets_of(self._progress.rounds)

    def _made_to_move(self, layout: Layout, sets: int) -> DoubleBuffer | None:
        """Return room for two copies of parameters and slots, if a plane can do a whole step."""
        optimizer = self.optimizer
        if optimizer is None or layout.backend is not HOST:
            return None
        if not (optimizer.at_once and any(one.fusable for one in self.strategies)):
            return None
        return DoubleBuffer([(bucket.dtype, bucket.size) for bucket in layout.buckets] * sets)

    @staticmethod
    def _taken(layout: Layout, flats: Sequence[Buffer]) -> Callable[[], list[Buffer]]:
        """Return a function: each call takes the next set of buckets from ``flats``."""
        left, many = iter(flats), len(layout.buckets)
        return lambda: list(itertools.islice(left, many))

    def _narrowed(self) -> list[Narrowing | None]:
        form, layout = self.strategy.wire, self._layout
        if form is None:
            return [None for _ in layout.buckets]
        rests = zip(*(self._state[name] for name in RESTS), strict=True)
        return [
            Narrowing(form, *both) if bucket.dtype == NARROWED else None
            for bucket, both in zip(layout.buckets, rests, strict=True)
        ]

    @property
    def library(self) -> str:
        """The array library of its arrays."""
        return self._layout.backend.name

    @property
    def signature(self) -> str:
        """A text that is equal on two workers if their arrays have the same structure."""
        return str(self._signature)

    @property
    def moves_itself(self) -> bool:
        """True if the replica applies a round's result; else the script does."""
        return self.optimizer is not None

    @property
    def ends(self) -> Sequence[int] | None:
        """Places where a page of its state may end, in words of one set; None: anywhere.

        The next values of a page's elements must follow from that page alone. An optimizer moves
        each element by itself, or with all others of its array; a script moves all together.
        """
        if self.optimizer is None:
            return self._whole.ends[-1:]
        return None if self.optimizer.elementwise else self._whole.ends

    def first(self) -> WordView:
        """Return what the first worker gives to all at the beginning."""
        return WordView(self._model)

    def settle(self) -> None:
        """Copy the model of all, which has arrived, to the parameters: train from there."""
        if self._model is not self._params:
            _copy(self._params, self._model)

    def start(self) -> None:
        """Start the strategy: all workers begin to train, with these parameters."""
        self.strategy.start(self._step())

    def state(self, name: str) -> Any:
        """Return what an operator remembers under this name, in the user's structure."""
        return self._layout.views(self._state[name])

    def show(self, after: object) -> None:
        """Show the present parameters to the script. Those of half precision are rounded again, if
        they have moved since the last call: then ``after`` differs."""
        if after != self._seen_after:
            self._seen_after = after
            self._seen.round()
            if self._seen_model is not self._seen:
                self._seen_model.round()

    def clear(self, name: str) -> None:
        """Set what an operator remembers under this name to zero."""
        fill(self._state[name], 0)

    @property
    def gradients(self) -> P:
        """Arrays to compute gradients into, in the user's structure; always the same ones.

        If the data plane weighs, other workers read these arrays: then `begin` with them copies
        nothing.
        """
        if self._gradients is None:
            rounds = any(bucket.halves for bucket in self._layout.buckets)
            there = self.arena.weighs and self._alone and not rounds
            self._born = self.arena.contributions if there else self._layout.allocate()
            views = Views(self._layout, self._born)
            self._by_key, self._gradients = views.by_key, views.tree
        return cast(P, self._gradients)

    @property
    def _alone(self) -> bool:
        """True if contributions hold all of the model, and none is made ahead of its round."""
        return len(self._arenas) == 1 and not self.strategy.delay

    # A step.

    def begin(self, grads: Any, now: StepPosition) -> Asks[bool]:
        """Do a step up to its round. Returns True if it has one, as the last steps of rounds do.
        Raises UsageError if the gradient does not fit."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            in_place = grads is self._gradients and flats is self._born
            if not (in_place and times == 1.0 and self.arena.weighs):
                self._layout.pack(grads, flats, times, what)

        what = "arrays" if self.optimizer is None else "grads"
        return (yield from self._begin(Weighted(pack, now.samples), now))

    def _begin(self, bring: Weighted, now: StepPosition) -> Asks[bool]:
        self.moved = False
        self._open = self._step(now=now, bring=bring, rate=now.rate, many=now.many)
        yield from self.strategy.prepare(self._open)
        if now.last:
            self._bring = self.strategy.contribute(self._open)
        return now.last

    def bring(self) -> None:
        """Make the contribution of the step that was begun."""
        bring, self.arena.weight = self._bring, 1.0
        assert bring is not None
        if self.arena.weighs and isinstance(bring, Weighted):
            self.arena.weight = bring.weight
            if bring.weight:
                bring.pack(self.arena.contributions, 1.0)
        else:
            bring(self.arena.contributions)

    def starts(self, first: int = 0, last: int | None = None) -> None:
        """Note that buckets of the contribution are about to be summed: all, or some of a step
        whose gradient comes array by array."""
        if self.arena.in_place and self._measures:  # before the sum replaces it
            self.lengths.bring(self.arena.contributions[first:last], self.arena.weight, first > 0)

    @property
    def one_counts(self) -> bool:
        """True if only one worker's contribution counts in the round of this step."""
        return self._bring is not None and self.strategy.meeting.alone

    def count(self, mine: bool) -> None:
        """Make the contribution again, as only one counts. ``mine``: True if it is this one."""
        if mine:
            self.bring()
        else:
            self.arena.bring_nothing()

    def first_not_finite(self, first: int = 0, last: int | None = None) -> str | None:
        """Return the name of an array of the contribution that holds NaN or infinity; None: there
        is none. ``first`` and ``last`` limit the buckets."""
        if not self.arena.weight:
            return None
        numbers = self._buckets[first:last]
        return self._layout.check_finite(self.arena.contributions[first:last], numbers)

    def send(self, now: StepPosition) -> None:
        """Make the contribution of a round whose last step is still to come."""
        self._bring = self.strategy.contribute(self._step(now=now))
        self.bring()

    # A step whose gradient comes array by array.

    def begin_piecewise(self, now: StepPosition) -> Asks[None]:
        """Begin a step of a piecewise strategy before all of its gradient is there. All else is as
        in `begin`."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            for key, array in self.pieces.items():
                self._lay(key, array, flats, times)

        yield from self._begin(Weighted(pack, now.samples), now)
        bring = self._bring
        assert isinstance(bring, Weighted)
        self._weight = weight = bring.weight
        self.arena.weight = weight if self.arena.weighs else 1.0
        if not weight and not self.arena.weighs:
            fill(self.arena.contributions, 0)

    def give(self, key: Key, array: Any) -> None:
        """Take one array of the gradient, which was checked. If the step was begun, pack it into
        the contribution."""
        self.pieces.take(key, array)
        if self._bring is not None and self._weight:
            times = 1.0 if self.arena.weighs else self._weight
            self._lay(key, array, self.arena.contributions, times)

    def gathered(self, grads: Any) -> Any:
        """Return the whole gradient: the arrays that were given one by one, and ``grads``."""
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
        there = array is self._by_key.get(key) and flats is self._born
        if not (there and times == 1.0 and self.arena.weighs):
            self._layout.pack_one(key, array, flats, times)

    # Its end.

    def fuse_update(self, rate: float, weight: float) -> None:
        """Let the sums of the open round go right into the next state, if the data plane can do
        that. `complete` must get the same values. Called again for a retry."""
        if self._twins is None or not self.strategy.fusable:
            return
        optimizer, scale, measures = self.optimizer, 1.0 / weight, self._measures
        assert optimizer is not None
        self.lengths.begin()

        def into(after: Sequence[Buffer], before: Sequence[Buffer]) -> Move:
            def move(part: slice, inputs: Sequence[Buffer], weights: Sequence[float]) -> None:
                new, old = ([flat[part] for flat in flats] for flats in (after, before))
                optimizer.move(new, old, inputs, weights, self.memory, rate, scale)

            return self.lengths.beside(move) if measures else move

        many = len(self._layout.buckets)
        moves = [
            into(self._twins.next[number::many], self._twins.live[number::many])
            for number in range(many)
        ]
        if not self.arena.fuse_update(
            moves, _mark(optimizer, self.registry.numbers(), rate, weight)
        ):
            self.arena.leave()

    def leave(self) -> None:
        """Make this worker's arrays its own: others are about to go on without it."""
        self.arena.leave()

    def complete(self, result: Result) -> None:
        """Do the rest of the step that was begun: its round is the record. Do it at once, then
        `close`."""
        self.moved = True
        self._know(self._open, result)
        self._turn()
        if self.arena.fused:
            self.arena.advance()
            self._open.fused = True
        self.strategy.apply(self._open, () if self._open.fused else self._record())
        if self.surveys:
            self._measure(result.weight)

    def _measure(self, weight: int) -> None:
        if not self._measures:
            self.lengths.known = None
            return
        if not self.arena.in_place and self._open.now.samples:
            self.lengths.bring(self.arena.contributions, self.arena.weight)
        if not self.arena.fused:
            self.lengths.begin()
            self.lengths.sum(self._record())
        self.lengths.end(self._open.now.samples, weight)

    def brought_not_finite(self) -> bool:
        """Return True if this worker brought NaN or infinity to the step that is complete and not
        closed, as far as can be seen. If sums replaced the contribution, it is made again."""
        if not self.arena.in_place:
            return self.first_not_finite() is not None
        if not self.strategy.meeting.averages or self._bring is None:
            return False
        self._bring(flats := self._layout.allocate())
        return self._layout.check_finite(flats) is not None

    def close(self) -> None:
        """End the step, with or without a result: let go of the script's arrays."""
        self._bring = None
        self._weight = 0.0
        self.pieces.clear()
        self.micro_batches.clear()

    def follow(self, result: Result) -> None:
        """Apply the record as all workers do, without having brought anything to it."""
        self.moved = True
        now = StepPosition(samples=0.0, share=0.0, after=result.after, round=result.round)
        step = self._step(now=now)
        self._know(step, result)
        self._turn()
        self.strategy.apply(step, self._record())

    def rehearse(self, grads: Any) -> None:
        """Do all that a step does here, while the state counts for nothing. So nobody waits for
        kernels to load and memory to come when the real step comes."""
        for arena in self._arenas:
            for _ in range(2):
                if self._alone:
                    self._layout.pack(grads, arena.contributions, 1.0)
                arena.turn()
        self.pieces.clear()
        self.micro_batches.clear()
        self.follow(Result(0.0, 1, 1, 1, 1, self._progress.rounds))
        # Some strategies never give a newcomer what the others' optimizers remember.
        self._forget()
        self.registry.digest()

    def _turn(self) -> None:
        """Note that the last sums count: what narrowing took from them is added to the next."""
        for number in self._buckets:
            if (narrowing := self._narrowings[number]) is not None:
                narrowing.turn()

    def _record(self) -> list[Buffer]:
        """Return the last sums, for reading only: other workers may share the memory."""
        backend = self._layout.backend
        return [
            backend.view(flat, 0, (self._layout.buckets[number].size,), read_only=True)
            for number, flat in zip(self._buckets, self.arena.record, strict=True)
        ]

    def _step(self, **known: Any) -> Step:
        mine = self._params, self.memory, self._state
        return Step(self._layout, self.optimizer, *mine, self._room, **known)

    def _room(self) -> Sequence[Buffer]:
        # The contribution's memory is free: nobody reads it until the round begins and makes it.
        if self._alone:
            return self.arena.contributions
        if self._own is None:  # not free: made ahead, or too small, for a part of the model
            self._own = self._layout.allocate()
        return self._own

    @staticmethod
    def _know(step: Step, result: Result) -> None:
        step.rate, step.weight = result.rate, result.weight
        step.active, step.many = result.active, result.many


def _copy(flats: Sequence[Buffer], values: Sequence[Buffer]) -> None:
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], 1.0)


def _mark(*how: Any) -> int:
    """Return a number, not 0, that is equal on workers that do the same with a round's sums."""
    return 1 + zlib.crc32(repr(how).encode())
