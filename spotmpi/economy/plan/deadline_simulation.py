"""``spotmpi simulate deadline``: what it costs to be in time, whatever happens to spot nodes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spotmpi.economy.market import availability, prices
from spotmpi.economy.market.availability import Availability
from spotmpi.economy.plan import deadlines
from spotmpi.economy.plan.deadlines import POLICIES, Job
from spotmpi.economy.plan.screen import columns
from spotmpi.economy.quantities import cluster, dollars, duration, percent, time_text
from spotmpi.errors import UsageError
from spotmpi.options import at_least

__all__ = ["add_arguments", "main"]

_LATE_S = 1e-3
_MOST = 1000
"""Nodes: each is looked at whenever one comes or goes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Replay a training with a deadline over recorded availability of spot nodes. Compared are "
        "on-demand nodes only; greedy (spot, and on demand only when nothing else is in time); "
        "uniform progress (on demand as soon as spot falls behind an even pace); and what somebody "
        "who knows the trace would pay at least. Several changeovers show what a fast one is worth."
    )
    parser.epilog = (
        "traces: files as of `spotmpi simulate cluster --trace`, or p3, which is shipped\n\n"
        "example: spotmpi simulate deadline --cluster p3.2xl:16 --trace p3 --work 6h --deadline 8h"
    )
    add = parser.add_argument
    add("--cluster", required=True, metavar="TYPE:N", help="equal nodes, as p3.2xl:16")
    add(
        "--trace",
        required=True,
        nargs="+",
        metavar="FILE",
        help="recordings of how many spot nodes there were, or p3",
    )
    add("--work", required=True, metavar="D", help="the training takes so long on all nodes")
    add("--deadline", required=True, metavar="D", help="how long it may take, as 52h")
    add(
        "--changeover",
        default="12min,36s",
        metavar="D,...",
        help="a node that is started trains, and is paid before, after so long (12min,36s)",
    )
    add("--prices", default="2023", metavar="FILE", help="prices: YAML, CSV, or 2023, icac19")
    add("--runs", type=int, default=200, metavar="R", help="starts in each trace (200)")
    add("--seed", type=int, default=0, metavar="S", help="seed of when they start (0)")
    add("--json", action="store_true", help="print all figures as JSON")


@dataclass(frozen=True)
class _Row:
    """What a policy came to with one changeover."""

    changeover_s: float
    policy: str
    dollars: float
    """A run, on average."""
    of_on_demand: float
    late: float
    """Part of the runs; of what nobody has done nothing is late."""
    on_demand: float
    """Part of the node time."""
    starts: float


def main(options: argparse.Namespace) -> int:
    """Replay, print. Blocking, seconds."""
    at_least(options, runs=1, seed=0)
    wanted = cluster(options.cluster, "--cluster")
    if len(wanted) > 1:
        raise UsageError(f"--cluster has {len(wanted)} types, and a trace is of one; name one")
    ((name, nodes),) = wanted.items()
    if nodes > _MOST:
        raise UsageError(f"--cluster has {nodes:,} nodes, expected at most {_MOST:,}")
    list_ = prices.find(options.prices)
    offer = list_.offer(name)
    changeovers = [duration(one, "--changeover") for one in options.changeover.split(",")]
    work_s, deadline_s = duration(options.work, "--work"), duration(options.deadline, "--deadline")
    if work_s <= 0:
        raise UsageError("--work is 0, expected more")
    hourly = offer.price("spot"), offer.price("on-demand")
    jobs = [
        Job(nodes, work_s, deadline_s, changeover, *hourly, list_.billing)
        for changeover in changeovers
    ]
    traces = {name: availability.find(name) for name in options.trace}
    rows = [row for job in jobs for row in _rows(job, traces, options.runs, options.seed)]
    if options.json:
        print(json.dumps(_json(options, rows), indent=2))
        return 0
    runs = len(traces) * options.runs
    age = list_.age
    lines = [
        (
            f"{time_text(jobs[0].work_s)} of work on {name}:{nodes}, within "
            f"{time_text(jobs[0].deadline_s)}, on the spot nodes of {', '.join(traces)}"
        ),
        f"prices of {list_.as_of}{age}: {list_.source}",
        (
            f"{name}: spot {dollars(offer.price('spot'))}, on demand "
            f"{dollars(offer.price('on-demand'))} an hour; speed grows with the number of nodes"
        ),
        f"{runs:,} runs, seed {options.seed}; each begins somewhere in a trace",
        "",
        *_table(rows),
        *_worth(rows),
    ]
    print("\n".join(lines))
    return 0


