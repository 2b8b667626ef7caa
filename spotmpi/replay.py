"""The truth of a run, from its trace alone: which samples counted, and what parameters follow.

Nothing here takes part in training. All functions are local. A replay runs the strategy's own
operators, without rounds, recoveries or newcomers: it proves that nothing was lost and nothing
counted twice, and not that an operator is right, which `spotmpi.simulation.truths` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from spotmpi.arrays.backend import fill, kernels_for
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope
from spotmpi.arrays.views import Views
from spotmpi.errors import UsageError
from spotmpi.fabric import Buffer
from spotmpi.fabric import Steps as Asks
from spotmpi.operators import Bring, Step, StepPosition, Weighted, fragment
from spotmpi.optimizers import Optimizer
from spotmpi.protocol.membership import WorkerId
from spotmpi.strategies import RESTS, SSGD, Strategy
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
    switches,
    uses,
)

__all__ = ["check_exactly_once", "check_replicas", "replay", "steps", "uses"]

T = TypeVar("T")

Gradient = Callable[[Any, npt.NDArray[np.int64]], Any]


def replay(
    records: Iterable[Record],
    params: Any,
    gradient: Gradient,
    optimizer: Optimizer,
    strategy: Strategy | None = None,
    others: Sequence[Strategy] = (),
) -> Any:
    """The model that the run must have ended with, computed again in this one process.

    ``params`` are those before the first step in the trace (they are not changed), and
    ``gradient(params, samples)`` gives the mean gradient over samples as the script computed it.
    ``strategy``: the run's first, `SSGD` if none is given; ``others``: those that it changed to.
    Contributions are summed in the order in which
    the trace has them, or from host to host where they were, narrowed where they were; those
    without samples bring nothing. That is the run's own order, and the model equal to the bit,
    unless the workers of a host could not share memory: then MPI summed what was large. Optimizer
    and strategy start without a past, so a trace that begins with a resume can only be replayed
    for those that keep none.
    """
    records = list(records)
    strategies = {str(one): one for one in (strategy or SSGD(), *others)}
    begins = next(iter(strategies.values()))
    _check(begins)
    layout = Layout.of(params, bucket_mb_of(records), halves=True)
    first = _Replica(layout, optimizer, begins, gradient)
    first.layout.pack(params, first.model, 1.0)
    first.settle()
    first.start()
    replicas = {_NOBODY: first}
    rests = Rests()
    begun, changes = resumed(records), switches(records)
    now = str(begins)
    for of_round in _rounds(steps(records), begun, begins.every):
        if (step := of_round[0]["step"]) in begun:
            rests = Rests()
            replicas = {_NOBODY: next(iter(replicas.values())).afresh()}
        if changes.get(step, now) != now:
            now = changes[step]
            if (then := strategies.get(now)) is None:
                raise UsageError(f"from step {step} on the run has followed {now}: give that, too")
            _check(then)
            rests = Rests()
            replicas = _switched(replicas, then, of_round[0]["workers"])
        replicas = _after(of_round, replicas, rests)
    return first.layout.views(next(iter(replicas.values())).model)


def _check(strategy: Strategy) -> None:
    if any(due.stage.asynchronous for due in strategy.before):
        raise UsageError(
            f"a run with {strategy} cannot be computed again from its trace: what workers came to "
            "follows from which models reached them when, which no trace has"
        )


_NOBODY = -1
"""In the place of a worker, where all hold the same."""


def _rounds(counted: Iterable[Record], begun: set[int], longest: int) -> Iterator[list[Record]]:
    """The steps of each round: a digest goes with the last one of it. ``longest``: the steps of
    one, where the trace does not number them."""
    found: list[Record] = []
    for record in counted:
        if found and (record["step"] in begun or record.get("round") != found[0].get("round")):
            yield found
            found = []
        found.append(record)
        whole = "round" not in record and len(found) == longest
        if whole or record.get("digest") is not None:
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
    first = next((worker for worker, share in shares.items() if share), None)
    brought: dict[WorkerId, list[Any]] = {}
    ended: dict[WorkerId, Step] = {}
    for worker, weight, samples, record, last, sends in _taken(of_round):
        now = StepPosition(
            weight,
            shares[worker],
            last,
            int(record["step"]) + 1,
            float(record["rate"]),
            before.rounds,
            sends,
        )
        bring, step = taking[worker].begin(samples if weight else None, now)
        if last:
            assert bring is not None
            which = before.buckets
            sizes = [before.layout.buckets[one] for one in which]
            part = [before.layout.backend.zeros(one.dtype, one.size) for one in sizes]
            if not before.alone or worker == first:
                bring(part)
            ended[worker] = step
            if shares[worker]:
                brought[worker] = part
    if brought:
        total = summed(brought, of_round[-1], rests)
        active = sum(map(bool, shares.values()))
        done: list[_Replica] = []
        for worker, step in ended.items():
            if not any(taking[worker] is one for one in done):
                done.append(taking[worker])
                step.weight, step.active, step.many = sum(shares.values()), active, len(of_round)
                step.rate = float(of_round[-1]["rate"])
                taking[worker].apply(step, total)
    for replica in {id(one): one for one in taking.values()}.values():
        replica.rounds += 1
    return {_NOBODY: before} if before.alike else taking


class _Taken(NamedTuple):
    """One step of one worker."""

    worker: WorkerId
    weight: float
    samples: npt.NDArray[np.int64] | None
    record: Record
    """Of the training's step that it was, more or less."""
    last: bool
    """Its last one of the round."""
    sends: bool
    """What is brought to the round is made with it."""


