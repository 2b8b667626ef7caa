"""`spotmpi bench calls`: what is said of its times, and that it runs. Never a timing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench.measuring.network import missing
from spotmpi.bench.pytorch import calls as bench
from spotmpi.bench.pytorch.calls import CALLS, Measured
from spotmpi.bench.scripts import gloo

SIDES = {"spotmpi": [0.004, 0.005], "gloo": [0.005, 0.006]}


def test_a_call_is_compared_with_gloo_s() -> None:
    row, aim = bench.lines(Measured(2, 1, 1, "barrier", SIDES))
    assert str(row).split()[:5] == ["2", "barrier", "|", "4.50", "5.50"]
    assert aim == ("at most 1 of gloo's barrier: 0.82", True)


def test_without_torch_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: False)
    assert cli.main(["bench", "calls"]) == 2
    assert "spotmpi[torch]" in capsys.readouterr().err


def test_less_than_a_worker_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: True)
    assert cli.main(["bench", "calls", "--workers", "0"]) == 2
    assert "--workers and --turns take numbers of at least 1" in capsys.readouterr().err


def test_workers_that_hosts_cannot_share_evenly_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: True)
    monkeypatch.setattr(bench, "missing", lambda: None)
    assert cli.main(["bench", "calls", "--workers", "4", "6", "--hosts", "4"]) == 2
    assert "--hosts takes a number that divides each of --workers" in capsys.readouterr().err
    assert cli.main(["bench", "calls", "--workers", "4", "6", "--groups", "4"]) == 2
    assert "--groups takes a number that divides each of --workers" in capsys.readouterr().err


def test_where_hosts_cannot_be_made_it_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gloo, "there", lambda: True)
    monkeypatch.setattr(bench, "missing", lambda: "you are not root")
    assert cli.main(["bench", "calls", "--hosts", "2"]) == 2
    assert "hosts cannot be made here: you are not root" in capsys.readouterr().err


@pytest.mark.matrix
@pytest.mark.parametrize(("workers", "hosts", "groups"), [(2, 1, 1), (2, 2, 1), (4, 1, 2)])
def test_all_calls_run_on_both_sides(tmp_path: Path, workers: int, hosts: int, groups: int) -> None:
    pytest.importorskip("torch", reason="no torch: python -m pip install torch")
    if hosts > 1 and (why := missing()) is not None:
        pytest.skip(f"hosts cannot be made here: {why}")
    file = tmp_path / "calls.json"
    options = ["--workers", workers, "--hosts", hosts, "--groups", groups, "--turns", 2]
    assert cli.main(["bench", "calls", *map(str, options), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["failures"] == []
    assert [cell["call"] for cell in found["cells"]] == [*CALLS]
    for cell in found["cells"]:
        assert all(len(cell[f"{side}_s"]) == 2 and min(cell[f"{side}_s"]) > 0 for side in SIDES)
