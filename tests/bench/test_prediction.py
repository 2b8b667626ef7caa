"""`spotmpi.bench.prediction`: that it would find a wrong prediction, and that it runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from spotmpi.bench import prediction
from spotmpi.bench.measuring import machine
from spotmpi.bench.prediction import Found
from spotmpi.economy.models.calibration import Measured
from spotmpi.economy.models.ring import HostType
from spotmpi.errors import UsageError
from spotmpi.launch.processes import cores


def found(eight: float) -> Found:
    """A script that is as the model has it, but for its runs with 8 workers."""
    host = HostType(2, cores(), 0.010, 0.002)
    runs = [Measured(1, w, [host.step(w, 1, 4.0)] * 5) for w in (1, 2, 4)]
    return Found("x", 4.0, [*runs, Measured(1, 8, [eight * host.step(8, 1, 4.0)])], [0.0] * 4)


def test_a_prediction_that_is_right_holds() -> None:
    assert found(1.0).error(8) == pytest.approx(0, abs=1e-9)
    assert "holds" in prediction.page(found(1.0), 8)[-1]


def test_a_prediction_that_is_wrong_is_found() -> None:
    assert found(1.25).error(8) == pytest.approx(-0.2)
    lines = prediction.page(found(1.25), 8)
    assert "-20.0 %" in lines[1]
    assert "MISSED" in lines[-1]


def test_what_is_predicted_is_not_looked_at() -> None:
    assert found(1.0).predicted(8) == found(9.0).predicted(8)
    assert found(1.0).fit(8).error == found(9.0).fit(8).error


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    prediction.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.matrix
def test_it_measures_predicts_and_writes_all_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "profile.json"
    monkeypatch.setattr(prediction, "_PATIENCE", 0.0)
    words = ("--workers", "1", "2", "--predict", "3", "--turns", "1", "--scripts", "digits")
    assert prediction.main(arguments(*words, "--json", str(file))) == 0
    results = json.loads(file.read_text())
    assert results["machine"]["cores"] >= 1
    (script,) = results["scripts"]
    assert [run["workers"] for run in script["runs"]] == [1, 2, 3]
    assert all(second > 0 for run in script["runs"] for second in run["seconds"])
    assert all(0 <= run["busy_before"] <= 1 for run in script["runs"])
    assert script["error"] == pytest.approx(script["predicted_s"] / script["measured_s"] - 1)
    assert "3 workers: predicted" in capsys.readouterr().out


def test_wrong_arguments_are_refused_before_anything_starts(tmp_path: Path) -> None:
    for words in (
        ["--workers", "0", "1"],
        ["--turns", "0"],
        ["--predict", "4"],
        ["--workers", "2"],
    ):
        with pytest.raises(UsageError, match="--workers takes two numbers or more"):
            prediction.main(arguments(*words))
    with pytest.raises(UsageError, match="no such folder"):
        prediction.main(arguments("--json", str(tmp_path / "none" / "x.json")))


def test_how_busy_the_cores_are_is_a_share() -> None:
    assert 0 <= machine.busy(0.05) <= 1
