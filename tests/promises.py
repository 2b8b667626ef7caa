"""What tests with real processes promise, each held once by what `python -m pytest` runs.

A test says what it holds: ``@pytest.mark.promise("a join")``. In `REAL` a test without a promise is
of the matrix (``-m matrix``): one more combination of what another one holds.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

__all__ = ["REAL", "sort"]

REAL = ("chaos", "hosts", "slurm")
"""Folders of tests in which all start jobs."""


def sort(items: list[pytest.Item]) -> None:
    """Give to the matrix: tests of `REAL` that hold no promise, and of tests that say which of
    their parameters are the first tier's (``@pytest.mark.first("130")``) the others."""
    here = Path(__file__).parent
    ids: dict[tuple[Path, tuple[str, ...]], set[str]] = defaultdict(set)
    for item in items:
        inside = item.path.relative_to(here).parts if item.path.is_relative_to(here) else ()
        real = bool(inside) and inside[0] in REAL
        first = item.get_closest_marker("first")
        if first is not None:
            ids[item.path, first.args].add(item.callspec.id)
        others = first is not None and item.callspec.id not in first.args
        if others or (real and item.get_closest_marker("promise") is None):
            item.add_marker(pytest.mark.matrix)
    for (path, wanted), known in ids.items():
        if len(known) > 1 and not known.intersection(wanted):
            raise pytest.UsageError(f"{path}: no test has a parameter {wanted}, but {known}")
