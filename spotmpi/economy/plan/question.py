"""What ``spotmpi plan`` is asked, understood: files read, and nothing in it impossible."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from spotmpi.economy.market import prices
from spotmpi.economy.market.prices import Prices
from spotmpi.economy.models import Model, Server, profiles, unknown_type
from spotmpi.economy.plan import conditions, rental
from spotmpi.economy.plan.events import Runtime
from spotmpi.economy.plan.provision import Candidate, Demand
from spotmpi.economy.plan.rental import Terms
from spotmpi.economy.quantities import Cluster, cluster, duration
from spotmpi.errors import UsageError
from spotmpi.options import at_least

__all__ = ["Question", "startup", "understood"]

_MOST = 1_000_000
"""Instances of a quota."""


@dataclass(frozen=True)
class Progress:
    """What is done already. An iteration is worth less to the loss on a larger cluster, so work is
    carried from one cluster to another by the loss that it has reached."""

    text: str = ""
    """In words; empty: nothing is done."""
    iterations: Callable[[Cluster], float] = lambda _: 0.0
    """How many iterations of a cluster it is worth."""

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True)
class Question:
    """A training, what may be rented for it, and on which terms."""

    model: Model
    prices: Prices
    work: str
    """What is to be done, in words."""
    loss: float | None
    behind: Progress
    demand: Demand
    server: Server | None
    """Whose price is to be counted."""
    terms: Terms
    runtime: Runtime
    mixed: bool
    """Whether on-demand nodes take the place of spot nodes where the deadline needs them."""
    confidence: float
    """The part of the simulated runs that must be in time."""
    runs: int
    seed: int
    on_demand: Cluster = field(default_factory=dict)
    """What trains already and is on demand."""

    def slower_s(self, candidate: Candidate) -> float:
        """Seconds of a cluster, undisturbed, if training takes longer by the profile's error, as
        far as that is known. A node's start does not."""
        start_s = min(self.demand.startup_s(candidate.cluster), candidate.seconds)
        return start_s + (candidate.seconds - start_s) * (1 + (self.model.error or 0.0))

    @property
    def unknown_lives(self) -> list[str]:
        """The types of the quota whose lifetime nobody knows."""
        if self.terms.availability is not None:
            return []
        offers = [self.prices.offer(name) for name in self.demand.quota]
        return [offer.name for offer in offers if self.terms.of(offer).lifetime is None]


def understood(options: argparse.Namespace) -> Question:
    """The question that a command line is. Reads files, blocking; UsageError says what is wrong."""
    at_least(options, runs=1, seed=0, done=0)
    quota = cluster(options.quota, "--quota")
    if (instances := sum(quota.values())) > _MOST:
        raise UsageError(f"--quota has {instances:,} instances, expected at most {_MOST:,}")
    deadline = duration(options.deadline, "--deadline")
    if deadline <= 0:
        raise UsageError("--deadline is 0, expected more")
    existing = {} if options.existing is None else cluster(options.existing, "--existing")
    terms = conditions.terms(options, quota, "--quota")
    model = profiles.find(options.profile)
    if unknown := [name for name in (*quota, *existing) if name not in model.types]:
        raise unknown_type(model.name, unknown[0], model.types)
    list_ = conditions.offered(options, prices.find(options.prices), quota)
    whole, work = profiles.work(model, options.loss, options.iterations)
    behind = _behind(options, model, existing)
    if options.include_ps and model.server is None:
        raise UsageError(f"--include-ps: {model.name} needs no parameter server")
    server = model.server if options.include_ps else None
    demand = Demand(
        iterations=lambda there: max(0.0, whole(there) - behind.iterations(there)),
        deadline_s=deadline,
        quota=quota,
        dollars_per_hour={name: list_.offer(name).price("spot") for name in quota},
        fixed_dollars_per_hour=rental.hourly(list_, {}, "on-demand", server),
        existing=existing,
        startup_s=startup(list_, existing, terms),
        billing=list_.billing,
    )
    return Question(
        model=model,
        prices=list_,
        work=work,
        loss=options.loss,
        behind=behind,
        demand=demand,
        server=server,
        terms=terms,
        runtime=conditions.runtimes(options).spotmpi,
        mixed=options.policy == "mixed",
        confidence=_part(options.confidence, "--confidence"),
        runs=options.runs,
        seed=options.seed,
    )


def _behind(options: argparse.Namespace, model: Model, existing: Cluster) -> Progress:
    """What --from-loss, or --done and --done-on, say. UsageError where that is not one answer."""
    reached, done = options.from_loss, options.done
    if reached is not None:
        if done or options.done_on is not None:
            raise UsageError("--from-loss and --done both say what is done; leave one out")
        if options.loss is None:
            raise UsageError("--from-loss needs --loss, the loss to train to")
    elif not done:
        if options.done_on is not None:
            raise UsageError("--done-on says where --done iterations were done; say --done J too")
        return Progress()
    elif options.loss is None:
        if options.done_on is not None:
            raise UsageError("--done-on matters only to --loss; leave it out")
        return Progress(f"{done:g} iterations are done", lambda _: float(done))
    else:
        there = existing if options.done_on is None else cluster(options.done_on, "--done-on")
        if not there:
            raise UsageError(
                f"--done {done:g}: what iterations are worth to the loss depends on the cluster; "
                "say --done-on TYPE:N,..., or the loss that is reached: --from-loss"
            )
        reached = model.loss_after(there, done)
    if not math.isfinite(reached):
        raise UsageError(f"--from-loss is {reached:g}, expected a number")
    if reached <= options.loss:
        raise UsageError(
            f"a loss of {reached:.3g} is reached already, and --loss is {options.loss:g}: no "
            "iteration is left to do, there is nothing to plan"
        )
    return Progress(
        f"a loss of {reached:.3g} is reached", lambda there: model.iterations(there, reached)
    )


def _part(text: str, what: str) -> float:
    """A part of one, from ``95 %``, ``95`` or ``0.95``. UsageError unless it is within (0, 1)."""
    try:
        number = float(text.rstrip("% "))
    except ValueError:
        number = math.nan
    part = number / 100 if number >= 1 or text.endswith("%") else number
    if not 0 < part < 1:
        raise UsageError(f"{what} is {text!r}, expected a part of all runs, as 95 or 99.5")
    return part


def startup(list_: Prices, existing: Cluster, terms: Terms) -> Callable[[Cluster], float]:
    """How long a cluster waits for its nodes, or for those that it has beyond the ``existing``."""

    def seconds(there: Cluster) -> float:
        new = [name for name, count in there.items() if count > existing.get(name, 0)]
        if not existing:
            return rental.boot_s(list_, new, terms)
        starts = [terms.of(list_.offer(name)).start_s for name in new]
        known = [start for start in starts if start is not None and math.isfinite(start)]
        return max(known, default=0.0)

    return seconds
