"""``spotmpi simulate``: what can be tried without renting, or killing, anything."""

from __future__ import annotations

import argparse

from spotmpi import subcommands
from spotmpi.bench.papers import reproduce
from spotmpi.economy.plan import cluster_simulation, deadline_simulation
from spotmpi.simulation import policy, protocol
from spotmpi.subcommands import run as main

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = "Try something before it costs money. No MPI is used."
    parser.epilog = "example: spotmpi simulate cluster --cluster K80:4 --lifetime exponential:2h"
    subcommands.add(
        parser,
        "WHAT",
        {
            "cluster": (
                "how long a training on nodes that vanish takes, and its cost",
                cluster_simulation,
            ),
            "deadline": (
                "what it costs to be in time, with spot and on-demand nodes",
                deadline_simulation,
            ),
            "reproduce": ("a paper's figures beside those of the models here", reproduce),
            "policy": ("what another policy would have decided in a training", policy),
            "protocol": ("search for faults that break what a training promises", protocol),
        },
    )
