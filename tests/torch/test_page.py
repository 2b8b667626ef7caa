"""docs/pytorch.md: what it shows trains, alone and as it says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from tests.docs.pages import DOCS, blocks  # noqa: E402


def test_the_script_that_it_shows_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, _ = blocks((DOCS / "pytorch.md").read_text(encoding="utf-8"), "python")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(compile(script, "pytorch.md", "exec"), found)  # noqa: S102 - our own page
    assert found["opt"].steps == 512
    kept = torch.load("module.pt", weights_only=True)
    assert all(torch.equal(kept[name], one) for name, one in found["module"].state_dict().items())
    x, y, module = found["x"], found["y"], found["module"]
    assert torch.nn.functional.mse_loss(module(x).squeeze(1), y).item() < 2.0


def test_the_script_for_ddp_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    _, script = blocks((DOCS / "pytorch.md").read_text(encoding="utf-8"), "python")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which torch replaces
    found: dict[str, Any] = {}
    exec(compile(script, "pytorch.md", "exec"), found)  # noqa: S102 - our own page
    assert not found["dist"].is_initialized()
    x, y, module = found["x"], found["y"], found["module"]
    assert torch.nn.functional.mse_loss(module(x).squeeze(1), y).item() < 2.0
