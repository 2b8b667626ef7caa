"""``spotmpi simulate policy``: another policy on the figures of a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi.cli import main
from spotmpi.policies import Best, Metrics, Tried
from spotmpi.simulation.policy import decided
from spotmpi.strategies import SSGD, LocalSGD

MEASURED = Metrics(
    SSGD(),
    steps=128,
    since=120,
    seconds=6.5,
    workers=4,
    hosts=2,
    throughput=25.0,
    share=0.45,
    slowest=1.125,
    loss=0.5,
    noise=None,
    tried={"ssgd": Tried(100.0, 4, 0.0, 1.5), "localsgd:h=8": Tried(180.0, 4, 20.0, 1.25)},
)


def survey(share: Any, decides: str | None, **figures: Any) -> dict[str, Any]:
    known = MEASURED.figures() | {"share": share} | figures
    return {
        "event": "survey",
        "step": 128,
        "strategy": "ssgd",
        "decides": decides,
        "figures": known,
    }


def trace(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "run.jsonl"
    start = {"event": "start", "workers": [0, 1, 2, 3]}
    path.write_text("".join(json.dumps(one) + "\n" for one in (start, *records)))
    return str(path)


def test_figures_are_read_as_they_were_written() -> None:
    figures = json.loads(json.dumps(MEASURED.figures()))
    assert Metrics.of(MEASURED.strategy, figures) == MEASURED


def test_each_survey_has_both_decisions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, survey(0.45, None), survey(0.35, "localsgd:h=8"))
    asked = ["simulate", "policy", path, "--policy"]
    assert main([*asked, "throughputbelow:least=0.4/localsgd:h=8"]) == 0
    assert "would have decided otherwise in 0 of 2 surveys, as it did." in capsys.readouterr().out
    assert main([*asked, "throughputbelow:least=0.5/localsgd:h=8"]) == 0
    _, first, second, _, last = capsys.readouterr().out.splitlines()
    assert first.split("|")[1:] == [" ssgd ", " localsgd:h=8"]
    assert second.split("|")[1:] == [" ssgd -> localsgd:h=8 ", " localsgd:h=8"]
    assert last.endswith("would have decided otherwise in 1 of 2 surveys.")


def test_it_knows_what_was_tried() -> None:
    best = Best([SSGD(), LocalSGD(h=8)])
    assert decided(best, survey(0.45, None)) == "localsgd:h=8"
    assert decided(best, survey(0.45, None, seconds=1.0)) is None


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "has no surveys: that training had no policy"),
        (
            [survey(0.4, None) | {"strategy": "Mine() >> \x1b[2J"}],
            "follows Mine() >> ?[2J in step 128",
        ),
        ([survey("0.4", None)], "the survey of step 128 lacks figures"),
        ([survey(0.4, None, tried={"ssgd": 3})], "the figures of the survey of step 128 are none"),
        ([survey(0.4, None, more=3)], "the figures of the survey of step 128 are none"),
        ([{"event": "survey", "step": 128}], "strategy"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], records: list[Any], said: str
) -> None:
    path = trace(tmp_path, *records)
    assert main(["simulate", "policy", path, "--policy", "best"]) != 0
    heard = capsys.readouterr().err
    assert said in heard
    assert "Traceback" not in heard
