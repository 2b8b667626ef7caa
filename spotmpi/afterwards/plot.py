"""``spotmpi plot``: the picture of a training, from its trace."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.options import exit_codes
from spotmpi.trace.recoveries import described
from spotmpi.trace.runs import alone, printable

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Draw a training from its trace: workers, loss and time of each step, and the parts of the "
        "first recoveries. Needs matplotlib; `spotmpi report` does not."
    )
    parser.epilog = "example: spotmpi plot run.jsonl --output run.svg\n\n" + exit_codes(
        {
            0: "it is drawn",
            1: "matplotlib is missing, or the file is no trace of one training",
            2: "wrong arguments",
        }
    )
    parser.add_argument("trace", metavar="RUN.jsonl", type=Path, help="of `spotmpi run --trace`")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="where to draw it, as .png, .svg or .pdf (default: RUN.png, beside the trace)",
    )


def main(options: argparse.Namespace) -> int:
    """Draw it, and say what each recovery took. Blocking."""
    if find_spec("matplotlib") is None:
        print(
            "spotmpi plot: matplotlib is needed: python -m pip install matplotlib; "
            "`spotmpi report` does without",
            file=sys.stderr,
        )
        return 1
    from spotmpi.trace import plots  # needs matplotlib

    output: Path = options.output or options.trace.with_suffix(".png")
    if output.suffix not in plots.FORMATS:
        raise UsageError(f"--output {output}: give a name that ends in {', '.join(plots.FORMATS)}")
    if not output.parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.parent}")
    records = alone(options.trace)
    try:
        plots.draw(records, output)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written: {error.strerror}") from error
    for line in described(records):
        print(printable(line))
    print(f"drawn: {output.resolve()}")
    return 0
