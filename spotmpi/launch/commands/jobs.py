"""``spotmpi jobs``: what runs on this host for this user, a line each."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from spotmpi.launch.commands import client
from spotmpi.launch.control_messages import Report
from spotmpi.launch.decoding import fields
from spotmpi.launch.wording import duration
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "lines", "main"]

_HEAD = ("JOB", "FOR", "STEP", "WORKERS", "SCRIPT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi jobs [--json]"
    parser.description = (
        "List your running jobs: for how long they have run, how far they are, and on how many "
        "workers. Ask on the host where `spotmpi run` was started."
    )
    parser.epilog = "example: spotmpi jobs\n\n" + exit_codes(
        {0: "the jobs were listed, if there are any", 2: "wrong arguments", 130: "Ctrl-C"}
    )
    parser.add_argument(
        "--json", action="store_true", help="print a line of JSON for each, as `spotmpi status`"
    )


def main(options: argparse.Namespace) -> int:
    """List the jobs. Blocking, for some seconds if a launcher does not answer."""
    client.show_anything()
    running = client.running()
    if options.json:
        for one in client.reports(running):
            print(json.dumps(fields(one)))
    elif running:
        print("\n".join(lines(running)))
    else:
        print("no job of yours runs on this host")
    return 0


def lines(folders: Iterable[Path], beside: int = 0) -> list[str]:
    """A table of these jobs, on a terminal as wide as that is less ``beside``. Blocking, as
    `client.ask`."""
    rows = [_HEAD]
    for folder in folders:
        found = client.reports([folder])
        rows += [_row(one) for one in found]
        if not found:
            rows.append((folder.name, "?", "?", "?", "(does not answer)"))
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD) - 1)]
    said = [
        "  ".join(
            [*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]
        )
        for row in rows
    ]
    room = shutil.get_terminal_size().columns - beside if sys.stdout.isatty() else None
    return [line[:room] for line in said]


def _row(status: Report) -> tuple[str, str, str, str, str]:
    step = "-" if status.step is None else str(status.step)
    step += "" if status.steps_in_all is None else f" of {status.steps_in_all}"
    training = sum(worker.state == "training" for worker in status.workers)
    script = " ".join([status.script, *status.arguments])
    return status.job, duration(status.seconds), step, str(training), script
