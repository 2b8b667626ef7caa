"""What checkpoints promise is broken on purpose, and found."""

from __future__ import annotations

import pytest

from tests.simulation.broken_promises import KEEPING, Patch
from tests.simulation.hunting import check_that_it_is_found


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.matrix
def test_a_broken_promise_is_found(name: str, monkeypatch: Patch) -> None:
    check_that_it_is_found(name, monkeypatch)
