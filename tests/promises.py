"""What tests with real processes promise, each held once by what `python -m pytest` runs.

A test says what it holds: ``@pytest.mark.promise("a join")``. In `REAL` a test without a promise is
of the matrix (``-m matrix``): one more combination of what another one holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["REAL", "sort"]

REAL = ("chaos", "hosts", "slurm")
"""Folders of tests in which all start jobs."""


def sort(items: list[pytest.Item]) -> None:
    """Give each test of `REAL` that holds no promise to the matrix."""
    here = Path(__file__).parent
    for item in items:
        inside = item.path.relative_to(here).parts if item.path.is_relative_to(here) else ()
        if inside[:1] and inside[0] in REAL and item.get_closest_marker("promise") is None:
            item.add_marker(pytest.mark.matrix)
