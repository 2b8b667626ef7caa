"""Which clusters are in time whatever is revoked, and which of them is the cheapest.

Of the clusters that are fast enough undisturbed, each is lived through many times. There may be
100,000 of them, so they are taken in an order that an estimate gives (`_order`): first those that
the estimate holds for in time, the cheapest first. The estimate decides who is looked at, never
who is in time: that the simulated runs say. Blocking, seconds; no files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from spotmpi.economy.market.lifetimes import Exponential, Never
from spotmpi.economy.plan import rental
from spotmpi.economy.plan.events import Fallback
from spotmpi.economy.plan.outcomes import Campaign, campaign
from spotmpi.economy.plan.provision import Candidate, Search
from spotmpi.economy.plan.question import Question
from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError

__all__ = ["Choice", "Safe", "Selection", "Sensitivity", "live_through", "select", "sensitivity"]

_SHOWN = 8
"""Clusters that are listed."""
_ENOUGH = 12
"""So many in time are found before they are ranked: the cheapest undisturbed need not be the
cheapest under revocations."""
_MOST = 400
"""Clusters that are lived through at most."""
_FIRST_RUNS = 64
"""After so many runs a cluster that is surely too often late is given up."""
_SLOTS = 256
"""Sampled lives of one place in a cluster, for the estimate."""

_DOUBT = 0.1
"""Of the estimated time: a cluster that misses the deadline by less may well be in time."""

_QUICK_RUNS = 200
_SPAN = 64.0
"""Mean lifetimes are tried from so many deadlines down to a part of one as small."""
_HALVINGS = 5


@dataclass(frozen=True)
class Choice:
    """One cluster of the answer."""

    candidate: Candidate
    lived: Campaign
    on_demand: float | None
    """Dollars of the same, undisturbed; None: it has no such price."""
    bottleneck: str

    def dollars_at(self, confidence: float) -> float:
        """What this part of the runs cost at most; infinite if so many do not end."""
        found = self.lived.dollars_below(confidence)
        return math.inf if found is None else found.value


@dataclass(frozen=True)
class Safe:
    """The cheapest cluster on demand: nothing of it is revoked, and it needs no checkpoint."""

    candidate: Candidate
    dollars: float


@dataclass(frozen=True)
class Selection:
    """What was chosen."""

    rows: list[Choice]
    """In time with the confidence that is asked for; the cheapest at that confidence first."""
    best: Choice
    """The most likely one to be in time."""
    late: list[Choice]
    """Those that were lived through and are late too often."""
    lived: int
    """Clusters that were lived through."""
    complete: bool
    """All that are fast enough undisturbed were, or enough of them are in time."""
    safe: Safe | None
    """On demand; None: a type without such a price is in every cluster that is fast enough."""


@dataclass(frozen=True)
class Sensitivity:
    """How the first choice depends on a mean lifetime that nobody knows."""

    long_s: float
    """With nodes that live so long on average, or longer ..."""
    first: Cluster | None
    """... this is the first choice; None: no cluster is in time."""
    short_s: float | None
    """With nodes that live so long on average, or a little shorter ... None: it never changes."""
    then: Choice | None = None
    """... this one is; None: no cluster is in time."""


def select(
    question: Question, found: Search, *, enough: int = _ENOUGH, shown: int = _SHOWN
) -> Selection:
    """Live through clusters until ``enough`` of them are in time. ``found`` has at least one."""
    rows: list[Choice] = []
    late: list[Choice] = []
    best: Choice | None = None
    lived = 0
    order = _order(question, found.feasible)
    for candidate in islice(order, _MOST):
        lived += 1
        choice = live_through(question, candidate)
        if choice.lived.within(question.demand.deadline_s).value >= question.confidence:
            rows.append(choice)
        else:
            late.append(choice)
        if best is None or _likely(question, choice) > _likely(question, best):
            best = choice
        if len(rows) >= enough:
            break
    assert best is not None
    complete = len(rows) >= enough or lived == len(found.feasible)
    rows.sort(key=lambda row: (row.dollars_at(question.confidence), row.candidate.seconds))
    safe = _safe(question, found.feasible)
    return Selection(rows[:shown], best, late, lived, complete, safe)


def _safe(question: Question, candidates: list[Candidate]) -> Safe | None:
    """The cheapest of these clusters if all of it is on demand; None where none has such prices."""
    server, priced = question.server, []
    for one in candidates:
        dollars = rental.on_demand(question.prices, one.cluster, server, one.seconds)
        if dollars is not None:
            priced.append(Safe(one, dollars))
    return min(priced, key=lambda one: (one.dollars, one.candidate.seconds), default=None)


def sensitivity(question: Question, found: Search) -> Sensitivity | None:
    """What an unknown lifetime may change; None where all are known."""
    if not question.unknown_lives:
        return None
    quick = replace(question, runs=min(question.runs, _QUICK_RUNS))

    def first(mean_s: float) -> Choice | None:
        terms = replace(question.terms, guessed_lifetime=Exponential(mean_s))
        rows = select(replace(quick, terms=terms), found, enough=3, shown=1).rows
        return rows[0] if rows else None

    def there(choice: Choice | None) -> Cluster | None:
        return None if choice is None else dict(choice.candidate.cluster)

    long_s = question.demand.deadline_s * _SPAN
    before = there(first(long_s))
    short_s: float | None = None
    then: Choice | None = None
    low = question.demand.deadline_s / _SPAN
    mean_s = long_s
    while mean_s > low:  # the first change on the way down ...
        mean_s /= 4
        now = first(mean_s)
        if there(now) != before:
            short_s, then = mean_s, now
            break
    if short_s is None:
        return Sensitivity(long_s, before, None)
    high = short_s * 4
    for _ in range(_HALVINGS):  # ... and where it is
        middle = math.sqrt(short_s * high)
        now = first(middle)
        if there(now) == before:
            high = middle
        else:
            short_s, then = middle, now
    return Sensitivity(high, before, short_s, then)


def _likely(question: Question, choice: Choice) -> float:
    return choice.lived.within(question.demand.deadline_s).value


def live_through(question: Question, candidate: Candidate) -> Choice:
    """Live through the revocations of one cluster."""
    model, demand, server = question.model, question.demand, question.server
    there = candidate.cluster
    training = replace(
        rental.rent(model, demand.iterations, question.prices, there, server, question.terms),
        fallback=_fallback(question, there) if question.mixed else None,
    )
    wait, before = demand.startup_s(there), demand.meanwhile(there)
    if before:  # these train while the others start
        staff = [
            replace(
                one,
                coming=there[one.name] - before.get(one.name, 0),
                coming_s=wait,
                hired=min(before.get(one.name, 0), question.on_demand.get(one.name, 0)),
            )
            for one in training.staff
        ]
        training = replace(training, staff=staff, ready_s=0.0)
    else:
        training = replace(training, ready_s=wait)
    lived = None
    if question.runs > _FIRST_RUNS:
        few = campaign(training, question.runtime, _FIRST_RUNS, question.seed)
        if few.within(demand.deadline_s).high < question.confidence:
            lived = few
    lived = lived or campaign(training, question.runtime, question.runs, question.seed)
    on_demand = rental.on_demand(question.prices, there, server, candidate.seconds)
    return Choice(candidate, lived, on_demand, model.bottleneck(there))


def _fallback(question: Question, there: Cluster) -> Fallback:
    prices = [question.prices.offer(name).price("on-demand") for name in there]
    return Fallback(question.demand.deadline_s, prices)


def _order(question: Question, candidates: list[Candidate]) -> Iterator[Candidate]:
    """First those that are in time by the estimate, the cheapest first; then the others, those
    that miss the deadline by least first."""
    deadline_s = question.demand.deadline_s
    names = list(question.demand.quota)
    counts = np.array([[one.cluster.get(name, 0) for name in names] for one in candidates])
    speeds = np.array([_alone(question, name) for name in names])
    lives = [_filled(question, name) for name in names]
    mean = np.array([float(one.mean()) for one in lives])
    spread = np.array([float(one.var()) for one in lives])
    total = counts @ speeds
    filled = counts @ (speeds * mean) / total
    # Of places that are independent the variances add up, of those that go as one the deviations.
    alike = max(question.terms.together, question.terms.zone) ** 2
    varying = (counts * (1 - alike) + counts**2 * alike) @ (speeds**2 * spread)
    deviation = np.sqrt(varying) / total
    sure = np.maximum(filled - NormalDist().inv_cdf(question.confidence) * deviation, 1e-9)
    seconds = np.array([one.seconds for one in candidates]) / question.runtime.pace / sure
    dollars = np.array([one.dollars for one in candidates])
    # Mixed, all are in time; those that are without on-demand nodes are likely to be cheap.
    late = seconds > deadline_s * (1 + (0.0 if question.mixed else _DOUBT))
    for index in np.lexsort((np.where(late, seconds, dollars), late)):
        yield candidates[int(index)]


def _alone(question: Question, name: str) -> float:
    try:
        return question.model.rate({name: 1})
    except UsageError:  # it holds beside others only; for an order that is good enough
        return 1.0


def _filled(question: Question, name: str) -> NDArray[np.float64]:
    """For which part of the time until the deadline a place of this type has a node that trains:
    some lives of it, from node to replacement to node."""
    terms, length = question.terms, question.demand.deadline_s
    fate = terms.of(question.prices.offer(name))
    if (
        question.mixed
        or terms.availability is not None
        or fate.lifetime is None
        or isinstance(fate.lifetime, Never)
    ):
        return np.ones(1)
    wait = math.inf if fate.start_s is None else max(0.0, fate.start_s - fate.notice_s)
    rng = np.random.default_rng([question.seed, _SLOTS])
    at, filled = np.zeros(_SLOTS), np.zeros(_SLOTS)
    for _ in range(_SLOTS):  # lives, at most; shorter ones than that are no training
        life = np.minimum(fate.lifetime.sample(rng, _SLOTS), length)
        filled += np.clip(length - at, 0.0, life)
        at += life + min(wait, length)
        if at.min() >= length:
            break
    return filled / length
