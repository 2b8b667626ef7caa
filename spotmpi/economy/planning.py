"""``spotmpi plan``: which cluster to rent, what it will cost, and why not another one."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spotmpi.economy import lifetimes, prices, profiles, provision, rental
from spotmpi.economy.outcomes import Campaign, Estimate, campaign, quantile
from spotmpi.economy.prices import Prices
from spotmpi.economy.profiles import Profile
from spotmpi.economy.provision import Candidate, Demand, Search
from spotmpi.economy.quantities import (
    Cluster,
    cluster,
    count_text,
    dollars,
    duration,
    percent,
    time_text,
)
from spotmpi.economy.rental import SPOTMPI, Terms, rent
from spotmpi.errors import SpotmpiError, UsageError

__all__ = ["add_arguments", "main"]

_INFEASIBLE = 3
_MOST = 1_000_000
"""Instances of a quota."""
_SHOWN = 8
"""Clusters that are lived through and listed."""
_MORE = 64
"""More instances than this are not looked at when it is asked which quota would do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Choose the cheapest cluster of spot nodes that trains to a loss by a deadline, and say "
        "what it costs, how likely it is in time under revocations, and what was rejected. "
        "Ends with 3 if no cluster within the quota does."
    )
    parser.epilog = (
        "example: spotmpi plan --profile spotdnn --prices 2023 --loss 0.8 --deadline 1h \\\n"
        "             --quota g3.8xl:8,g3.16xl:4,g4dn.4xl:4"
    )
    add = parser.add_argument
    add("--profile", required=True, metavar="FILE", help="the training; or spotdnn, icac19")
    add("--prices", required=True, metavar="FILE", help="YAML or CSV; or 2023, icac19")
    add("--quota", required=True, metavar="TYPE:N,...", help="how many one may have of each type")
    add("--deadline", required=True, metavar="D", help="as 2h or 1h30min")
    add("--loss", type=float, metavar="L", help="train to this loss")
    add("--iterations", type=float, metavar="J", help="train for so many iterations of a worker")
    add("--lifetime", metavar="L", help="of every worker, as in `spotmpi simulate cluster`")
    add("--replacement", metavar="D", help="until another node trains; or never (price list)")
    add("--runs", type=int, default=1000, metavar="R", help="simulated for each; default: 1000")
    add("--seed", type=int, default=0, metavar="S", help="default: 0")
    add("--include-ps", action="store_true", help="count the parameter server's price")
    add("--exhaustive", action="store_true", help="look at all clusters, however many there are")
    add("--existing", metavar="TYPE:N,...", help="what runs already, after a revocation; is kept")
    add("--done", type=float, default=0.0, metavar="J", help="iterations that are done already")
    add("--json", action="store_true", help="all figures, as JSON")


@dataclass(frozen=True)
class _Task:
    """What was asked for."""

    profile: Profile
    prices: Prices
    work: str
    loss: float | None
    demand: Demand
    include_server: bool
    terms: Terms
    runs: int
    seed: int


@dataclass(frozen=True)
class _Row:
    """One cluster of the answer."""

    candidate: Candidate
    lived: Campaign
    on_demand: float | None
    bottleneck: str

    def middle(self) -> float:
        """The median cost; infinite if not even half of the runs end."""
        found = _below(self.lived, self.lived.dollars, 0.5)
        return math.inf if found is None else found.value


def _below(lived: Campaign, sample: NDArray[np.float64], part: float) -> Estimate | None:
    """What this part of all runs stayed below, of a figure of those that ended; None: so many did
    not end."""
    runs = len(lived.outcomes)
    if part * (runs - 1) > len(sample) - 1:
        return None
    return quantile(np.concatenate([sample, np.full(runs - len(sample), math.inf)]), part)


class _NoPlan(SpotmpiError):
    """No cluster does what is asked for."""


def main(options: argparse.Namespace) -> int:
    """Search, simulate, print. Blocking, seconds; 3 if there is no plan."""
    task = _task(options)
    least, most = provision.bounds(task.profile.model, task.demand, task.loss)
    model = task.profile.model
    found = provision.search(model, task.demand, least, most, exhaustive=options.exhaustive)
    try:
        if not found.feasible:
            raise _NoPlan(_binding(task, found))
        if not all(candidate.iterations for candidate in found.feasible):
            raise UsageError(
                f"--done {options.done:g}: no iteration is left to do; there is nothing to plan"
            )
        rows = _live_through(task, found)
    except _NoPlan as problem:
        if options.json:
            print(json.dumps({"feasible": False, "reason": str(problem)}, indent=2))
        print(f"spotmpi plan: {problem}", file=sys.stderr)
        return _INFEASIBLE
    if options.json:
        print(json.dumps(_json(task, found, rows), indent=2))
    else:
        parts = (_opening(task, found), _table(task, rows), _rejected(task, found, rows))
        print("\n\n".join("\n".join(part) for part in parts))
    return 0


