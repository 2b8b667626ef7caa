"""Tests of `spotmpi.torch`."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def no_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave nothing behind that torch would use again."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
