"""``spotmpi stop``: the workers of a running job stop together, with a checkpoint."""

from __future__ import annotations

import argparse
from contextlib import suppress

from spotmpi.errors import SpotmpiError
from spotmpi.launch.commands.client import (
    ASKED,
    Gone,
    add_job_argument,
    ask,
    find,
    status,
    until_end,
)
from spotmpi.launch.control_messages import AskStop, Said
from spotmpi.options import exit_codes

__all__ = ["NotStopped", "add_arguments", "main"]

_BETWEEN_LOOKS = 0.25
"""Seconds between two looks whether the workers still mean to stop."""


class NotStopped(SpotmpiError):
    """The workers could keep no checkpoint, and train on."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi stop [--now] [--job NAME]"
    parser.description = (
        "End a running job. With --checkpoint all its workers stop after their step and write a "
        "checkpoint; `spotmpi run` then ends with code 75, and --resume goes on from there. If no "
        "checkpoint can be written, they train on, and this command says why. "
        "Without --checkpoint the job ends at once. This command waits for the end; Ctrl-C ends "
        "only the waiting. Ask on the host where `spotmpi run` was started."
    )
    parser.epilog = "example: spotmpi stop --job spotmpi-0123456789ab\n\n" + exit_codes(
        {
            **ASKED,
            0: "the job has ended",
            1: "the job goes on, as no checkpoint can be written; or there is no such job",
        }
    )
    parser.add_argument(
        "--now", action="store_true", help="end the job at once, without a checkpoint"
    )
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Ask the job to stop and wait for its end. Blocking."""
    folder = find(options.job)
    with until_end(folder) as end:
        print(f"{folder.name}: {ask(folder, AskStop(options.now), Said).said}", flush=True)
        while (ended := end.wait(_BETWEEN_LOOKS)) is None:
            with suppress(Gone):  # it is ending, which is said next
                now = status(folder)
                if now.ending is None and not now.stopping:
                    raise NotStopped(
                        f"{folder.name} goes on: {now.unsaved}. Make room and ask again, or end "
                        "it without a checkpoint: spotmpi stop --now"
                    )
    if ended.ending is None:
        raise Gone(f"{folder.name} does not say how it ended")
    print(f"{folder.name} ended with code {ended.ending.code}")
    print(ended.ending.sentence or ended.ending.meaning)
    return 0