def _task(options: argparse.Namespace) -> _Task:
    for name, least in (("runs", 1), ("seed", 0), ("done", 0)):
        if not getattr(options, name) >= least:
            raise UsageError(f"--{name} is {getattr(options, name)}, expected at least {least}")
    if (instances := sum(cluster(options.quota, "--quota").values())) > _MOST:
        raise UsageError(f"--quota has {instances:,} instances, expected at most {_MOST:,}")
    deadline = duration(options.deadline, "--deadline")
    if deadline <= 0:
        raise UsageError("--deadline is 0, expected more")
    quota = cluster(options.quota, "--quota")
    existing = {} if options.existing is None else cluster(options.existing, "--existing")
    profile = profiles.find(options.profile)
    if unknown := [name for name in (*quota, *existing) if name not in profile.model.types]:
        raise UsageError(
            f"the profile of {profile.model.name} does not know instance type {unknown[0]!r}; "
            f"it knows {', '.join(profile.model.types)}"
        )
    list_ = prices.find(options.prices)
    iterations, work = profiles.work(profile, options.loss, options.iterations)
    if options.include_ps and profile.server is None:
        raise UsageError(f"--include-ps: {profile.model.name} needs no parameter server")
    server = profile.server if options.include_ps else None
    replacement_s = rental.replacement(options.replacement)
    starts = [
        start
        for name in quota
        if quota[name] > existing.get(name, 0)
        and (start := _start(list_, name, replacement_s)) is not None
    ]
    demand = Demand(
        iterations=iterations,
        deadline_s=deadline,
        quota=quota,
        dollars_per_hour={name: list_.offer(name).price("spot") for name in quota},
        fixed_dollars_per_hour=0.0
        if server is None
        else server.count * list_.offer(server.instance).price("on-demand"),
        existing=existing,
        done=options.done,
        overhead_s=max(starts, default=0.0) if existing else 0.0,
        pace=SPOTMPI.pace,
        billing=list_.billing,
    )
    terms = Terms(
        lifetime=None
        if options.lifetime is None
        else lifetimes.parse(options.lifetime, "--lifetime"),
        replacement_s=replacement_s,
    )
    return _Task(
        profile=profile,
        prices=list_,
        work=work,
        loss=options.loss,
        demand=demand,
        include_server=options.include_ps,
        terms=terms,
        runs=options.runs,
        seed=options.seed,
    )


def _live_through(task: _Task, found: Search) -> list[_Row]:
    rows = [_row(task, candidate) for candidate in found.feasible[:_SHOWN]]
    # Those that are more likely late than not come last, however cheap they are.
    return sorted(
        rows, key=lambda row: (row.lived.within(task.demand.deadline_s).value < 0.5, row.middle())
    )


def _row(task: _Task, candidate: Candidate) -> _Row:
    """Live through the revocations of one cluster."""
    server = task.profile.server if task.include_server else None
    left = candidate.iterations / task.demand.iterations(candidate.cluster)

    def iterations(there: Cluster) -> float:
        return task.demand.iterations(there) * left

    plan = rent(task.profile.model, iterations, task.prices, candidate.cluster, server, task.terms)
    late = 0.0 if candidate.cluster == task.demand.existing else task.demand.overhead_s
    lived = campaign(replace(plan, ready_s=late), SPOTMPI, task.runs, task.seed)
    hourly = task.demand.fixed_dollars_per_hour
    try:
        for name, count in candidate.cluster.items():
            hourly += count * task.prices.offer(name).price("on-demand")
        on_demand = prices.cost(candidate.seconds, hourly, task.prices.billing)
    except UsageError:  # the list has no price for it
        on_demand = None
    return _Row(candidate, lived, on_demand, task.profile.model.bottleneck(candidate.cluster))


# What is said.


