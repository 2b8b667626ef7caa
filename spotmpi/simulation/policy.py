"""``spotmpi simulate policy``: what a policy would have decided on the figures of a training.

A trace has the figures of each survey, and what the policy of the training decided by them. Another
policy is given the same ones, survey by survey. What would have followed from its decisions is in
no trace: after the first one that differs, these are still the figures of what was followed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spotmpi.errors import TraceError, UsageError
from spotmpi.policies import Metrics, Policy
from spotmpi.policies import named as policy_named
from spotmpi.strategies import named as strategy_named
from spotmpi.trace import runs

__all__ = ["add_arguments", "main"]

_NUMBERS = ("steps", "since", "seconds", "workers", "hosts", "throughput", "share", "slowest")
"""Figures that every survey has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Say what a policy would have decided on the figures of a training that had a policy. What "
        "would have followed from that is not known: the figures stay those of the training."
    )
    parser.epilog = "example: spotmpi simulate policy run.jsonl --policy throughputbelow/diloco"
    parser.add_argument("trace", type=Path, metavar="RUN.jsonl", help="the training's trace")
    parser.add_argument(
        "--policy",
        required=True,
        metavar="NAME[:OPTION=N,..][/STRATEGY..]",
        help="as --policy of spotmpi run takes it",
    )


def main(options: argparse.Namespace) -> int:
    """Print the surveys in which one of the two changes the strategy. Raises TraceError and
    UsageError."""
    policy = policy_named(options.policy)
    told = surveys(runs.alone(options.trace))
    if not told:
        raise TraceError(f"{options.trace} has no surveys: that training had no policy")
    print("  step workers share slowest samples/s | followed, and decided | would have decided")
    differ = 0
    for record in told:
        decides = decided(policy, record)
        differ += decides != record["decides"]
        if decides is not None or record["decides"] is not None:
            print(line(record, decides))
    same = "the same in all" if not differ else f"otherwise in {differ} of"
    print(f"\n{policy} would have decided {same} {len(told)} surveys; no line: both stayed.")
    return 0


def surveys(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the surveys that count, by step: a resume makes those after it void, and a new leader
    may tell one again."""
    found: dict[int, dict[str, Any]] = {}
    for record in records:
        if record["event"] == "resume":
            found = {step: one for step, one in found.items() if step < record["step"]}
        elif record["event"] == "survey":
            found[record["step"]] = record
    return list(found.values())


def decided(policy: Policy, record: dict[str, Any]) -> str | None:
    """Return the name of the strategy that the policy decides for on a survey's figures; None: it
    stays. Raises TraceError if they are no figures."""
    try:
        strategy = strategy_named(record["strategy"])
    except UsageError:
        raise TraceError(
            f"the training follows {runs.printable(record['strategy'])} in step {record['step']}, "
            "which does not come with spotmpi: no policy can be tried on it"
        ) from None
    figures = record["figures"]
    if not all(runs.is_number(figures.get(name)) for name in _NUMBERS):
        raise TraceError(f"the survey of step {record['step']} lacks figures")
    try:
        wanted = policy.decide(Metrics.of(strategy, figures))
    except (KeyError, TypeError, AttributeError, ArithmeticError):
        raise TraceError(f"the figures of the survey of step {record['step']} are none") from None
    return None if wanted is None or str(wanted) == str(strategy) else wanted.called


def line(record: dict[str, Any], decides: str | None) -> str:
    """Return a survey's line of the table."""
    known = record["figures"]
    did = "stays" if record["decides"] is None else runs.printable(record["decides"])
    speed = known["throughput"] * known["workers"]
    return (
        f"{record['step']:6} {known['workers']:7} {known['share']:5.2f} {known['slowest']:7.2f} "
        f"{speed:9.0f} | {runs.printable(record['strategy'])} -> {did} | {decides or 'stays'}"
    )