def _rows(job: Job, traces: Mapping[str, Availability], runs: int, seed: int) -> list[_Row]:
    starts = [
        (trace, _start(trace, job, np.random.default_rng([seed, number, run])))
        for number, trace in enumerate(traces.values())
        for run in range(runs)
    ]
    rows: list[_Row] = []
    for name, policy in POLICIES.items():
        outcomes = [deadlines.replay(policy, trace, offset, job) for trace, offset in starts]
        mean = float(np.mean([one.dollars for one in outcomes]))
        seconds = sum(one.spot_s + one.on_demand_s for one in outcomes)
        rows.append(
            _Row(
                job.changeover_s,
                name,
                mean,
                mean / (rows[0].dollars if rows else mean),
                float(np.mean([one.seconds > job.deadline_s + _LATE_S for one in outcomes])),
                sum(one.on_demand_s for one in outcomes) / seconds,
                float(np.mean([one.starts for one in outcomes])),
            )
        )
    bound = float(np.mean([deadlines.least(trace, offset, job) for trace, offset in starts]))
    rows.append(_Row(job.changeover_s, _KNOWS, bound, bound / rows[0].dollars, 0.0, 0.0, 0.0))
    return rows


_KNOWS = "omniscient, at least"


def _start(trace: Availability, job: Job, chance: np.random.Generator) -> float:
    """Somewhere, so that the deadline is within the trace, if it is long enough."""
    room = trace.length_s - job.deadline_s
    return float(chance.random()) * (room if room > 0 else trace.length_s)


def _table(rows: list[_Row]) -> list[str]:
    heads = ("changeover", "policy", "cost", "of on demand", "late", "nodes on demand", "starts")
    table = [heads]
    before = None
    for row in rows:
        knows = row.policy == _KNOWS
        table.append(
            (
                "" if row.changeover_s == before else time_text(row.changeover_s),
                row.policy,
                dollars(row.dollars),
                percent(row.of_on_demand, 1),
                "-" if knows else percent(row.late, 1),
                "-" if knows else percent(row.on_demand),
                "-" if knows else f"{row.starts:.1f}",
            )
        )
        before = row.changeover_s
    return columns(table, right=range(2, len(heads)))


def _worth(rows: list[_Row]) -> list[str]:
    """What a fast changeover saves."""
    even = [row for row in rows if row.policy == "uniform progress"]
    slow, fast = max(even, key=_changeover), min(even, key=_changeover)
    if slow.changeover_s == fast.changeover_s:
        return []
    saved = slow.dollars - fast.dollars
    return [
        "",
        (
            f"a changeover of {time_text(fast.changeover_s)} instead of "
            f"{time_text(slow.changeover_s)} saves {dollars(saved)} "
            f"({percent(saved / slow.dollars, 1)}) of a training with uniform progress"
            if saved >= 0
            else f"the shorter changeover costs {dollars(-saved)} more: too few runs to tell"
        ),
    ]


def _changeover(row: _Row) -> float:
    return row.changeover_s


def _json(options: argparse.Namespace, rows: list[_Row]) -> dict[str, Any]:
    return {
        "cluster": options.cluster,
        "runs": options.runs * len(options.trace),
        "seed": options.seed,
        "rows": [
            {
                "changeover_s": row.changeover_s,
                "policy": row.policy,
                "dollars": row.dollars,
                "of_on_demand": row.of_on_demand,
                **(
                    {}
                    if row.policy == _KNOWS
                    else {"late": row.late, "on_demand": row.on_demand, "starts": row.starts}
                ),
            }
            for row in rows
        ],
    }
