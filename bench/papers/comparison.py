"""A paper's figures beside a model's: one row each, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["STATUSES", "Comparison", "Row", "Status"]

Status = Literal["predicted", "fitted", "restated", "not predictable"]
STATUSES: dict[Status, str] = {
    "predicted": "the row itself had no part in the model's figure",
    "fitted": "a parameter was chosen so that the row, among others, comes out well",
    "restated": "a figure of the paper that is taken as it is, or arithmetic on such figures",
    "not predictable": "no model here says anything about it",
}
"""What may be said of a row, in the order in which one counts them."""


@dataclass(frozen=True)
class Row:
    """One figure of a paper."""

    where: str
    """The table or the section, as the paper numbers them."""
    what: str
    unit: str
    """``h``, ``s``, ``$``, ``%``, ``times``: of both figures; empty where they have none."""
    paper: float | str | None
    """A figure or a cluster; None where the paper says it in words only, or a row stands for a
    whole column."""
    model: float | str | None
    status: Status
    note: str = ""
    """From what it is predicted, or why it is not."""

    @property
    def error(self) -> float | None:
        """How far the model is above the paper: of a percentage in points, else relative (0.1 is
        10 %). None if one of them is missing or is no figure."""
        if not (isinstance(self.paper, float | int) and isinstance(self.model, float | int)):
            return None
        return self.model - self.paper if self.unit == "%" else self.model / self.paper - 1


@dataclass(frozen=True)
class Comparison:
    """All rows of a paper, and what one must know to read them."""

    title: str
    rows: Sequence[Row]
    remarks: Sequence[str]
    """Sentences, each a paragraph."""

    def worst(self, *, points: bool) -> Row | None:
        """The predicted row that is farthest off: among percentages, or among all others."""
        candidates = [
            row
            for row in self.rows
            if row.status == "predicted" and row.error is not None and (row.unit == "%") == points
        ]
        return max(candidates, key=lambda row: abs(row.error or 0), default=None)
