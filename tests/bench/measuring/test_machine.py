from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotmpi.bench.measuring import machine


def test_results_say_what_was_asked_for_and_not_where_files_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = "best:settle=1/ssgd/diloco:h=16"
    asked = ["bench", "accuracy", "--ways", way, "--json"]
    monkeypatch.setattr(sys, "argv", ["spotmpi", *asked, str(tmp_path / "found.json")])
    assert machine.describe()["argv"] == [*asked, "found.json"]
