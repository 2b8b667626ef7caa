"""What one strategy needs of a worker: what it brings to rounds of steps, and what their results do
to the model. All of it is local. When the strategy changes, another one takes its place."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from spotmpi.arrays.backend import fill, occupy
from spotmpi.arrays.layout import Key
from spotmpi.fabric import Arena, Buffer, Move
from spotmpi.fabric import Steps as Asks
from spotmpi.operators import Bring, Step, StepPosition, Weighted
from spotmpi.protocol.paces import Pace, all_of, furthest
from spotmpi.strategies import Strategy
from spotmpi.training.gradients.gradient_lengths import GradientLengths
from spotmpi.training.gradients.script_gradient import ScriptGradient
from spotmpi.training.model import Model
from spotmpi.training.step_memory import RoundCount, StepMemory

__all__ = ["Result", "Synchroniser"]

P = TypeVar("P")

_SURVEY = 16
"""Steps from one survey to the next, or the steps of a round if it has more. After a change of the
strategy every second round has a survey until then: slow steps must not make every trial long."""


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


class Synchroniser(Generic[P]):
    """One strategy at work on a model.

    If the data plane works in place, a retry packs the contribution again from the script's arrays.
    They are unchanged, as the script waits (docs/adr/0011).
    """

    def __init__(
        self,
        strategy: Strategy,
        model: Model[P],
        gradient: ScriptGradient[P],
        progress: RoundCount,
        lengths: GradientLengths,
        surveyed: bool,
    ) -> None:
        """``lengths``: measures gradients in rounds with a survey; it outlives this strategy.
        ``surveyed``: workers say regularly how they do, see `surveys`."""
        self.strategy = strategy
        self._model = model
        self._gradient = gradient
        self._progress = progress
        self.lengths = lengths
        self._surveyed = surveyed
        states = dict(strategy.init(model.brought))
        self.state = {name: state.flats for name, state in states.items()}
        """What the strategy remembers, by name."""
        centre = strategy.meeting.centre
        if centre is not None:
            del states[centre]
        model.hold(states, None if centre is None else self.state[centre], strategy.local_models)
        self.memory = StepMemory(strategy, model.brought, progress, self.state)
        """What its rounds carry."""
        self._open: Step
        self._bring: Bring | None = None
        """Makes this worker's contribution to the open round."""
        self.since = progress.rounds
        """Rounds of steps before the first one with this strategy."""
        self.paces: Sequence[Pace] = ()
        """Paces of all workers in the last round of steps, if the strategy is asynchronous."""
        self.moved = False
        """True if the last round of steps had a result: not if all that brought to it are lost."""

    def start(self) -> None:
        """Start the strategy: all workers begin to train, with these parameters."""
        self.strategy.start(self._step())

    def occupy(self) -> None:
        """Have all memory that this worker writes to in rounds: else the first ones would wait for
        it."""
        self.memory.occupy()
        for flats in self.state.values():
            occupy(flats)

    @property
    def arena(self) -> Arena:
        """The arena of the open round of steps, or of the next one."""
        return self.memory.arena

    @property
    def surveys(self) -> bool:
        """True if workers say how they do in the open round of steps, or in the next one. They do
        so in every second round with a strategy, and less often after `_SURVEY` steps."""
        if not self._surveyed:
            return False
        number = self._progress.rounds - self.since + 1
        most = max(1, _SURVEY // self.strategy.every)
        return number % most == 0 or (number < most and number % 2 == 0)

    @property
    def _measures(self) -> bool:
        """True if the lengths of the open round's gradients are measured."""
        return self.surveys and self.strategy.meeting.averages

    # A step.

    def begin(self, grads: Any, now: StepPosition) -> Asks[None]:
        """Do a step up to its round, if it has one. Raises UsageError if the gradient does not
        fit."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            self._gradient.pack(grads, flats, times, self.memory.arena.weighs)

        return self._begin(Weighted(pack, now.samples), now)

    def _begin(self, bring: Weighted, now: StepPosition) -> Asks[None]:
        self.moved = False
        self._open = self._step(now=now, bring=bring, rate=now.rate, many=now.many)
        yield from self.strategy.prepare(self._open)
        if now.last:
            self._bring = self.strategy.contribute(self._open)

    def bring(self) -> None:
        """Make the contribution of the step that was begun."""
        arena, bring = self.memory.arena, self._bring
        arena.weight = 1.0
        assert bring is not None
        if arena.weighs and isinstance(bring, Weighted):
            arena.weight = bring.weight
            if bring.weight:
                bring.pack(arena.contributions, 1.0)
        else:
            bring(arena.contributions)

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

    def send(self) -> None:
        """Make the contribution of a round whose last step is still to come, in the step that was
        begun last."""
        self._bring = self.strategy.contribute(self._open)
        self.bring()

    # A step whose gradient comes array by array.

    def begin_piecewise(self, now: StepPosition) -> Asks[None]:
        """Begin a step of a piecewise strategy before all of its gradient is there. All else is as
        in `begin`."""

        def pack(flats: Sequence[Buffer], times: float) -> None:
            for key, array in self._gradient.pieces.items():
                self._gradient.pack_one(key, array, flats, times, self.arena.weighs)

        yield from self._begin(Weighted(pack, now.samples), now)
        bring = self._bring
        assert isinstance(bring, Weighted)
        weight = bring.weight
        self.arena.weight = weight if self.arena.weighs else 1.0
        if not weight and not self.arena.weighs:
            fill(self.arena.contributions, 0)

    def give(self, key: Key, array: Any) -> None:
        """Take one array of the gradient, which was checked. If the step was begun, pack it into
        the contribution."""
        self._gradient.pieces.take(key, array)
        bring = self._bring
        if isinstance(bring, Weighted) and bring.weight:
            weighs = self.arena.weighs
            times = 1.0 if weighs else bring.weight
            self._gradient.pack_one(key, array, self.arena.contributions, times, weighs)

    # Its end.

    def fuse_update(self, rate: float, weight: float) -> None:
        """Let the sums of the open round go right into the next state, if the data plane can do
        that. `complete` must get the same values. Called again for a retry."""
        model, doubled = self._model, self._model.double_buffer
        if doubled is None or not self.strategy.fusable:
            return
        arena = self.arena
        if not arena.fuses:
            arena.leave()
            return
        optimizer, scale, measures = model.optimizer, 1.0 / weight, self._measures
        assert optimizer is not None
        self.lengths.begin()

        def into(after: Sequence[Buffer], before: Sequence[Buffer]) -> Move:
            def move(part: slice, inputs: Sequence[Buffer], weights: Sequence[float]) -> None:
                new, old = [flat[part] for flat in after], [flat[part] for flat in before]
                optimizer.move(new, old, inputs, weights, model.memory, rate, scale)

            return self.lengths.beside(move) if measures else move

        many = len(model.layout.buckets)
        moves = [
            into(doubled.next[number::many], doubled.live[number::many]) for number in range(many)
        ]
        mark = _mark(optimizer, model.registry.numbers(), rate, weight)
        arena.fuse_update(moves, mark)

    def leave(self) -> None:
        """Make this worker's arrays its own: others are about to go on without it."""
        self.arena.leave()

    def complete(self, result: Result) -> None:
        """Do the rest of the step that was begun: its round is the record. Do it at once, then
        `close`."""
        self.moved = True
        self._know(self._open, result)
        self.memory.turn()
        arena = self.memory.arena
        if fused := arena.fused:
            arena.advance()
        self._open.fused = fused
        self.strategy.apply(self._open, () if fused else self.memory.record())
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
            self.lengths.sum(self.memory.record())
        self.lengths.end(self._open.now.samples, weight)

    def brought_not_finite(self) -> bool:
        """Return True if this worker brought NaN or infinity to the step that is complete and not
        closed, as far as can be seen. If sums replaced the contribution, it is made again."""
        if not self.arena.in_place:
            return self.memory.first_not_finite() is not None
        if not self.strategy.meeting.averages or self._bring is None:
            return False
        layout = self._model.brought
        self._bring(flats := layout.allocate())
        return layout.check_finite(flats) is not None

    def close(self) -> None:
        """End the step, with or without a result: let go of the script's arrays."""
        self._bring = None
        self._gradient.clear()

    def follow(self, result: Result) -> None:
        """Apply the record as all workers do, without having brought anything to it."""
        self.moved = True
        now = StepPosition(samples=0.0, share=0.0, after=result.after, round=result.round)
        step = self._step(now=now)
        self._know(step, result)
        self.memory.turn()
        self.strategy.apply(step, self.memory.record())

    def rehearse(self, grads: Any) -> None:
        """Do all that a step does here, while the state counts for nothing. So nobody waits for
        kernels to load and memory to come when the real step comes."""
        self.occupy()
        self._model.brought.pack(grads, self.memory.free(), 1.0)
        self._gradient.clear()
        self.follow(Result(0.0, 1, 1, 1, 1, self._progress.rounds))
        # Some strategies never give a newcomer what the others' optimizers remember.
        self._model.forget()
        self._model.registry.digest()

    def _step(self, **known: Any) -> Step:
        model = self._model
        mine = model.flats, model.memory, self.state
        return Step(model.brought, model.optimizer, *mine, self.memory.free, **known)

    @staticmethod
    def _know(step: Step, result: Result) -> None:
        step.rate, step.weight = result.rate, result.weight
        step.active, step.many = result.active, result.many


def _mark(*how: Any) -> int:
    """Return a number, not 0, that is equal on workers that do the same with a round's sums."""
    return 1 + zlib.crc32(repr(how).encode())
