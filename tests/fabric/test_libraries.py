"""Libraries of this process are found wherever they lie."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from numpy._core import _multiarray_umath

from spotmpi.fabric.libraries import loaded

ELSEWHERE = """
import ctypes, sys
from spotmpi.fabric.libraries import loaded
ctypes.CDLL(sys.argv[1])
(one,) = loaded("libelse where")
print(one._name)
"""


def test_what_is_not_loaded_is_not_found() -> None:
    assert list(loaded("libthat-there-is-not")) == []


def test_a_path_may_hold_spaces(tmp_path: Path) -> None:
    """Any library will do."""
    path = tmp_path / "a folder" / "libelse where.so.1"
    path.parent.mkdir()
    shutil.copy(Path(_multiarray_umath.__file__), path)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.rstrip("\n") == str(path)
