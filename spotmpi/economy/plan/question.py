"""What ``spotmpi plan`` is asked, understood: files read, and nothing in it impossible."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import dataclass

from spotmpi.economy.market import lifetimes, prices
from spotmpi.economy.market.prices import Prices
from spotmpi.economy.models import Model, Server, profiles
from spotmpi.economy.plan import rental
from spotmpi.economy.plan.provision import Demand
from spotmpi.economy.plan.rental import Terms
from spotmpi.economy.quantities import Cluster, cluster, duration
from spotmpi.errors import UsageError
from spotmpi.options import at_least

__all__ = ["Question", "understood"]

_MOST = 1_000_000
"""Instances of a quota."""


@dataclass(frozen=True)
class Question:
    """A training, what may be rented for it, and on which terms."""

    model: Model
    prices: Prices
    work: str
    """What is to be done, in words."""
    loss: float | None
    demand: Demand
    server: Server | None
    """Whose price is to be counted."""
    terms: Terms
    runs: int
    seed: int

    def late_s(self, name: str) -> float:
        """Seconds until one more of a type trains beside those that do; 0: nobody knows."""
        return _start(self.prices, [name], self.terms) if self.demand.existing else 0.0


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
    terms = Terms(
        lifetime=None
        if options.lifetime is None
        else lifetimes.parse(options.lifetime, "--lifetime"),
        replacement_s=rental.replacement(options.replacement),
    )
    model = profiles.find(options.profile)
    if unknown := [name for name in (*quota, *existing) if name not in model.types]:
        raise UsageError(
            f"the profile of {model.name} does not know instance type {unknown[0]!r}; "
            f"it knows {', '.join(model.types)}"
        )
    list_ = prices.find(options.prices)
    iterations, work = profiles.work(model, options.loss, options.iterations)
    if options.include_ps and model.server is None:
        raise UsageError(f"--include-ps: {model.name} needs no parameter server")
    server = model.server if options.include_ps else None
    demand = Demand(
        iterations=iterations,
        deadline_s=deadline,
        quota=quota,
        dollars_per_hour={name: list_.offer(name).price("spot") for name in quota},
        fixed_dollars_per_hour=rental.hourly(list_, {}, "on-demand", server),
        existing=existing,
        done=options.done,
        overhead_s=_start(list_, _lacking(quota, existing), terms) if existing else 0.0,
        pace=rental.spotmpi().pace,
        billing=list_.billing,
    )
    return Question(
        model=model,
        prices=list_,
        work=work,
        loss=options.loss,
        demand=demand,
        server=server,
        terms=terms,
        runs=options.runs,
        seed=options.seed,
    )


def _lacking(quota: Cluster, existing: Cluster) -> list[str]:
    """The types of which one may have more than there are."""
    return [name for name in quota if quota[name] > existing.get(name, 0)]


def _start(list_: Prices, names: Iterable[str], terms: Terms) -> float:
    """Seconds until another one of the slowest of these types trains; those of which nobody knows,
    or that never come, left out."""
    starts = [terms.of(list_.offer(name)).start_s for name in names]
    known = [start for start in starts if start is not None and math.isfinite(start)]
    return max(known, default=0.0)
