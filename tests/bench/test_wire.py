"""``bench wire``: real hosts, real steps, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.bench import wire
from spotmpi.bench.measuring import network
from spotmpi.economy.models import calibration
from spotmpi.economy.models.calibration import Measured


def runs(**steps: float) -> list[Measured]:
    return [Measured(int(name[1:]), 1, (seconds,)) for name, seconds in steps.items()]


def test_the_page_says_which_predictions_hold() -> None:
    measured = runs(h1=0.010, h2=0.050, h3=0.19 / 3, h4=0.090)
    fit = calibration.calibrate(measured[:2], 2, 4.0)
    page = wire.page(fit, measured, [3, 4])
    assert [line.split()[0] for line in page[1:]] == list("1234")
    assert page[1].endswith("fitted")
    assert "0.0%  holds" in page[3]  # 10 ms, and 4/3 * 40 ms
    assert "-22.2%  MISSED" in page[4]  # 10 ms, and 1.5 * 40 ms


@pytest.mark.skipif(network.missing() is not None, reason=str(network.missing()))
@pytest.mark.matrix
def test_hosts_are_measured_and_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wire.json"
    monkeypatch.setattr(wire, "_STEPS", 10)
    arguments = ["--hosts", "1", "2", "--predict", "3", "--turns", "1", "--json", str(file)]
    assert cli.main(["bench", "wire", *arguments]) == 0
    answer = json.loads(file.read_text())
    assert [one["hosts"] for one in answer["hosts"]] == [1, 2, 3]
    assert all(len(one["runs"][0]) == wire._STEPS for one in answer["hosts"])
    # 4 MB over a link of 1 Gbit/s take 32 ms at least: the links were limited.
    assert min(answer["hosts"][1]["runs"][0]) > 0.02


def test_no_host_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "wire", "--hosts", "0", "2"]) == 2
    said = capsys.readouterr().err
    assert "all numbers are at least 1" in said or "hosts cannot be made here" in said
