"""What those promise who join and leave is broken on purpose, and found."""

from __future__ import annotations

import pytest

from tests.simulation.broken_promises import PLANNED, Patch
from tests.simulation.hunting import check_that_it_is_found


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.matrix
def test_a_broken_promise_is_found(name: str, monkeypatch: Patch) -> None:
    check_that_it_is_found(name, monkeypatch)
