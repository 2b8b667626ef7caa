"""``spotmpi stop``: the workers of a running job stop together, with a checkpoint."""

from __future__ import annotations

import argparse

from spotmpi.launch.commands.client import ASKED, Gone, add_job_argument, ask, find, until_end
from spotmpi.launch.control_messages import AskStop, Said
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi stop [--job ID]"
    parser.description = (
        "End a running job. With --checkpoint all its workers stop after their step and write a "
        "checkpoint; `spotmpi run` then ends with code 75, and --resume goes on from there. "
        "Without --checkpoint the job ends at once. This command waits for the end; Ctrl-C ends "
        "only the waiting. Ask on the host where `spotmpi run` was started."
    )
    parser.epilog = "example: spotmpi stop --job spotmpi-0123456789ab\n\n" + exit_codes(
        {**ASKED, 0: "the job has ended"}
    )
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Ask the job to stop and wait for its end. Blocking."""
    folder = find(options.job)
    with until_end(folder) as end:
        print(f"{folder.name}: {ask(folder, AskStop(), Said).said}", flush=True)
        ended = end.wait()
    if ended is None or ended.ending is None:
        raise Gone(f"{folder.name} does not say how it ended")
    print(f"{folder.name} ended with code {ended.ending.code}: {ended.ending.meaning}")
    return 0
