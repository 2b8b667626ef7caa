"""``spotmpi plan``: which cluster to rent, what it will cost, and why not another one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from spotmpi.economy.following import plan_file
from spotmpi.economy.following.follow import LATE, follow
from spotmpi.economy.following.plan_file import PlanFile
from spotmpi.economy.plan import answer, conditions, provision, selection
from spotmpi.economy.plan.question import understood
from spotmpi.economy.quantities import duration
from spotmpi.errors import UsageError
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "main"]

_INFEASIBLE = LATE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Choose the cheapest cluster of spot nodes that trains to a loss by a deadline, whatever "
        "is revoked, and say what it costs, how likely it is in time, and what was rejected."
    )
    parser.epilog = (
        "example: spotmpi plan --profile spotdnn --prices 2023 --loss 0.8 --deadline 1h \\\n"
        "             --quota g3.8xl:8,g3.16xl:4,g4dn.4xl:4\n\n"
        + exit_codes(
            {
                0: "there is a plan",
                2: "wrong arguments, or something is wrong in a file",
                _INFEASIBLE: "no cluster within the quota is in time often enough; with --follow, "
                "the training has ended, and not in time with what was asked for",
            }
        )
    )
    add = parser.add_argument
    add(
        "plan",
        nargs="?",
        type=Path,
        metavar="PLAN",
        help="a plan that --write has written: what it was asked counts where you say nothing",
    )
    add(
        "--profile",
        metavar="FILE",
        help="how the training behaves: a file, or spotdnn, icac19",
    )
    add(
        "--prices",
        metavar="FILE",
        help="prices and lifetimes: YAML, CSV, or 2023, icac19",
    )
    add(
        "--quota",
        metavar="TYPE:N,...",
        help="how many nodes of each type you may rent",
    )
    add(
        "--deadline",
        metavar="D",
        help="how long the training may take, as 2h or 1h30min",
    )
    add("--loss", type=float, metavar="L", help="train to this loss")
    add("--iterations", type=float, metavar="J", help="train for so many iterations of a worker")
    add(
        "--confidence",
        metavar="PER CENT",
        help="be in time in this part of the simulated trainings (95)",
    )
    add(
        "--policy",
        choices=("spot", "mixed"),
        help="mixed: on-demand nodes take the place of lost ones, where the deadline needs them",
    )
    conditions.add_arguments(parser)
    add(
        "--runs",
        type=int,
        metavar="R",
        help="trainings to simulate for each cluster (1000)",
    )
    add("--seed", type=int, metavar="S", help="seed of what happens by chance (0)")
    add(
        "--include-ps", action="store_true", default=None, help="count the parameter server's price"
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--exhaustive", action="store_true", help="look at all clusters, however many there are"
    )
    way.add_argument(
        "--windows", action="store_true", help="look at spotDNN's windows only, however few"
    )
    add("--existing", metavar="TYPE:N,...", help="nodes that run already; they are kept")
    add("--from-loss", type=float, metavar="L", help="the loss that is reached already")
    add("--done", type=float, metavar="J", help="iterations that are done already")
    add("--done-on", metavar="TYPE:N,...", help="the cluster that did them (--existing)")
    add("--json", action="store_true", help="print all figures as JSON")
    add("--write", type=Path, metavar="PLAN", help="write the first choice and the question there")
    add(
        "--follow",
        metavar="JOB|TRACE",
        help="plan again and again for a training that runs: a job, as `spotmpi status` names it, "
        "or a trace",
    )
    add("--every", metavar="D", help="with --follow: time between two looks (1min)")
    add(
        "--apply",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="with --follow JOB, and last: get and return hosts by this command of yours, which is "
        "told `get TYPE N spot|on-demand` or `return TYPE spot|on-demand HOST...`",
    )


def main(options: argparse.Namespace) -> int:
    """Search, simulate, print. Blocking, seconds; 3 if there is no plan."""
    file = PlanFile() if options.plan is None else plan_file.read(options.plan)
    options = plan_file.completed(options, file)
    if options.follow is not None:
        return _follow(options, file)
    if options.apply is not None or options.every is not None:
        raise UsageError("--apply and --every are for --follow JOB")
    question = understood(options)
    whole = None if question.behind else question.loss
    least, most = provision.bounds(question.model, question.demand, whole)
    way: provision.Way | None = "all" if options.exhaustive else None
    if options.windows:
        way = "windows"
    found = provision.search(question.model, question.demand, least, most, way)
    if not found.feasible:
        reason = answer.no_plan(question, found)
        if options.json:
            print(json.dumps({"feasible": False, "reason": reason}, indent=2))
        print(f"spotmpi plan: {reason}", file=sys.stderr)
        return _INFEASIBLE
    if not all(candidate.iterations for candidate in found.feasible):
        raise UsageError(f"{question.behind.text}, and no iteration is left to do")
    chosen = selection.select(question, found)
    if not chosen.rows:
        reason = answer.too_late(question, found, chosen)
        if options.json:
            print(json.dumps(answer.late_as_json(question, chosen, reason), indent=2))
        print(f"spotmpi plan: {reason}", file=sys.stderr)
        return _INFEASIBLE
    if options.write is not None:
        plan_file.write(options.write, options, chosen.rows[0])
    open_ = selection.sensitivity(question, found)
    if options.json:
        print(json.dumps(answer.as_json(question, found, chosen, open_), indent=2))
    else:
        print(answer.page(question, found, chosen, open_))
    return 0


def _follow(options: argparse.Namespace, file: PlanFile) -> int:
    for name in ("existing", "from_loss", "done_on", "write"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--follow sees by itself what runs and what is done: leave out "
                f"--{name.replace('_', '-')}"
            )
    if options.done or options.json or options.windows or options.exhaustive:
        raise UsageError("--done, --json, --windows and --exhaustive are not for --follow")
    if options.apply is not None and not options.apply:
        raise UsageError("--apply has no command behind it; it comes last, as --apply ./hosts.sh")
    every_s = 60.0 if options.every is None else duration(options.every, "--every")
    if every_s < 1:
        raise UsageError(f"--every is {options.every}, expected at least 1s")
    return follow(understood(options), options.follow, file.hosts, every_s, options.apply)
