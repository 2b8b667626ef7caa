"""``spotmpi grow``: one more host for a running job, while the others train."""

from __future__ import annotations

import argparse

from spotmpi.errors import UsageError
from spotmpi.launch.commands.client import ASKED, add_job_argument, request
from spotmpi.launch.start.hosts_file import parse
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi grow --host NAME [--slots N] [--python PATH] [--job ID]"
    parser.description = (
        "Add a host to a running job that was started here with --hosts or --listen. Its workers "
        "join while the others train; `spotmpi status` shows how far they are."
    )
    parser.epilog = "example: spotmpi grow --host h5 --slots 2\n\n" + exit_codes(ASKED)
    parser.add_argument("--host", metavar="NAME", help="the host, as ssh knows it")
    parser.add_argument("--slots", metavar="N", default="1", help="workers there (default: 1)")
    parser.add_argument("--python", metavar="PATH", help="the Python that has spotmpi there")
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Ask the job to take in a host. Blocking until it has been asked."""
    if options.host is None:
        raise UsageError("give --host NAME, a host that ssh reaches without a password")
    line = f"{options.host} slots={options.slots}"
    line += "" if options.python is None else f" python={options.python}"
    parse([line], "spotmpi grow")
    request(options.job, "grow", line=line)
    return 0
