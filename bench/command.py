"""``spotmpi bench``: one question, one module."""

from __future__ import annotations

import argparse

from spotmpi.bench import alarms, join, overhead, prediction, recovery, wire

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = "Measure spotmpi against what it stands on, on this machine."
    parser.epilog = "example: spotmpi bench recovery --workers 16 32 --lost 1 2 3"
    benches = parser.add_subparsers(metavar="BENCH", required=True)
    for name, summary, describe, run in (
        (
            "recovery",
            "how long training stands still when workers die",
            recovery.add_arguments,
            recovery.main,
        ),
        (
            "join",
            "how long a newcomer takes, and how long the others pause for it",
            join.add_arguments,
            join.main,
        ),
        (
            "alarms",
            "whether hosts are thrown out that live, and how near they come to it",
            alarms.add_arguments,
            alarms.main,
        ),
        (
            "overhead",
            "what a step costs more than a bare loop that does the same work",
            overhead.add_arguments,
            overhead.main,
        ),
        (
            "prediction",
            "how far off a step is that spotmpi profile predicts",
            prediction.add_arguments,
            prediction.main,
        ),
        (
            "wire",
            "how far off a step on several hosts is that spotmpi profile predicts",
            wire.add_arguments,
            wire.main,
        ),
    ):
        bench = benches.add_parser(
            name,
            help=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        describe(bench)
        bench.set_defaults(run=run)


def main(options: argparse.Namespace) -> int:
    """Run the bench that was asked for, and return its exit code. Blocking, minutes."""
    code: int = options.run(options)
    return code
