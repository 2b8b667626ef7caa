"""``spotmpi report``: a training as one HTML page."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from spotmpi.afterwards.page import page
from spotmpi.errors import UsageError
from spotmpi.options import exit_codes
from spotmpi.trace.runs import alone

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Write a page about a training, from its trace: its loss, its workers and the times of its "
        "steps, each recovery split into its parts, each interruption with its cause, what was "
        "checked, and what it cost. One HTML file that needs nothing else, neither a network nor "
        "matplotlib."
    )
    parser.epilog = "example: spotmpi report run.jsonl --price 0.92\n\n" + exit_codes(
        {
            0: "it is written",
            1: "the file is no trace of one training",
            2: "wrong arguments",
        }
    )
    parser.add_argument("trace", metavar="RUN.jsonl", type=Path, help="of `spotmpi run --trace`")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where to write it (default: RUN.html, beside the trace)",
    )
    parser.add_argument(
        "--price",
        metavar="USD",
        help="of one host, for an hour: then the page says what the hosts have cost",
    )


def main(options: argparse.Namespace) -> int:
    """Write the page. Blocking."""
    output: Path = options.output or options.trace.with_suffix(".html")
    price = None if options.price is None else _price(options.price)
    if output.suffix not in (".html", ".htm"):
        raise UsageError(f"--output {output}: give a name that ends in .html")
    made = page(alone(options.trace), options.trace.name, price)
    try:
        output.write_text(made, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error
    print(f"written: {output.resolve()}")
    return 0


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise UsageError(f"--price {text}: give a number, 0 or more")
    return price
