"""``spotmpi stop``: the workers of a running job stop together, with a checkpoint."""

from __future__ import annotations

import argparse

from spotmpi.launch.ask import add_job_argument, ask, find, until_end

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi stop [--job ID]"
    parser.description = (
        "End a job that runs on this host. If it was started with --checkpoint, all workers stop "
        "at the end of the step that they are in, a checkpoint is written, and `spotmpi run` ends "
        "with code 75; --resume goes on from there. Without --checkpoint the job is ended at once. "
        "This command waits for the end; Ctrl-C ends the waiting only."
    )
    parser.epilog = "example: spotmpi stop --job spotmpi-0123456789ab"
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Ask the job to stop and wait for its end. Blocking."""
    folder = find(options.job)
    with until_end(folder) as end:
        print(f"{folder.name}: {ask(folder, 'stop')['said']}", flush=True)
        ended = end.wait()
    assert ended is not None  # it waits for as long as it takes
    ending = ended["ending"]
    print(f"{folder.name} ended with code {ending['code']}: {ending['meaning']}")
    return 0
