"""``spotmpi shrink``: one worker leaves a running job, and the others train on."""

from __future__ import annotations

import argparse

from spotmpi.errors import UsageError
from spotmpi.launch.ask import add_job_argument, request

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi shrink --worker W [--job ID]"
    parser.description = (
        "Have one worker leave a job that runs on this host, before its next step. The others "
        "train on without it and lose nothing; `spotmpi status` shows who is there."
    )
    parser.epilog = "example: spotmpi shrink --worker 3"
    parser.add_argument("--worker", metavar="W", help="which one, by its id")
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Ask the job to let a worker go. Blocking until it has been asked."""
    worker = options.worker
    if worker is None or not (worker.isascii() and worker.isdigit()):
        raise UsageError("give --worker W, the number of a worker that `spotmpi status` shows")
    request(options.job, "shrink", worker=int(worker))
    return 0