def _opening(task: _Task, found: Search) -> list[str]:
    demand, model = task.demand, task.profile.model
    lines = [
        (
            f"{model.name}, {task.work}, within {time_text(demand.deadline_s)}, of "
            f"{count_text(demand.quota)}"
        ),
        f"prices of {task.prices.as_of}: {task.prices.source}",
    ]
    if demand.existing:
        soon = (
            f"new ones train after {time_text(demand.overhead_s)}"
            if demand.overhead_s
            else "new ones are taken to train at once, as nobody knows how soon (--replacement)"
        )
        if dict(demand.quota) == dict(demand.existing):
            soon = "the quota has no more"
        lines.append(
            f"{count_text(demand.existing)} run already and are kept, {demand.done:g} iterations "
            f"are done, {soon}"
        )
    if not task.include_server and task.profile.server is not None:
        lines.append("without the parameter server's price (--include-ps counts it)")
    lines.append(
        f"times and costs below are +- {percent(model.error)}, the profile's error, beside chance"
        if model.error is not None
        else "the profile does not say how far off its predicted times and costs may be"
    )
    lines += rental.fates(task.prices, demand.quota, task.terms)
    how = f"all {found.searched:,}" if found.everything else f"{found.searched:,} windows of"
    runs = f"{task.runs} runs" if task.runs > 1 else "1 run"
    lines.append(f"searched {how} clusters; {runs} of each below")
    return lines


def _table(task: _Task, rows: list[_Row]) -> list[str]:
    error = task.profile.model.error
    heads = ["", "cluster", "undisturbed", "time p50", "p95", "cost p50", "p95", "in time"]
    slower = [] if error is None else [f"if {percent(error)} slower"]
    table = [[*heads, *slower, "on demand", "bottleneck"]]
    for number, row in enumerate(rows, 1):
        within = row.lived.within(task.demand.deadline_s)
        below = [_below(row.lived, row.lived.seconds, part) for part in (0.5, 0.95)]
        paid = [_below(row.lived, row.lived.dollars, part) for part in (0.5, 0.95)]
        seconds = ["never" if one is None else time_text(one.value) for one in below]
        costs = ["never" if one is None else dollars(one.value) for one in paid]
        table.append(
            [
                str(number),
                count_text(row.candidate.cluster),
                f"{time_text(row.candidate.seconds)} {dollars(row.candidate.dollars)}",
                *seconds,
                *costs,
                f"{percent(within.value)} ({100 * within.low:.0f}..{percent(within.high)})",
                *([] if error is None else [_if_slower(row, task, error)]),
                "-" if row.on_demand is None else dollars(row.on_demand),
                row.bottleneck,
            ]
        )
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def _if_slower(row: _Row, task: _Task, error: float) -> str:
    """The part of the runs in time if the model is too fast by its error."""
    return percent(row.lived.within(task.demand.deadline_s / (1 + error)).value)


def _rejected(task: _Task, found: Search, rows: list[_Row]) -> list[str]:
    """Why not another one: what each type does alone, and how many clusters were not right."""
    lines = ["rejected:"]
    best = rows[0]
    shown = [dict(row.candidate.cluster) for row in rows]
    for name in task.demand.quota:
        alone = found.alone.get(name)
        if alone is None and not task.demand.existing:
            why = "the model does not hold for it" if found.everything else "was not searched"
            lines.append(f"  {name} alone: {why}")
        elif alone is not None and dict(alone.cluster) not in shown:
            lines.append(f"  {count_text(alone.cluster)}: {_why(task, alone, best.candidate)}")
    listed = len(rows)
    feasible = found.searched - found.late - found.outside
    lines.append(f"  {feasible - listed:,} more are in time and dearer than those listed")
    lines.append(f"  {found.late:,} are too slow")
    if found.outside:
        lines.append(f"  {found.outside:,} are outside of what the model holds for")
    return lines


def _why(task: _Task, candidate: Candidate, best: Candidate) -> str:
    over = candidate.seconds - task.demand.deadline_s
    if over > 0:
        return (
            f"takes {time_text(candidate.seconds)}, {time_text(over)} "
            f"({percent(over / task.demand.deadline_s)}) too long, and is the fastest of its kind"
        )
    more = candidate.dollars - best.dollars
    return f"costs {dollars(candidate.dollars)}, {dollars(more)} more than the first"


def _binding(task: _Task, found: Search) -> str:
    """Which constraint binds, and by how much."""
    fastest, demand = found.fastest, task.demand
    if fastest is None:
        return (
            f"no plan: the model of {task.profile.model.name} holds for no cluster within the "
            f"quota {count_text(demand.quota)}; its range of batches is exceeded"
        )
    over = fastest.seconds - demand.deadline_s
    looked = "within the quota" if found.everything else "of those windows that were searched"
    said = (
        f"no plan: the fastest cluster {looked}, {count_text(fastest.cluster)}, takes "
        f"{time_text(fastest.seconds)}, {time_text(over)} "
        f"({percent(over / demand.deadline_s)}) more than the deadline of "
        f"{time_text(demand.deadline_s)}"
    )
    more = _more_that_do(task, fastest)
    if more is None:
        said += f"; the deadline binds: {_MORE} more of any one type beside it would not do"
    else:
        name, wanted = more
        lacking = wanted[name] - demand.quota[name]
        if lacking > 0:
            said += (
                f"; the quota binds: with {lacking} more {name} ({count_text(wanted)}) it would be "
                "in time"
            )
        else:
            said += f"; but {count_text(wanted)} would be in time; say --exhaustive"
    loss = _loss_in_time(task, fastest)
    if loss is not None:
        said += f"; by the deadline {count_text(fastest.cluster)} comes to a loss of {_up(loss)}"
    return said


