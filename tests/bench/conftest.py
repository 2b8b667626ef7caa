"""What several benches' tests need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def fake_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes that a test starts import a CuPy whose device is none. The file is there if any
    did."""
    folder = tmp_path / "cupy"
    folder.mkdir()
    (folder / "cupy.py").write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from tests import fake_cupy\n"
        "Path(__file__).with_name('used').touch()\n"
        "sys.modules[__name__] = fake_cupy\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ['PYTHONPATH']}")
    return folder / "used"
