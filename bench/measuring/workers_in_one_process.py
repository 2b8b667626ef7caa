"""Workers of one training, simulated one after the other in this process.

They run the shipped operators and optimizers on real gradients, as a replay does, and all take
equal steps. Nobody dies or joins. Strategies that make workers wait for nobody are here, too: a
worker then finds what another one has shown in its last step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from spotmpi.arrays.backend import Buffer, fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.errors import UsageError
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators import Step, StepPosition, Weighted
from spotmpi.optimizers import Optimizer
from spotmpi.strategies import Strategy

__all__ = ["RISE", "WAYS", "Workers"]

Gradient = Callable[[Any, Any], Any]
"""Of a model, and of the numbers of some samples: the mean gradient over them."""
Memory = Mapping[str, Sequence[Buffer]]

WAYS = ("zero", "rising", "mean", "leader", "own")
"""What becomes of the optimizer's memory where each worker had its own, and all are to have the
same: it begins again; it begins again, and the learning rate rises from 0 to its value in `RISE`
steps; all take the mean; all take that of the first worker; or each keeps its own, and then the
workers' models drift apart."""
RISE = 20
"""Steps."""


class Workers:
    """All workers of a training."""

    def __init__(
        self, params: Any, optimizer: Optimizer, strategy: Strategy, gradient: Gradient, many: int
    ) -> None:
        """``params``: of all at the beginning; they are not changed."""
        self._layout = Layout.of(params, halves=True)
        self._optimizer, self._gradient = optimizer, gradient
        self._all = [_Worker(self._layout, optimizer) for _ in range(many)]
        for one in self._all:
            self._layout.pack(params, one.params, 1.0)
        self.steps = self._rounds = self._since = 0
        self._risen = RISE
        self.rates: list[float] = []
        """The learning rate of each step."""
        self._shown: dict[int, list[Buffer]] = {}
        self._begin(strategy)

    def copied(self) -> Workers:
        """Others that are where these are, between two rounds."""
        params = self._layout.views(self._all[0].params)
        found = Workers(params, self._optimizer, self.strategy, self._gradient, len(self._all))
        found.steps, found._rounds, found._risen = self.steps, self._rounds, self._risen
        found.rates = [*self.rates]
        found._shown = {who: [flat.copy() for flat in some] for who, some in self._shown.items()}
        for mine, known in zip(found._all, self._all, strict=True):
            _copy(mine.params, known.params)
            for held, there in ((mine.memory, known.memory), (mine.state, known.state)):
                for name, flats in held.items():
                    _copy(flats, there[name])
        return found

    @property
    def model(self) -> Any:
        """The model on which all workers agree after a round. Where workers with memories of their
        own follow a strategy that wants equal ones they agree on none: then their mean."""
        first, *others = (one.agreed(self.strategy) for one in self._all)
        flats = [flat.copy() for flat in first]
        if not all(map(_equal, [first] * len(others), others)):
            _mean(flats, [first, *others])
        return self._layout.views(flats)

    def follow(self, strategy: Strategy, way: str) -> None:
        """Follow another strategy, as workers do after a round. ``way``: one of `WAYS`."""
        if self._since:
            raise UsageError(f"step {self.steps} is in the middle of a round: change after it")
        for one in self._all:
            if (agreed := one.agreed(self.strategy)) is not one.params:
                _copy(one.params, agreed)
        if self.strategy.local_models and not strategy.local_models:
            self._settle(way)
        self._begin(strategy)

    def step(self, batches: Iterable[Any], rate: float) -> None:
        """Take a step of all workers, each with the gradient of its batch."""
        self._since += 1
        self._risen = min(self._risen + 1, RISE)
        if not self.strategy.local_models:  # else the rate is each worker's own
            rate *= self._risen / RISE
        self.rates.append(rate)
        last = self._since == self.strategy.every
        steps, brought = [], []
        for me, (one, batch) in enumerate(zip(self._all, batches, strict=True)):
            step = self._begun(me, one, batch, rate, last)
            steps.append(step)
            if last:
                brought.append(self._layout.allocate())
                self.strategy.contribute(step)(brought[-1])
        self.steps += 1
        if not last:
            return
        total, *others = brought
        for flats in others:
            for sums, flat in zip(total, flats, strict=True):
                kernels_for(sums).accumulate(sums, flat)
        for step in steps:
            step.weight = step.now.share * len(steps)
            step.active, step.many, step.rate = len(steps), self._since, rate
            self.strategy.apply(step, total)
        self._rounds, self._since = self._rounds + 1, 0

    def _begin(self, strategy: Strategy) -> None:
        parts = strategy.delay or strategy.fragments > 1
        if parts or strategy.wire is not None or strategy.meeting.alone:
            raise UsageError(
                f"{strategy} sums parts or narrow numbers, or takes the model of one worker, which "
                "is not simulated here"
            )
        self.strategy = strategy
        for one in self._all:
            one.state = {name: of.flats for name, of in strategy.init(self._layout).items()}
            if (agreed := one.agreed(strategy)) is not one.params:
                _copy(agreed, one.params)
            strategy.start(self._step(one))

    def _settle(self, way: str) -> None:
        if way not in WAYS:
            raise UsageError(f"{way} is none of {', '.join(WAYS)}")
        if way == "rising":
            self._risen = 0
        memories = [one.memory for one in self._all]
        for name, first in memories[0].items():
            held = [memory[name] for memory in memories]
            if way in ("zero", "rising"):
                for flats in held:
                    fill(flats, 0)
            elif way == "mean":
                mean = [flat.copy() for flat in first]
                _mean(mean, held)
                for flats in held:
                    _copy(flats, mean)
            elif way == "leader":
                for flats in held[1:]:
                    _copy(flats, first)

    def _begun(self, me: int, one: _Worker, batch: Any, rate: float, last: bool) -> Step:
        """What one worker does by itself."""
        grads = self._gradient(self._layout.views(one.params), batch)

        def pack(flats: Sequence[Buffer], times: float) -> None:
            self._layout.pack(grads, flats, times)

        share = float(len(batch) * self.strategy.every)
        now = StepPosition(
            len(batch), share, last, self.steps + 1, rate, self._rounds, me=me, **self._company(me)
        )
        step = self._step(one, now=now, bring=Weighted(pack, now.samples), rate=rate)
        asks = self.strategy.prepare(step)
        answer: Any = None
        try:
            while True:
                answer = self._answer(me, asks.send(answer))
        except StopIteration:
            return step

    def _company(self, me: int) -> dict[str, Any]:
        many = len(self._all)
        ring = random.Random(f"ring {self._rounds}").sample(range(many), many)
        return {
            "others": [one for one in range(many) if one != me],
            "crew": range(many),
            "chance": random.Random(f"{self.steps} {me}").random(),
            "before": ring[ring.index(me) - 1] if many > 1 else None,
        }

    def _answer(self, me: int, asked: object) -> Fetched | None:
        if isinstance(asked, Publish):
            self._shown[me] = [flat.copy() for flat in asked.model]
        elif isinstance(asked, Fetch):
            found = self._shown.get(asked.worker)
            return None if found is None else Fetched(asked.worker, self.steps, found)
        else:
            raise UsageError(f"{self.strategy} asks for {asked}, which is not simulated here")
        return None

    def _step(self, one: _Worker, **known: Any) -> Step:
        mine = one.params, one.memory, one.state
        return Step(self._layout, self._optimizer, *mine, self._layout.allocate, **known)


class _Worker:
    """What one worker holds."""

    def __init__(self, layout: Layout, optimizer: Optimizer) -> None:
        self.params: Sequence[Buffer] = layout.allocate()
        self.memory: Memory = optimizer.remember(layout)
        self.state: Memory = {}

    def agreed(self, strategy: Strategy) -> Sequence[Buffer]:
        """The model of all, as it knows it."""
        centre = strategy.meeting.centre
        return self.params if centre is None else self.state[centre]


def _copy(flats: Sequence[Buffer], values: Sequence[Buffer]) -> None:
    for flat, value in zip(flats, values, strict=True):
        flat[:] = value


def _equal(flats: Sequence[Buffer], others: Sequence[Buffer]) -> bool:
    return all(map(np.array_equal, flats, others))


def _mean(flats: Sequence[Buffer], some: Sequence[Sequence[Buffer]]) -> None:
    """Set ``flats`` to the mean, summed in the order of the workers."""
    for flat, each in zip(flats, zip(*some, strict=True), strict=True):
        total = each[0].copy()
        for one in each[1:]:
            total += one
        flat[:] = total / len(each)
