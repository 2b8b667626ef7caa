"""``spotmpi check``: what spotmpi promises, held against the trace of any training."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from spotmpi.options import exit_codes
from spotmpi.trace.proof import CHECKS, Finding, findings
from spotmpi.trace.runs import of_file, printable

__all__ = ["add_arguments", "lines", "main"]

_WORDS = {True: "holds", False: "FAILS", None: "unknown"}
_WIDE = max(map(len, CHECKS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Check from its trace what a training did: that each step is there once, that each sample "
        "was used once in each pass, that the others went on after each loss, that all replicas "
        "were equal to the bit, and more. A line says what was checked, and whether it holds; "
        "`unknown` is what this trace cannot tell. The trace of a training that still runs is "
        "checked as far as it goes."
    )
    parser.epilog = "example: spotmpi check run.jsonl\n\n" + exit_codes(
        {
            0: "nothing in the trace speaks against what was promised",
            1: "something does, or the file is no trace",
            2: "wrong arguments",
        }
    )
    parser.add_argument("trace", metavar="RUN.jsonl", type=Path, help="of `spotmpi run --trace`")


def main(options: argparse.Namespace) -> int:
    """Check each training in the file, and print a line for each check. Blocking."""
    trainings = of_file(options.trace)
    wrong = 0
    for number, records in enumerate(trainings, 1):
        if len(trainings) > 1:
            print(f"training {number} of {len(trainings)}")
        found = list(findings(records))
        wrong += sum(one.holds is False for one in found)
        for line in lines(found):
            print(line)
    return 1 if wrong else 0


def lines(found: Sequence[Finding]) -> Iterator[str]:
    """One for each finding."""
    for one in found:
        yield f"{_WORDS[one.holds]:<7}  {one.what:<{_WIDE}}  {printable(one.said)}"
