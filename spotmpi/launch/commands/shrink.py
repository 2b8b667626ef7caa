"""``spotmpi shrink``: one worker leaves a running job, and the others train on."""

from __future__ import annotations

import argparse

from spotmpi.errors import UsageError
from spotmpi.launch.commands.client import ASKED, add_job_argument, request
from spotmpi.launch.control_messages import AskShrink
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi shrink --worker W [--job NAME]"
    parser.description = (
        "Take one worker out of a running job, before its next step. The others train on and "
        "lose nothing. Ask on the host where `spotmpi run` was started."
    )
    parser.epilog = "example: spotmpi shrink --worker 3\n\n" + exit_codes(ASKED)
    parser.add_argument("--worker", metavar="W", help="its id, as `spotmpi status` shows it")
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Ask the job to let a worker go. Blocking until it has been asked."""
    worker = options.worker
    if worker is None or not (worker.isascii() and worker.isdigit()):
        raise UsageError("give --worker W, the number of a worker that `spotmpi status` shows")
    request(options.job, AskShrink(int(worker)))
    return 0
