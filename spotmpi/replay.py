"""The truth of a run, from its trace alone: which samples counted, and what parameters follow.

Nothing here takes part in training. All functions are local.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from spotmpi.arrays.backend import fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope
from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer
from spotmpi.fabric import Steps as Asks
from spotmpi.operators import RESTS, Contribute, Moment, Run, Step, Weighted, fragment
from spotmpi.optimizers import Optimizer
from spotmpi.protocol.membership import WorkerId
from spotmpi.strategies import SSGD, Strategy, complete
from spotmpi.trace.records import Record
from spotmpi.trace.replay import (
    Rests,
    bucket_mb_of,
    check_exactly_once,
    check_replicas,
    contributions,
    resumed,
    samples_of,
    steps,
    summed,
)

__all__ = ["check_exactly_once", "check_replicas", "replay", "steps"]

T = TypeVar("T")

Gradient = Callable[[Any, npt.NDArray[np.int64]], Any]


def replay(
    records: Iterable[Record],
    params: Any,
    gradient: Gradient,
    optimizer: Optimizer,
    strategy: Strategy | None = None,
) -> Any:
    """The model that the run must have ended with, computed again in this one process.

    ``params`` are those before the first step in the trace (they are not changed), and
    ``gradient(params, samples)`` gives the mean gradient over samples as the script computed it.
    ``strategy``: the run's, `SSGD` if none is given. Contributions are summed in the order in which
    the trace has them, or from host to host where they were, narrowed where they were; those
    without samples bring nothing. Optimizer and strategy start without a past, so a trace that
    begins with a resume can only be replayed for those that keep none.
    """
    if strategy is not None and strategy.paced:
        raise UsageError(
            f"a run with {strategy} cannot be computed again from its trace: what workers came to "
            "follows from which models reached them when, which no trace has"
        )
    records = list(records)
    known = Layout.of(params, bucket_mb_of(records)), optimizer, strategy or SSGD(), gradient
    first = _Replica(*known)
    first.layout.pack(params, first.model, 1.0)
    first.settle()
    first.start()
    replicas = {_NOBODY: first}
    rests = Rests()
    begun = resumed(records)
    for of_round in _rounds(steps(records), begun, known[2].steps):
        if of_round[0]["step"] in begun:
            rests = Rests()
            replicas = {_NOBODY: next(iter(replicas.values())).afresh()}
        replicas = _after(of_round, replicas, rests)
    return first.layout.views(next(iter(replicas.values())).model)


_NOBODY = -1
"""In the place of a worker, where all hold the same."""


def _rounds(counted: Iterable[Record], begun: set[int], longest: int) -> Iterator[list[Record]]:
    """The steps of each round: a digest goes with the last one of it."""
    found: list[Record] = []
    for record in counted:
        if found and (record["step"] in begun or record.get("round") != found[0].get("round")):
            yield found
            found = []
        found.append(record)
        if len(found) == longest or record.get("digest") is not None:
            yield found
            found = []
    if found:
        yield found


def _after(
    of_round: list[Record], replicas: dict[WorkerId, _Replica], rests: Rests
) -> dict[WorkerId, _Replica]:
    """The replicas of those who took part in a round, after it."""
    before = next(iter(replicas.values()))
    shares: dict[WorkerId, float] = {}
    for record in of_round:
        for one in contributions(record):
            worker = int(one["worker"])
            shares[worker] = shares.get(worker, 0.0) + float(one["weight"])
    if before.alike:
        taking = dict.fromkeys(shares, before)
    else:
        taking = {one: replicas.get(one) or before.afresh() for one in shares}
    planned: Any = of_round[0].get("shares")
    if planned:  # of contributions that were made before the round's last step
        shares = dict(zip(shares, map(float, planned), strict=True))
    sent: Any = of_round[0].get("sent", len(of_round))
    brought: dict[WorkerId, list[Any]] = {}
    runs: dict[WorkerId, tuple[Step, Run]] = {}
    for number, record in enumerate(of_round, 1):
        for one in contributions(record):
            worker, weight = int(one["worker"]), float(one["weight"])
            now = Moment(
                weight,
                shares[worker],
                number == len(of_round),
                int(record["step"]) + 1,
                float(record["rate"]),
                before.rounds,
                number == sent,
            )
            samples = samples_of(record, one) if weight else None
            contribute, step, run = taking[worker].begin(samples, now)
            if contribute is not None:
                which = before.buckets
                sizes = [before.layout.buckets[one] for one in which]
                part = [before.layout.backend.zeros(one.dtype, one.size) for one in sizes]
                contribute.bring(part)
                runs[worker] = step, run
                if shares[worker]:
                    brought[worker] = part
    if brought:
        last = of_round[-1]
        total = summed(brought, last, rests)
        active = sum(map(bool, shares.values()))
        done: list[_Replica] = []
        for worker, (step, run) in runs.items():
            if not any(taking[worker] is one for one in done):
                done.append(taking[worker])
                step.weight, step.active, step.many = sum(shares.values()), active, len(of_round)
                step.rate = float(last["rate"])
                complete(run, total)
    for replica in {id(one): one for one in taking.values()}.values():
        replica.rounds += 1
    return {_NOBODY: before} if before.alike else taking


class _Replica:
    """One worker's, or that of all."""

    def __init__(
        self, layout: Layout, optimizer: Optimizer, strategy: Strategy, gradient: Gradient
    ) -> None:
        self.layout = layout
        self._known = optimizer, strategy, gradient
        self.params = layout.allocate()
        self._views = layout.views(self.params)
        self.memory = optimizer.remember(layout)
        self.rounds = 0
        states = strategy.init(layout)
        self.state = {name: one.flats for name, one in states.items()}
        centre = strategy.centre
        self.model: Sequence[Buffer] = self.params if centre is None else self.state[centre]
        own = {name for name, one in states.items() if one.scope is Scope.LOCAL} - {*RESTS}
        self.alike = not (own or strategy.apart)
        """Workers are equal to the bit after each round."""
        self._shared = [flats for name, flats in self.state.items() if name not in own]
        if not strategy.apart:
            self._shared += self.memory.values()

    def settle(self) -> None:
        """Train from the model of all."""
        if self.model is not self.params:
            _copy(self.params, self.model)

    def start(self) -> None:
        """Begin to train."""
        self._known[1].start(self._step())

    def afresh(self) -> _Replica:
        """That of a newcomer, or after a resume."""
        found = _Replica(self.layout, *self._known)
        _copy(found.model, self.model)
        for mine, known in zip(found._shared, self._shared, strict=True):
            _copy(mine, known)
        found.settle()
        found.rounds = self.rounds
        return found

    @property
    def buckets(self) -> range:
        """That the next round carries."""
        return fragment(len(self.layout.buckets), self._known[1].fragments, self.rounds)

    def begin(
        self, samples: npt.NDArray[np.int64] | None, now: Moment
    ) -> tuple[Contribute | None, Step, Run]:
        """A step up to its round, if it has one; with these samples' gradient, if they count."""
        grads = None if samples is None else self._known[2](self._views, samples)

        def pack(flats: Sequence[Buffer], times: float) -> None:
            if grads is None:
                fill(flats, 0)
            else:
                self.layout.pack(grads, flats, times)

        step = self._step(now=now, bring=Weighted(pack, now.samples), rate=now.rate)
        contribute, run = _alone(self._known[1].begin(step))
        return contribute, step, run

    def _step(self, **known: Any) -> Step:
        mine = self.params, self.memory, self.state
        return Step(self.layout, self._known[0], *mine, self.layout.allocate, **known)


def _alone(asks: Asks[T]) -> T:
    """What comes of them, without others."""
    try:
        asked = next(asks)
    except StopIteration as stop:
        found: T = stop.value
        return found
    raise UsageError(f"what comes of {type(asked).__name__} is in no trace")


def _copy(flats: Sequence[Buffer], values: Sequence[Buffer]) -> None:
    for flat, value in zip(flats, values, strict=True):
        kernels_for(flat).pack(flat, [value], 1.0)