def _taken(of_round: list[Record]) -> Iterator[_Taken]:
    """What each worker did in each step. Where they took different numbers of them, the trace has
    the samples of each in equal parts, and says how many steps these were."""
    many, sent = of_round[0].get("taken"), of_round[0].get("sent", len(of_round))
    if many is None:
        for number, record in enumerate(of_round, 1):
            for one in contributions(record):
                weight = float(one["weight"])
                samples = samples_of(record, one) if weight else None
                known = number == len(of_round), number == sent
                yield _Taken(int(one["worker"]), weight, samples, record, *known)
        return
    if len({record["rate"] for record in of_round}) > 1:
        raise UsageError(
            f"step {of_round[0]['step']}: the learning rate changes on the way to a round, and "
            "workers take different numbers of steps: which of them had which rate no trace has"
        )
    used: dict[WorkerId, list[npt.NDArray[np.int64]]] = {}
    for record in of_round:
        for one in contributions(record):
            used.setdefault(int(one["worker"]), []).append(samples_of(record, one))
    for (worker, parts), count in zip(used.items(), many, strict=True):
        pieces = np.array_split(np.concatenate(parts), max(1, count))
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            yield _Taken(worker, len(piece), piece, of_round[-1], last, last)


def _switched(
    replicas: dict[WorkerId, _Replica], strategy: Strategy, workers: Sequence[WorkerId]
) -> dict[WorkerId, _Replica]:
    """Those of ``workers``, with another strategy."""
    first = next(iter(replicas.values()))
    if (found := first.switched(strategy)).alike:
        return {_NOBODY: found}
    # After a resume too, one stands for all.
    before = {one: first if _NOBODY in replicas else replicas.get(one) for one in workers}
    return {one: own.switched(strategy) for one, own in before.items() if own is not None}


class _Replica:
    """One worker's, or that of all."""

    def __init__(
        self, layout: Layout, optimizer: Optimizer, strategy: Strategy, gradient: Gradient
    ) -> None:
        self.layout = layout
        self._known = optimizer, strategy, gradient
        self.params = layout.allocate()
        self._views = Views(layout, self.params)
        self.memory = optimizer.remember(layout)
        self.rounds = 0
        states = strategy.init(layout)
        self.state = {name: one.flats for name, one in states.items()}
        centre = strategy.meeting.centre
        self.model: Sequence[Buffer] = self.params if centre is None else self.state[centre]
        own = {name for name, one in states.items() if one.scope is Scope.LOCAL} - {*RESTS}
        self.alike = not (own or strategy.local_models)
        """Workers are equal to the bit after each round."""
        self._shared = [flats for name, flats in self.state.items() if name not in own]
        if not strategy.local_models:
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

    def switched(self, strategy: Strategy) -> _Replica:
        """The same worker's, which goes on with another strategy."""
        optimizer, before, gradient = self._known
        found = _Replica(self.layout, optimizer, strategy, gradient)
        _copy(found.params, self.model)
        _copy(found.model, self.model)
        if strategy.local_models or not before.local_models:
            for mine, known in zip(found.memory.values(), self.memory.values(), strict=True):
                _copy(mine, known)
        found.rounds = self.rounds
        found.start()
        return found

    @property
    def buckets(self) -> range:
        """That the next round carries."""
        return fragment(len(self.layout.buckets), self._known[1].fragments, self.rounds)

    @property
    def alone(self) -> bool:
        """Only one contribution to the next round counts."""
        return self._known[1].meeting.alone

    def apply(self, step: Step, total: Sequence[Buffer]) -> None:
        """The rest of a step, with the sums of its round."""
        self._known[1].apply(step, total)

    def begin(
        self, samples: npt.NDArray[np.int64] | None, now: StepPosition
    ) -> tuple[Bring | None, Step]:
        """A step up to its round, if it has one; with these samples' gradient, if they count."""
        self._views.round()
        grads = None if samples is None else self._known[2](self._views.tree, samples)

        def pack(flats: Sequence[Buffer], times: float) -> None:
            if grads is None:
                fill(flats, 0)
            else:
                self.layout.pack(grads, flats, times)

        step = self._step(now=now, bring=Weighted(pack, now.samples), rate=now.rate)
        strategy = self._known[1]
        _alone(strategy.prepare(step))
        return strategy.contribute(step) if now.last or now.sends else None, step

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
