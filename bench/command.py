"""``spotmpi bench``: one question, one module."""

from __future__ import annotations

import argparse

from spotmpi import subcommands
from spotmpi.bench import (
    accuracy,
    adaptive,
    alarms,
    allreduce,
    convergence,
    exposed,
    growing,
    join,
    joins,
    kernels,
    memory,
    overlap,
    prediction,
    recovery,
    step,
    stragglers,
    switches,
    wire,
)
from spotmpi.bench.pytorch import calls, curves, steps
from spotmpi.subcommands import run as main

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = "Measure spotmpi against what it stands on, on this machine."
    parser.epilog = "example: spotmpi bench recovery --workers 16 32 --lost 1 2 3"
    subcommands.add(
        parser,
        "BENCH",
        {
            "recovery": ("how long training stands still when workers die", recovery),
            "join": ("how long a newcomer takes, and how long the others pause for it", join),
            "joins": ("how many newcomers do not come in, of many, on busy cores", joins),
            "alarms": (
                "whether living hosts are taken for lost, and how near they come to it",
                alarms,
            ),
            "step": ("how long a step takes, beside a bare loop, and what safety costs", step),
            "convergence": (
                "how accurate each strategy is, with and without revocations",
                convergence,
            ),
            "exposed": ("how much of their time trainings between hosts spend on rounds", exposed),
            "growing": ("how accurate a training is that gets more and more workers", growing),
            "adaptive": ("what policies do while hosts come and the line gets slow", adaptive),
            "accuracy": (
                "how long trainings take to a stated accuracy while workers die",
                accuracy,
            ),
            "torch": ("how long a step of PyTorch takes, beside gloo's DDP and none", steps),
            "calls": ("how long calls of PyTorch take that others wait for, and gloo's", calls),
            "curves": ("how the loss of a PyTorch training falls while workers are killed", curves),
            "kernels": ("how fast the arithmetic is, beside NumPy and copies", kernels),
            "prediction": ("how far off a step is from what spotmpi profile predicts", prediction),
            "allreduce": ("how long a sum takes, beside MPI, gloo, memory and the line", allreduce),
            "overlap": ("how much of a sum between hosts a backward pass hides", overlap),
            "stragglers": ("what a slow worker costs the others, and what a dead one", stragglers),
            "switches": ("what it costs to change the strategy under way", switches),
            "memory": ("what becomes of the optimizer's memory when the strategy changes", memory),
            "wire": ("the same for steps on several hosts", wire),
        },
    )
