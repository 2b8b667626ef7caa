"""``bench overlap``: real hosts, real steps, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench import overlap
from spotmpi.bench.measuring import network
from spotmpi.bench.overlap import Measured


def test_a_row_says_what_was_hidden() -> None:
    good = Measured(3, "idle", 1.0, alone=[1.0, 1.1, 1.2], after=[2.0], during=[1.19, 1.2, 1.3])
    row, held = overlap.lines(good)
    assert row.split() == ["3", "idle", "|", "1100", "2000", "1200"]
    assert str(held).split() == ["holds", "at", "most", "10%", "longer", "than", "alone:", "9.1%"]
    _, missed = overlap.lines(Measured(3, "busy", 1.0, [1.0], [2.0], [1.2]))
    assert str(missed).split()[0] == "MISSED"


def test_a_script_for_torch_is_held_against_gloo() -> None:
    sides = {"alone": [1.0], "after": [2.0], "during": [1.1]}
    row, held = overlap.lines(Measured(2, "ddp", 1.0, **sides, gloo=[1.2]))
    assert row.split() == ["2", "ddp", "|", "1000", "2000", "1100", "1200"]
    assert str(held).split() == ["holds", "at", "most", "gloo's", "time:", "0.92", "of", "it"]
    _, missed = overlap.lines(Measured(2, "ddp", 1.0, **sides, gloo=[1.0]))
    assert str(missed).split()[0] == "MISSED"


@pytest.mark.skipif(network.missing() is not None, reason=str(network.missing()))
@pytest.mark.matrix
def test_steps_between_hosts_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "overlap.json"
    pytest.importorskip("torch")
    arguments = ["--hosts", "2", "--rate", "10gbit", "--backward", "idle", "ddp", "--turns", "1"]
    assert cli.main(["bench", "overlap", *arguments, "--json", str(file)]) in (0, 1)
    cells = json.loads(file.read_text())["cells"]
    assert [cell["backward"] for cell in cells] == ["idle", "ddp"]
    # A pass lasts as long as the line needs for the array's sum: 82 ms.
    for cell in cells:
        assert min(cell["alone_s"]) > 0.08
        assert min(cell["during_s"]) > 0.08
    assert min(cells[1]["gloo_s"]) > 0.08


def test_without_a_rate_there_is_nothing_to_hide(capsys: pytest.CaptureFixture[str]) -> None:
    for rate in ("unlimited", "fast"):
        assert cli.main(["bench", "overlap", "--rate", rate]) == 2
        said = capsys.readouterr().err
        assert "rate" in said or "hosts cannot be made here" in said
