"""What several benches' tests need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def fake_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts import a CuPy whose device is none."""
    folder = tmp_path / "cupy"
    folder.mkdir()
    text = "import sys\nfrom tests import fake_cupy\nsys.modules[__name__] = fake_cupy\n"
    (folder / "cupy.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
