"""``spotmpi status``: how a running job stands, once or for as long as it runs."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from spotmpi.launch import control_messages
from spotmpi.launch.commands import client
from spotmpi.launch.commands.client import Gone, add_job_argument, find, until_end
from spotmpi.launch.commands.jobs import lines
from spotmpi.launch.commands.status_table import table
from spotmpi.launch.decoding import fields
from spotmpi.options import exit_codes

__all__ = ["add_arguments", "main"]

_INTERVAL = 1.0
"""Seconds between two looks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi status [--watch] [--json] [--job NAME]"
    parser.description = (
        "Show a running job: its step, its workers and what became of them, its last checkpoint; "
        "where several run, which. "
        "Ask on the host where `spotmpi run` was started."
    )
    parser.epilog = (
        "example: spotmpi status --watch\n\n"
        "docs/operating.md says what each state of a worker means.\n\n"
        + exit_codes(
            {
                0: "the job was shown",
                1: "there is no such job, it does not answer, or its launcher was killed",
                2: "wrong arguments, or several jobs run and --watch needs --job",
                130: "Ctrl-C",
            }
        )
    )
    parser.add_argument(
        "--watch", action="store_true", help="show it every second, until the job ends"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    add_job_argument(parser)


def main(options: argparse.Namespace) -> int:
    """Show the job's standing. Blocking, with ``--watch`` until the job ends."""
    client.show_anything()
    if options.job is None and not options.watch and len(jobs := client.running()) > 1:
        print(_listed(jobs, options.json))
        return 0
    folder = find(options.job)
    if options.watch:
        _watch(folder, options.json)
    else:
        status = client.status(folder)
        print(json.dumps(fields(status)) if options.json else table(status))
    return 0


def _listed(jobs: list[Path], as_json: bool) -> str:
    """Several jobs, a line each."""
    if as_json:
        return "\n".join(json.dumps(fields(one)) for one in client.reports(jobs))
    head = "several jobs of yours run on this host; --job NAME shows one of them:"
    return "\n  ".join([head, *lines(jobs, 2)])


def _watch(folder: Path, as_json: bool) -> None:
    page = _Page(as_json)
    with until_end(folder) as end:
        ended = None
        while ended is None:
            silent = ""
            try:
                page.show(client.status(folder))
            except Gone as gone:
                silent = str(gone)
            ended = end.wait(_INTERVAL)
            if ended is None and silent:
                page.note(silent)
    page.show(ended)


class _Page:
    """Where a status replaces the one before: in place on a terminal, else below it."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self._in_place = sys.stdout.isatty() and not as_json
        self._above = 0
        """Lines that the next status replaces, or follows."""

    def show(self, status: control_messages.Report) -> None:
        """Show how the job stands now."""
        if self._json:
            print(json.dumps(fields(status)), flush=True)
        elif self._in_place:
            size = shutil.get_terminal_size()
            # Room for the cursor and for a note: the terminal must not scroll.
            text = table(status, size.columns, size.lines - 2)
            up = f"\x1b[{self._above}F" if self._above else ""
            print(f"{up}\x1b[J{text}", flush=True)
            self._above = text.count("\n") + 1
        else:
            print(("\n" if self._above else "") + table(status), flush=True)
            self._above = 1

    def note(self, text: str) -> None:
        """Say why what is shown is no longer new."""
        if self._in_place:
            width = shutil.get_terminal_size().columns
            print(f"{text[:width]}\x1b[K\x1b[1F", flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
