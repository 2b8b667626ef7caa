"""``spotmpi simulate reproduce``: what is printed of rows, and how it is counted."""

from __future__ import annotations

import argparse
import json

import pytest

from spotmpi.bench.papers import reproduce
from spotmpi.bench.papers.comparison import Comparison, Row

SMALL = Comparison(
    "A paper",
    [
        Row("Table 1", "a cost", "$", 2.0, 1.9, "predicted", "its time"),
        Row("Table 1", "another cost", "$", 2.0, 2.05, "predicted"),
        Row("Table 12", "a share", "%", 50.0, 61.5, "predicted"),
        Row("text", "a time", "s", 2549.02, 5098.04, "fitted"),
        Row("text", "in words", "times", None, 1.25, "predicted"),
        Row("text", "a guess", "%", 3.0, None, "not predictable", "no model of it"),
    ],
    ["A remark. " * 20],
)


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spotmpi simulate reproduce")
    reproduce.add_arguments(parser)
    return parser.parse_args(arguments)


def test_an_error_is_relative_or_in_points() -> None:
    errors = [row.error for row in SMALL.rows]
    assert errors[:4] == pytest.approx([-0.05, 0.025, 11.5, 1.0])
    assert errors[4:] == [None, None]


def test_the_worst_error_is_that_of_a_predicted_row() -> None:
    assert SMALL.worst(points=False) == SMALL.rows[0]
    assert SMALL.worst(points=True) == SMALL.rows[2]
    fitted_only = Comparison("", SMALL.rows[3:], [])
    assert fitted_only.worst(points=False) is fitted_only.worst(points=True) is None


def test_the_table_is_aligned_and_summed_up() -> None:
    lines = reproduce.report(SMALL).splitlines()
    assert lines[:8] == [
        "A paper",
        "",
        "where     what          unit     paper    model         error  status           from",
        "Table 1   a cost        $            2      1.9        -5.0 %  predicted        its time",
        "Table 1   another cost  $            2     2.05        +2.5 %  predicted",
        "Table 12  a share       %           50     61.5  +11.5 points  predicted",
        "text      a time        s      2549.02  5098.04      +100.0 %  fitted",
        "text      in words      times              1.25                predicted",
    ]
    guess = "text      a guess       %            3                         not predictable  "
    assert lines[8:13] == [
        f"{guess}no model of it",
        "",
        "6 rows: 4 predicted, 1 fitted, 1 not predictable",
        "worst error of predicted rows: -5.0 % (Table 1, a cost)",
        "worst error of a percentage of predicted rows: +11.5 points (Table 12, a share)",
    ]
    assert all(len(line) <= 100 for line in lines[13:])
    assert " ".join(lines[14:]).split() == SMALL.remarks[0].split()


def test_of_clusters_it_is_said_whether_they_are_the_same() -> None:
    rows = [
        Row("Table 1", "a plan", "", "a:1", "a:1", "predicted"),
        Row("Table 1", "another", "", "a:1", "b:2", "predicted"),
    ]
    lines = reproduce.report(Comparison("A paper", rows, [])).splitlines()
    assert [line.split()[-3:] for line in lines[3:5]] == [
        ["a:1", "same", "predicted"],
        ["b:2", "differs", "predicted"],
    ]
    assert Comparison("", rows, []).worst(points=False) is None


def test_icac19_is_printed_with_its_fit_and_its_worst_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert reproduce.main(options("icac19")) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "86 rows: 58 predicted, 4 fitted, 12 restated, 12 not predictable" in printed
    assert "worst error of predicted rows: +10.2 % (III-G, speed, 8 V100, 2 servers / 1)" in printed
    assert "-11.7 points (Table IV, 2 K80, 1 revoked: longer)" in printed
    assert "one update takes the parameter server 22.3 ms" in printed
    assert "one station that is twice as fast" in printed


def test_json_is_one_line_with_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(options("icac19", "--json")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert set(told) == {"paper", "title", "rows", "remarks"}
    assert told["paper"] == "icac19"
    assert len(told["rows"]) == 86
    names = {"where", "what", "unit", "paper", "model", "error", "status", "note"}
    assert all(set(row) == names for row in told["rows"])
    first = told["rows"][0]
    assert first["error"] == pytest.approx(first["model"] / first["paper"] - 1)
    assert len(told["remarks"]) == 4


def test_a_paper_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("icac20")
    assert "icac19" in capsys.readouterr().err
