"""Which clusters are in time whatever is revoked, and which of them is the cheapest.

Of the clusters that are fast enough undisturbed, each is lived through many times. There may be
100,000 of them, so they are taken in an order that an estimate gives (`_order`): first those that
the estimate holds for in time, the cheapest first. The estimate decides who is looked at, never
who is in time: that the simulated runs say. Blocking, seconds; no files.

A profile states by how much its predictions were off. A cluster that is late if everything takes so
much longer is no choice, however cheap it is: those that are in time then come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from spotmpi.economy.market.lifetimes import Exponential, Never
from spotmpi.economy.plan import rental
from spotmpi.economy.plan.events import Fallback, Training
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
_RISKY = 3
"""Cheaper clusters that are listed beside; they are late if the profile is off by its error."""
_RISKY_TRIED = 24
"""Clusters that are lived through at most to find these."""
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


@dataclass(frozen=True, eq=False)
class Choice:
    """One cluster. It is lived through when somebody asks how that went."""

    question: Question
    candidate: Candidate
    training: Training

    @cached_property
    def lived(self) -> Campaign:
        """What becomes of it, as far as the profile is right."""
        return _runs(self.question, self.training)

    @cached_property
    def slower(self) -> Campaign:
        """The same if training takes longer by the profile's error, where that is known."""
        if not (error := self.question.model.error):
            return self.lived
        speed = self.training.speed
        longer = replace(self.training, speed=lambda counts: speed(counts) / (1 + error))
        return _runs(self.question, longer)

    @property
    def in_time(self) -> bool:
        """So often as is asked for."""
        return self._often(self.lived)

    @property
    def guarded(self) -> bool:
        """In time so often also if training takes longer by the profile's error."""
        return self._often(self.slower) and self.in_time

    @property
    def is_risky(self) -> bool:
        """In time only if the profile is right."""
        return self.in_time and not self.guarded

    @property
    def on_demand(self) -> float | None:
        """Dollars of the same, undisturbed; None: it has no such price."""
        asked, one = self.question, self.candidate
        return rental.on_demand(asked.prices, one.cluster, asked.server, one.seconds)

    @property
    def bottleneck(self) -> str:
        """As the model has it."""
        return self.question.model.bottleneck(self.candidate.cluster)

    @property
    def price(self) -> tuple[float, float]:
        """By which the cheapest is found; of those that cost the same, the fastest."""
        return self.dollars_at(self.question.confidence), self.candidate.seconds

    def dollars_at(self, confidence: float) -> float:
        """What this part of the runs cost at most; infinite if so many do not end."""
        found = self.lived.dollars_below(confidence)
        return math.inf if found is None else found.value

    def _often(self, runs: Campaign) -> bool:
        asked = self.question
        return runs.within(asked.demand.deadline_s).value >= asked.confidence


@dataclass(frozen=True)
class Safe:
    """A cluster on demand: nothing of it is revoked, and it needs no checkpoint."""

    candidate: Candidate
    dollars: float


@dataclass(frozen=True)
class Selection:
    """What was chosen."""

    rows: list[Choice]
    """In time with the confidence that is asked for. If they are ``guarded`` the cheapest at that
    confidence comes first, and else the one that is in time most often if everything takes longer
    by the profile's error."""
    guarded: bool
    """The rows are in time so often also if everything takes longer by that error, or nobody knows
    it."""
    cheaper: list[Choice]
    """If they are, some that are cheaper than the first, and in time only if the profile is right;
    the cheapest first."""
    best: Choice
    """The first row, or the most likely one to be in time."""
    tried: list[Choice]
    """Those that were lived through, the rows among them."""
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
    question: Question,
    found: Search,
    *,
    enough: int = _ENOUGH,
    shown: int = _SHOWN,
    risky: int = _RISKY,
) -> Selection:
    """Live through clusters until ``enough`` of them are in time, also if everything takes longer
    by the profile's error. ``found`` has at least one. Up to ``risky`` cheaper ones are sought
    that are in time only if the profile is right."""
    tried: list[Choice] = []
    rows: list[Choice] = []
    for candidate, late in islice(_order(question, found.feasible, slower=True), _MOST):
        if len(rows) >= enough or (late and _are_in_time(tried, enough)):
            break
        tried.append(live_through(question, candidate))
        if tried[-1].guarded:
            rows.append(tried[-1])
    looked = _cheaper(question, found.feasible, rows, tried, risky)
    tried += [one for one in looked if one not in tried]
    rows = sorted((one for one in tried if one.guarded), key=lambda one: one.price)
    guarded, cheaper = bool(rows), list[Choice]()
    if guarded:
        cheaper = [one for one in looked if one.is_risky and one.price < rows[0].price]
        cheaper.sort(key=lambda one: one.price)
        best, complete = rows[0], True
    else:
        deadline_s = question.demand.deadline_s
        rows = [one for one in tried if one.in_time]
        rows.sort(key=lambda one: (-one.slower.within(deadline_s).value, one.price))
        best = max(tried, key=lambda one: one.lived.within(deadline_s).value)
        complete = len(rows) >= enough or len(tried) == len(found.feasible)
    safe = _safe(question, found.feasible)
    return Selection(rows[:shown], guarded, cheaper, best, tried, complete, safe)


