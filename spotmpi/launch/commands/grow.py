"""``spotmpi grow``: more workers for a running job, while the others train."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.launch.commands.client import ASKED, add_job_argument, ask, find, request
from spotmpi.launch.control_messages import AskGrow, AskHost, AskMore, Said
from spotmpi.launch.messages import MOST_SLOTS
from spotmpi.launch.start.hosts_file import parse
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "main"]

_BETWEEN_LOOKS = 0.2
"""Seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = (
        "spotmpi grow --workers N [--host NAME] [--job NAME]\n"
        "       spotmpi grow --host NAME [--slots N] [--python PATH] [--job NAME]"
    )
    parser.description = (
        "Start more workers for a running job that was started here: with --hosts, with --listen, "
        "inside a Slurm job, or with -n N --replace. N more on a host that it has, or those of a "
        "new host (not where -n stood alone). They join while the others train; `spotmpi status` "
        "shows how far they are. A new host is waited for; Ctrl-C ends only the waiting."
    )
    parser.epilog = (
        "example:\n  spotmpi grow --workers 2\n  spotmpi grow --host h5 --slots 2\n\n"
        + exit_codes(
            {
                **ASKED,
                0: "the workers are started",
                1: "there is no such job, it does not answer, or the host does not come (it is "
                "tried again)",
            }
        )
    )
    parser.add_argument(
        "--workers", metavar="N", help="so many more on a host of the job: --host, or its only one"
    )
    parser.add_argument("--host", metavar="NAME", help="the host, as ssh knows it")
    parser.add_argument("--slots", metavar="N", help="workers of a new host (default: 1)")
    parser.add_argument("--python", metavar="PATH", help="the Python that has spotmpi there")
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Ask the job to start more workers. Blocking until it has been asked, and a host is here."""
    if options.workers is not None:
        _more(options)
        return 0
    if options.host is None:
        raise UsageError(
            "give --workers N, for more workers on the job's host; or --host NAME, a host that ssh "
            "reaches without a password"
        )
    line = f"{options.host} slots={options.slots or 1}"
    line += "" if options.python is None else f" python={options.python}"
    parse([line], "spotmpi grow")
    folder = find(options.job)
    print(f"{folder.name}: {ask(folder, AskGrow(line), Said).said}", flush=True)
    return _await(folder, options.host)


def _await(folder: Path, host: str) -> int:
    """Wait until the host is there, or it is known why not."""
    said = ""
    while not said:
        time.sleep(_BETWEEN_LOOKS)
        try:
            said = ask(folder, AskHost(host), Said).said
        except UsageError as why:
            print(f"{folder.name}: {why}", file=sys.stderr)
            return 1
    print(f"{folder.name}: {said}")
    return 0


def _more(options: argparse.Namespace) -> None:
    text = options.workers
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MOST_SLOTS:
        raise UsageError(f"--workers {text}: give a number of workers, from 1 to {MOST_SLOTS}")
    if options.slots is not None or options.python is not None:
        raise UsageError("--slots and --python are for a new host, --workers for one that is there")
    if options.host is not None:
        parse([options.host], "spotmpi grow")
    request(options.job, AskMore(int(text), options.host))
