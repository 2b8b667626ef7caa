"""What tests of several kinds of rounds need."""

from __future__ import annotations

from typing import Any

import pytest

import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD
from tests.simulated import params


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker alone."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    with spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD()) as one:
        yield one
