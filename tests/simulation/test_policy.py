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


def survey(share: Any, decides: str | None, step: int = 128, **figures: Any) -> dict[str, Any]:
    known = MEASURED.figures() | {"share": share} | figures
    return {
        "event": "survey",
        "step": step,
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


def shown(
    capsys: pytest.CaptureFixture[str], path: str, policy: str
) -> tuple[list[list[str]], str]:
    """The steps of the lines, with what was and what would have been decided; and the last line."""
    assert main(["simulate", "policy", path, "--policy", policy]) == 0
    _, *lines, empty, last = capsys.readouterr().out.splitlines()
    assert empty == ""
    return [[one.split()[0], *map(str.strip, one.split("|")[1:])] for one in lines], last


def test_each_survey_in_which_one_of_them_changes_has_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = survey(0.7, None, 112), survey(0.45, None, 128), survey(0.35, "localsgd:h=8", 144)
    path = trace(tmp_path, *told)
    did = ["144", "ssgd -> localsgd:h=8", "localsgd:h=8"]
    lines, last = shown(capsys, path, "throughputbelow:least=0.4/localsgd:h=8")
    assert lines == [did]
    assert last.endswith("would have decided the same in all 3 surveys; no line: both stayed.")
    lines, last = shown(capsys, path, "throughputbelow:least=0.5/localsgd:h=8")
    assert lines == [["128", "ssgd -> stays", "localsgd:h=8"], did]
    assert last.endswith("would have decided otherwise in 1 of 3 surveys; no line: both stayed.")
    lines, last = shown(capsys, path, "fixed")
    assert lines == [["144", "ssgd -> localsgd:h=8", "stays"]]


def test_what_a_resume_made_void_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does what a new leader tells again."""
    resume = {"event": "resume", "step": 130, "path": "x"}
    before = survey(0.45, None, 112), survey(0.45, "localsgd:h=8", 128), survey(0.2, None, 144)
    path = trace(tmp_path, *before, resume, survey(0.7, None, 144), survey(0.7, None, 144))
    lines, last = shown(capsys, path, "throughputbelow:least=0.4/localsgd:h=8")
    assert [one[0] for one in lines] == ["128"]
    assert last.endswith("otherwise in 1 of 3 surveys; no line: both stayed.")


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
        ([survey(float("inf"), None)], "step 128"),
        ([survey(0.4, None, workers=10**400)], "step 128"),
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
