"""``spotmpi simulate reproduce``: a paper's figures, and what the models here make of them."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict

from spotmpi.bench.papers import icac19_rows, spotdnn_rows
from spotmpi.bench.papers.comparison import STATUSES, Comparison, Row
from spotmpi.economy.plan.screen import columns

__all__ = ["PAPERS", "add_arguments", "main", "report"]

PAPERS: Mapping[str, Callable[[], Comparison]] = {
    "icac19": icac19_rows.compare,
    "spotdnn": spotdnn_rows.compare,
}
"""What can be reproduced, by the name that one types."""

_WIDTH = 100
"""Columns of a paragraph; the table is as wide as it must be."""
_SHARP = 1000
"""Figures below have five digits, the others two decimals."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi simulate reproduce PAPER [--json]"
    parser.description = (
        "Print every figure of a paper beside the models' figure, the error, and whether it is\n"
        + "\n".join(f"  {status}: {meaning}" for status, meaning in STATUSES.items())
        + "\nPapers:"
        + "\n  icac19: Li et al., Speeding up Deep Learning with Transient Servers, 2019"
        + "\n  spotdnn: Shang et al., spotDNN: Provisioning Spot Instances, IWQoS 2023"
    )
    parser.epilog = "example: spotmpi simulate reproduce icac19"
    parser.add_argument("paper", metavar="PAPER", choices=sorted(PAPERS), help=" or ".join(PAPERS))
    parser.add_argument("--json", action="store_true", help="as one line of JSON")


def main(options: argparse.Namespace) -> int:
    """Print the rows. Less than a second. Returns 0, however large the errors are."""
    comparison = PAPERS[options.paper]()
    print(_as_json(options.paper, comparison) if options.json else report(comparison))
    return 0


def report(comparison: Comparison) -> str:
    """The table, how many rows are what, the worst errors, and the remarks. Pure."""
    head = ("where", "what", "unit", "paper", "model", "error", "status", "from")
    cells = [head, *(_cells(row) for row in comparison.rows)]
    figures = range(head.index("paper"), head.index("error") + 1)
    lines = [comparison.title, "", *columns(cells, right=figures)]
    lines += ["", _counts(comparison)]
    for points, of in ((False, "worst error"), (True, "worst error of a percentage")):
        row = comparison.worst(points=points)
        if row is not None:
            lines.append(f"{of} of predicted rows: {_error(row)} ({row.where}, {row.what})")
    for remark in comparison.remarks:
        lines += ["", *textwrap.wrap(remark, _WIDTH)]
    return "\n".join(lines)


def _counts(comparison: Comparison) -> str:
    counts = Counter(row.status for row in comparison.rows)
    parts = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    return f"{len(comparison.rows)} rows: {parts}"


def _cells(row: Row) -> tuple[str, ...]:
    paper = f"{row.paper:g}" if isinstance(row.paper, float | int) else row.paper or ""
    model = "" if row.model is None else _figure(row.model)
    return row.where, row.what, row.unit, paper, model, _error(row), row.status, row.note


def _figure(figure: float | str) -> str:
    if isinstance(figure, str):
        return figure
    return f"{figure:.5g}" if abs(figure) < _SHARP else f"{figure:.2f}"


def _error(row: Row) -> str:
    if isinstance(row.paper, str) and row.model is not None:
        return "same" if row.paper == row.model else "differs"
    if row.error is None:
        return ""
    return f"{row.error:+.1f} points" if row.unit == "%" else f"{100 * row.error:+.1f} %"


def _as_json(paper: str, comparison: Comparison) -> str:
    rows = [{**asdict(row), "error": row.error} for row in comparison.rows]
    return json.dumps(
        {
            "paper": paper,
            "title": comparison.title,
            "rows": rows,
            "remarks": list(comparison.remarks),
        }
    )
