"""``spotmpi plan``: which cluster to rent, what it will cost, and why not another one."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace

from spotmpi.economy.plan import answer, provision, rental
from spotmpi.economy.plan.answer import Choice
from spotmpi.economy.plan.outcomes import campaign
from spotmpi.economy.plan.provision import Candidate, Search
from spotmpi.economy.plan.question import Question, understood
from spotmpi.economy.quantities import Cluster
from spotmpi.errors import UsageError
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "main"]

_INFEASIBLE = 3
_SHOWN = 8
"""Clusters that are lived through and listed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Choose the cheapest cluster of spot nodes that trains to a loss by a deadline, and say "
        "what it costs, how likely it is in time under revocations, and what was rejected."
    )
    parser.epilog = (
        "example: spotmpi plan --profile spotdnn --prices 2023 --loss 0.8 --deadline 1h \\\n"
        "             --quota g3.8xl:8,g3.16xl:4,g4dn.4xl:4\n\n"
        + exit_codes(
            {
                0: "there is a plan",
                2: "wrong arguments, or something is wrong in a file",
                _INFEASIBLE: "no cluster within the quota reaches the loss by the deadline",
            }
        )
    )
    add = parser.add_argument
    add(
        "--profile",
        required=True,
        metavar="FILE",
        help="how the training behaves: a file, or spotdnn, icac19",
    )
    add(
        "--prices",
        required=True,
        metavar="FILE",
        help="prices and lifetimes: YAML, CSV, or 2023, icac19",
    )
    add(
        "--quota",
        required=True,
        metavar="TYPE:N,...",
        help="how many nodes of each type you may rent",
    )
    add(
        "--deadline",
        required=True,
        metavar="D",
        help="how long the training may take, as 2h or 1h30min",
    )
    add("--loss", type=float, metavar="L", help="train to this loss")
    add("--iterations", type=float, metavar="J", help="train for so many iterations of a worker")
    add("--lifetime", metavar="L", help="how long workers live, as in `spotmpi simulate cluster`")
    add(
        "--replacement",
        metavar="D",
        help="a lost node is replaced after so long; or never (price list)",
    )
    add(
        "--runs",
        type=int,
        default=1000,
        metavar="R",
        help="trainings to simulate for each cluster (1000)",
    )
    add("--seed", type=int, default=0, metavar="S", help="seed of what happens by chance (0)")
    add("--include-ps", action="store_true", help="count the parameter server's price")
    add("--exhaustive", action="store_true", help="look at all clusters, however many there are")
    add("--existing", metavar="TYPE:N,...", help="nodes that run already; they are kept")
    add("--done", type=float, default=0.0, metavar="J", help="iterations that are done already")
    add("--json", action="store_true", help="print all figures as JSON")


def main(options: argparse.Namespace) -> int:
    """Search, simulate, print. Blocking, seconds; 3 if there is no plan."""
    question = understood(options)
    least, most = provision.bounds(question.model, question.demand, question.loss)
    found = provision.search(
        question.model, question.demand, least, most, exhaustive=options.exhaustive
    )
    if not found.feasible:
        reason = answer.no_plan(question, found)
        if options.json:
            print(json.dumps({"feasible": False, "reason": reason}, indent=2))
        print(f"spotmpi plan: {reason}", file=sys.stderr)
        return _INFEASIBLE
    if not all(candidate.iterations for candidate in found.feasible):
        raise UsageError(
            f"--done {options.done:g}: no iteration is left to do; there is nothing to plan"
        )
    rows = _live_through(question, found)
    if options.json:
        print(json.dumps(answer.as_json(question, found, rows), indent=2))
    else:
        print(answer.page(question, found, rows))
    return 0


def _live_through(question: Question, found: Search) -> list[Choice]:
    rows = [_row(question, candidate) for candidate in found.feasible[:_SHOWN]]
    deadline_s = question.demand.deadline_s
    # Those that are more likely late than not come last, however cheap they are.
    return sorted(rows, key=lambda row: (row.lived.within(deadline_s).value < 0.5, row.middle()))


def _row(question: Question, candidate: Candidate) -> Choice:
    """Live through the revocations of one cluster."""
    model, demand, server = question.model, question.demand, question.server
    there = candidate.cluster
    left = candidate.iterations / demand.iterations(there)

    def iterations(some: Cluster) -> float:
        return demand.iterations(some) * left

    plan = rental.rent(model, iterations, question.prices, there, server, question.terms)
    late = 0.0 if there == demand.existing else demand.overhead_s
    lived = campaign(replace(plan, ready_s=late), rental.spotmpi(), question.runs, question.seed)
    on_demand = rental.on_demand(question.prices, there, server, candidate.seconds)
    return Choice(candidate, lived, on_demand, model.bottleneck(there))
