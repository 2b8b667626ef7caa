"""Whether a training that runs will be in time, and what to add or drop. Pure, seconds.

All clusters within the quota are planned from where the training is now, with the speed that it has
shown: what trains already trains on, what is new starts first. What runs stays while it is in time
with the confidence that is asked for and no cluster is cheaper by more than a twentieth; else the
cheapest that is in time takes its place, or the one that is most likely to be.

With ``--policy mixed`` what is missing is asked for on demand as soon as less is done than an even
pace would have done, or when what is left and two boots reach the time that is left; and as many
spot nodes are asked for in the place of those on demand when it is two boots ahead of that pace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spotmpi.economy.following.measured import Measured, with_own_curve
from spotmpi.economy.following.watched import Watched
from spotmpi.economy.models import Model
from spotmpi.economy.plan import provision, selection
from spotmpi.economy.plan.outcomes import Estimate
from spotmpi.economy.plan.provision import Candidate
from spotmpi.economy.plan.question import Question, startup
from spotmpi.economy.plan.selection import Choice
from spotmpi.economy.quantities import Cluster

__all__ = ["Advice", "Fleet", "Outlook", "advise"]

_Iterations = Callable[[Cluster], float]

_RUNS = 200
_SAVES = 0.05
"""Of what is still to be paid: a change for less is not worth it."""
_LIKELIER = 0.05
"""Of the runs: where none is in time often enough, a change for less is not worth it."""


@dataclass(frozen=True)
class Fleet:
    """What is rented now."""

    present: Cluster
    """What trains."""
    on_demand: Cluster = field(default_factory=dict)
    """Of that."""
    coming: Cluster = field(default_factory=dict)
    """Asked for, and not there yet."""

    @property
    def all(self) -> Cluster:
        """What will train if nothing else is done."""
        names = dict.fromkeys([*self.present, *self.coming])
        return {one: self.present.get(one, 0) + self.coming.get(one, 0) for one in names}


@dataclass(frozen=True)
class Outlook:
    """What is to be expected of one cluster, from now on."""

    cluster: Cluster
    in_time: Estimate
    middle_s: float | None
    """Half of the runs end by then; None: too many never end."""
    sure_s: float | None
    """The part of the runs that is asked for ends by then."""
    dollars: float | None
    """Still to be paid in half of the runs."""


@dataclass(frozen=True)
class Advice:
    """What to do."""

    reached: bool = False
    """What was asked for is done."""
    part: float = 0.0
    """Of the work that is done."""
    speed: float | None = None
    """In times that which the profile expects; None: too few steps to know."""
    keep: Outlook | None = None
    """If nothing is changed; None: nobody knows, or nothing is left to do."""
    to: Outlook | None = None
    """If it is changed."""
    add: Cluster = field(default_factory=dict)
    drop: Cluster = field(default_factory=dict)
    on_demand: bool = False
    """What is added is on demand."""
    why: str = ""


def advise(
    question: Question, watched: Watched, fleet: Fleet, speed: float | None = None
) -> Advice:
    """What to do now.

    ``question`` is that of the whole training, ``speed`` what `Advice.speed` was before, which
    counts until it is known for the hosts that are there now. UsageError where the model does not
    hold for what runs, or no curve leads from where the loss is to where it is to be.
    """
    demand, there = question.demand, fleet.present
    if not there:
        return Advice(why="nobody trains just now")
    model, speed = _model(question, watched, there, speed)
    reached = None
    if question.loss is not None:
        reached = watched.loss
        if reached is None:
            return Advice(
                speed=speed,
                why="the script has told no loss yet: trainer.step(grads, loss=...) does",
            )
        if reached <= question.loss:
            return Advice(reached=True, part=1.0, speed=speed)
    left = _left(question, model, watched, reached)
    rest, whole = left(there), _whole(question, model)(there)
    part = 1 - rest / whole if whole else 1.0
    if rest <= 0:
        return Advice(reached=True, part=1.0, speed=speed)
    remaining_s = demand.deadline_s - watched.elapsed_s
    if remaining_s <= 0:
        return Advice(part=part, speed=speed, why="the deadline is over")
    names = dict.fromkeys([*demand.quota, *fleet.all])
    quota = {one: max(demand.quota.get(one, 0), fleet.all.get(one, 0)) for one in names}
    now = replace(
        question,
        model=model,
        runs=min(question.runs, _RUNS),
        demand=replace(
            demand,
            iterations=left,
            deadline_s=remaining_s,
            quota=quota,
            existing=there,
            keeps=False,
            startup_s=startup(question.prices, there, question.terms),
        ),
        on_demand=fleet.on_demand if question.mixed else {},
    )
    keep = selection.live_through(now, provision.predict(model, now.demand, fleet.all))
    ahead_s = part * demand.deadline_s - watched.elapsed_s
    return _decided(now, fleet, keep, Advice(part=part, speed=speed), ahead_s)


def _decided(now: Question, fleet: Fleet, keep: Choice, so_far: Advice, ahead_s: float) -> Advice:
    demand, sure = now.demand, now.confidence
    so_far = replace(so_far, keep=_outlook(now, keep))
    found = provision.search(now.model, demand, 1, None)
    chosen = selection.select(now, found, enough=3, shown=1, risky=0) if found.feasible else None
    best = None if chosen is None else chosen.rows[0] if chosen.rows else chosen.best
    likely = keep.lived.within(demand.deadline_s).value
    if likely < sure:
        why = "it is late too often"
        if best is None:
            fastest = found.fastest
            if fastest is None or fastest.seconds >= keep.candidate.seconds * (1 - _LIKELIER):
                return replace(so_far, why="nothing within the quota is faster")
            best = selection.live_through(now, fastest)
            why = "no cluster of the quota is in time; this is the fastest"
        elif chosen is not None and not chosen.rows:
            if best.lived.within(demand.deadline_s).value < likely + _LIKELIER:
                return replace(so_far, why="nothing within the quota is in time more often")
            why = "none is in time often enough; this is the most often"
        return _change(now, fleet, best, replace(so_far, why=why), ahead_s)
    boots = 2 * max((_boot_s(now, name) for name in fleet.all), default=0.0)
    if fleet.on_demand and now.mixed and ahead_s >= boots:
        room = {n: demand.quota[n] - fleet.all.get(n, 0) for n in fleet.on_demand}
        add = {n: min(count, room[n]) for n, count in fleet.on_demand.items() if room[n] > 0}
        if add and not fleet.coming:
            return replace(
                so_far, add=add, why="it is two boots ahead: they take the place of those on demand"
            )
    if best is None or best.candidate.cluster == keep.candidate.cluster:
        return so_far
    saved = keep.dollars_at(sure) - best.dollars_at(sure)
    if not (chosen and chosen.rows) or saved <= _SAVES * keep.dollars_at(sure):
        return so_far
    return _change(now, fleet, best, replace(so_far, why="it is cheaper"), ahead_s)


def _change(now: Question, fleet: Fleet, best: Choice, so_far: Advice, ahead_s: float) -> Advice:
    to, have = best.candidate.cluster, fleet.all
    add = {one: n - have.get(one, 0) for one, n in to.items() if n > have.get(one, 0)}
    drop = {one: n - to.get(one, 0) for one, n in fleet.present.items() if n > to.get(one, 0)}
    if not (add or drop):
        return so_far
    on_demand = now.mixed and bool(add) and (ahead_s < 0 or _slack_s(now, best.candidate) <= 0)
    return replace(so_far, to=_outlook(now, best), add=add, drop=drop, on_demand=on_demand)


def _slack_s(now: Question, candidate: Candidate) -> float:
    boots = 2 * max(_boot_s(now, name) for name in candidate.cluster)
    return now.demand.deadline_s - candidate.seconds - boots


def _boot_s(now: Question, name: str) -> float:
    return now.terms.of(now.prices.offer(name)).boot_s or 0.0


def _model(
    question: Question, watched: Watched, there: Cluster, before: float | None
) -> tuple[Model, float | None]:
    """The model, with the speed and the curve of the training itself, as far as they are known."""
    model = question.model
    if question.loss is not None:
        workers = sum(watched.hosts.values())
        model = with_own_curve(model, *watched.losses, float(workers), question.loss)
    expected = model.rate(there) * question.runtime.pace
    factor = watched.speed / expected if watched.speed and expected else before
    return (model if factor is None else Measured(model, factor)), factor


def _whole(question: Question, model: Model) -> _Iterations:
    if (loss := question.loss) is None:
        return question.demand.iterations
    return lambda there: max(1.0, model.iterations(there, loss))


def _left(question: Question, model: Model, watched: Watched, reached: float | None) -> _Iterations:
    whole = _whole(question, model)
    if reached is None:
        return lambda there: max(0.0, whole(there) - watched.batches)
    done: float = reached
    return lambda there: max(0.0, whole(there) - model.iterations(there, done))


def _outlook(now: Question, choice: Choice) -> Outlook:
    lived = choice.lived
    middle, sure = lived.seconds_below(0.5), lived.seconds_below(now.confidence)
    dollars = lived.dollars_below(0.5)
    return Outlook(
        choice.candidate.cluster,
        lived.within(now.demand.deadline_s),
        None if middle is None else middle.value,
        None if sure is None else sure.value,
        None if dollars is None or not math.isfinite(dollars.value) else dollars.value,
    )