def _are_in_time(tried: list[Choice], number: int) -> bool:
    """Whether so many are, if the profile is right. No more are lived through than tell."""
    return sum(1 for _ in islice((one for one in tried if one.in_time), number)) >= number


def _cheaper(
    question: Question,
    candidates: list[Candidate],
    rows: list[Choice],
    tried: list[Choice],
    most: int,
) -> list[Choice]:
    """Those that are cheaper than all of the rows if nothing is revoked, the cheapest first, until
    so many of them are in time if the profile is right. Nothing where there are no rows."""
    known = {id(one.candidate): one for one in tried}
    least = min((row.candidate.dollars for row in rows), default=0.0)
    looked: list[Choice] = []
    for candidate, late in _order(question, candidates, slower=False):
        enough = sum(one.is_risky for one in looked) >= most or len(looked) >= _RISKY_TRIED
        if enough or late or candidate.dollars >= least:
            break
        looked.append(known.get(id(candidate)) or live_through(question, candidate))
    return looked


def _safe(question: Question, candidates: list[Candidate]) -> Safe | None:
    """The cheapest of these clusters if all of it is on demand, of those that are in time also if
    everything takes longer by the profile's error; the fastest if none is. None where none has such
    prices."""
    server, deadline_s, priced = question.server, question.demand.deadline_s, []
    for one in candidates:
        dollars = rental.on_demand(question.prices, one.cluster, server, one.seconds)
        if dollars is not None:
            priced.append(Safe(one, dollars))
    guarded = [one for one in priced if question.slower_s(one.candidate) <= deadline_s]
    if not guarded:
        return min(priced, key=lambda one: (one.candidate.seconds, one.dollars), default=None)
    return min(guarded, key=lambda one: (one.dollars, one.candidate.seconds))


def sensitivity(question: Question, found: Search) -> Sensitivity | None:
    """What an unknown lifetime may change; None where all are known."""
    if not question.unknown_lives:
        return None
    quick = replace(question, runs=min(question.runs, _QUICK_RUNS))

    def first(mean_s: float) -> Choice | None:
        terms = replace(question.terms, guessed_lifetime=Exponential(mean_s))
        rows = select(replace(quick, terms=terms), found, enough=3, shown=1, risky=0).rows
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


def live_through(question: Question, candidate: Candidate) -> Choice:
    """One cluster, with what is to be lived through."""
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
    return Choice(question, candidate, training)


def _runs(question: Question, training: Training) -> Campaign:
    """So many as are asked for, or some where these are surely late too often."""
    if question.runs > _FIRST_RUNS:
        few = campaign(training, question.runtime, _FIRST_RUNS, question.seed)
        if few.within(question.demand.deadline_s).high < question.confidence:
            return few
    return campaign(training, question.runtime, question.runs, question.seed)


def _fallback(question: Question, there: Cluster) -> Fallback:
    prices = [question.prices.offer(name).price("on-demand") for name in there]
    return Fallback(question.demand.deadline_s, prices)


def _order(
    question: Question, candidates: list[Candidate], *, slower: bool
) -> Iterator[tuple[Candidate, bool]]:
    """First those that are in time by the estimate, the cheapest first; then the others, which are
    late, those that miss the deadline by least first. ``slower``: if training takes longer by the
    profile's error."""
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
    alone = [question.slower_s(one) if slower else one.seconds for one in candidates]
    seconds = np.array(alone) / question.runtime.pace / sure
    dollars = np.array([one.dollars for one in candidates])
    # Mixed, all are in time; those that are without on-demand nodes are likely to be cheap.
    late = seconds > deadline_s * (1 + (0.0 if question.mixed else _DOUBT))
    for index in np.lexsort((np.where(late, seconds, dollars), late)):
        yield candidates[int(index)], bool(late[index])


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