def _more_that_do(task: _Task, fastest: Candidate) -> tuple[str, Cluster] | None:
    """The fewest more instances of one type that would be in time: the type, and all there are."""
    demand = task.demand
    late = {name: max(demand.overhead_s, _late(task, name)) for name in demand.quota}
    for more in range(1, _MORE + 1):
        for name in demand.quota:
            cluster_ = dict(fastest.cluster)
            cluster_[name] = cluster_.get(name, 0) + more
            try:
                candidate = provision.predict(
                    task.profile.model, replace(demand, overhead_s=late[name]), cluster_
                )
            except UsageError:
                continue
            if candidate.seconds <= demand.deadline_s:
                return name, cluster_
    return None


def _late(task: _Task, name: str) -> float:
    """Seconds until another one of a type trains, if others train already; 0: nobody knows."""
    if not task.demand.existing:
        return 0.0
    start = _start(task.prices, name, task.terms.replacement_s)
    return 0.0 if start is None else start


def _start(list_: Prices, name: str, replacement_s: float | None) -> float | None:
    """Seconds until another one of a type trains; None if nobody knows, or none comes."""
    start = list_.offer(name).start_s if replacement_s is None else replacement_s
    return start if start is not None and math.isfinite(start) else None


def _up(loss: float) -> str:
    """A loss in three digits, rounded up: what is said must be reached."""
    unit = 10.0 ** (math.floor(math.log10(loss)) - 2)
    return f"{math.ceil(loss / unit) * unit:.3g}"


def _loss_in_time(task: _Task, fastest: Candidate) -> float | None:
    """What the fastest cluster comes to by the deadline, by bisection."""
    if task.loss is None:
        return None
    model, cluster_ = task.profile.model, fastest.cluster
    late = 0.0 if dict(cluster_) == dict(task.demand.existing) else task.demand.overhead_s
    spare = task.demand.deadline_s - late
    able = spare * model.rate(cluster_) * task.demand.pace + task.demand.done
    low, high = task.loss, 1e6
    if able <= 0 or model.iterations(cluster_, high) > able:
        return None
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if model.iterations(cluster_, middle) <= able else (middle, high)
    return high


def _json(task: _Task, found: Search, rows: list[_Row]) -> dict[str, Any]:
    def plain(figure: Any) -> dict[str, float | None]:
        return {key: value if math.isfinite(value) else None for key, value in vars(figure).items()}

    def sums(lived: Campaign, sample: Any) -> dict[str, Any]:
        found = {name: _below(lived, sample, part) for name, part in (("p50", 0.5), ("p95", 0.95))}
        return {name: None if one is None else plain(one) for name, one in found.items()}

    return {
        "feasible": True,
        "training": task.profile.model.name,
        "work": task.work,
        "model_error": task.profile.model.error,
        "prices": {"as_of": task.prices.as_of, "source": task.prices.source},
        "deadline_s": task.demand.deadline_s,
        "searched": {
            "clusters": found.searched,
            "all": found.everything,
            "too_slow": found.late,
            "outside_the_model": found.outside,
        },
        "runs": task.runs,
        "seed": task.seed,
        "plans": [
            {
                "cluster": dict(row.candidate.cluster),
                "undisturbed": {
                    "iterations": row.candidate.iterations,
                    "seconds": row.candidate.seconds,
                    "dollars": row.candidate.dollars,
                },
                "seconds": sums(row.lived, row.lived.seconds),
                "dollars": sums(row.lived, row.lived.dollars),
                "in_time": plain(row.lived.within(task.demand.deadline_s)),
                "in_time_if_slower_by_the_error": None
                if task.profile.model.error is None
                else plain(
                    row.lived.within(task.demand.deadline_s / (1 + task.profile.model.error))
                ),
                "on_demand_dollars": row.on_demand,
                "bottleneck": row.bottleneck,
            }
            for row in rows
        ],
        "rejected": [
            {
                "cluster": dict(alone.cluster),
                "seconds": alone.seconds,
                "dollars": alone.dollars,
                "why": _why(task, alone, rows[0].candidate),
            }
            for alone in found.alone.values()
            if dict(alone.cluster) not in [dict(row.candidate.cluster) for row in rows]
        ],
    }
