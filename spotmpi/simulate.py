"""``spotmpi simulate``: what can be tried without renting, or killing, anything."""

from __future__ import annotations

import argparse

from spotmpi import schedules
from spotmpi.economy import cluster, reproduce

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = "Try something before it costs money. No MPI is used."
    parser.epilog = "example: spotmpi simulate cluster --cluster K80:4 --runs 1000"
    subjects = parser.add_subparsers(metavar="WHAT", required=True)
    for name, summary, describe, run in (
        (
            "cluster",
            "how long a training on nodes that vanish takes, and what it costs",
            cluster.add_arguments,
            cluster.main,
        ),
        (
            "reproduce",
            "a paper's figures beside those of the models here",
            reproduce.add_arguments,
            reproduce.main,
        ),
        (
            "protocol",
            "search for schedules of deaths that break the recovery protocol",
            schedules.add_arguments,
            schedules.main,
        ),
    ):
        subject = subjects.add_parser(
            name,
            help=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        describe(subject)
        subject.set_defaults(run=run)


def main(options: argparse.Namespace) -> int:
    """Simulate what was asked for, and return its exit code. Blocking."""
    code: int = options.run(options)
    return code
