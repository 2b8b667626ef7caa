"""What several commands print alike: tables, and figures for JSON."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import asdict

from spotmpi.economy.plan.outcomes import Estimate

__all__ = ["columns", "plain"]


def columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """The lines of a table, as wide as it must be; ``right``: the columns of figures."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def plain(figure: Estimate | None) -> dict[str, float | None] | None:
    """For JSON, which has no infinity: null for an end that is not known, and for no figure."""
    if figure is None:
        return None
    return {key: value if math.isfinite(value) else None for key, value in asdict(figure).items()}
