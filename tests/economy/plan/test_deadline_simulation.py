"""``spotmpi simulate deadline``, as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi import cli

SIXTEEN = ("--cluster", "p3.2xl:16", "--trace", "p3", "--runs", "20")
IN_TIME = (*SIXTEEN, "--work", "6h", "--deadline", "8h")


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(["simulate", "deadline", *arguments]) == code
    streams = capsys.readouterr()
    return streams.out if code == 0 else streams.err


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    answer = json.loads(said(capsys, *arguments, "--json"))["rows"]
    assert isinstance(answer, list)
    return answer


def test_all_policies_are_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, *IN_TIME)
    assert out.startswith("6.00 h of work on p3.2xl:16, within 8.00 h, on the spot nodes of p3\n")
    assert "p3.2xl: spot $0.92, on demand $3.06 an hour; speed grows with" in out
    assert out.count("omniscient, at least") == out.count("uniform progress  ") == 2
    assert "12.0 min    on demand             $303.55       100.0 %  0.0 %            100 %" in out
    assert "a changeover of 36.0 s instead of 12.0 min saves $" in out


def test_nobody_is_late_and_spot_is_cheaper(capsys: pytest.CaptureFixture[str]) -> None:
    for row in rows(capsys, *IN_TIME, "--cluster", "p3.2xl:32", "--deadline", "7h"):
        assert row.get("late", 0) == 0
        assert row["of_on_demand"] < 0.7 or row["policy"] == "on demand"


def test_the_same_seed_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    first = rows(capsys, *IN_TIME, "--seed", "3")
    assert rows(capsys, *IN_TIME, "--seed", "3") == first
    assert rows(capsys, *IN_TIME, "--seed", "4") != first


def test_a_trace_of_one_s_own_in_the_public_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One node for half of each hour."""
    path = tmp_path / "zone.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 1800}, "data": [1, 0] * 48}))
    question = ("--cluster", "p3.2xl:1", "--trace", str(path), "--work", "5h", "--deadline", "8h")
    answer = rows(capsys, *question, "--changeover", "0s", "--runs", "5")
    costs = {row["policy"]: row["dollars"] for row in answer}
    # Half of the time spot, which is 4 h of the 8, the rest on demand.
    assert costs["omniscient, at least"] == pytest.approx(4 * 0.918 + 1 * 3.06, rel=1e-3)
    assert costs["on demand"] == pytest.approx(5 * 3.06)
    for policy in ("greedy", "uniform progress"):
        assert costs["omniscient, at least"] < costs[policy] < 0.7 * costs["on demand"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*SIXTEEN, "--work", "8h", "--deadline", "8h"), "not even on-demand nodes are in time"),
        ((*SIXTEEN, "--work", "0s", "--deadline", "8h"), "--work is 0, expected more"),
        ((*SIXTEEN, "--work", "1", "--deadline", "8h"), "--work is '1', expected a number with"),
        ((*IN_TIME, "--changeover", "1min,x"), "--changeover is 'x', expected a number with its"),
        ((*IN_TIME, "--cluster", "p3.2xl:1,g3.8xl:1"), "has 2 types, and a trace is of one"),
        ((*IN_TIME, "--cluster", "p3.2xl:1001"), "has 1,001 nodes, expected at most 1,000"),
        ((*IN_TIME, "--cluster", "m5.xlarge:1"), "m5.xlarge has no spot price"),
        ((*IN_TIME, "--trace", "p4"), "there is no trace 'p4': name a file, or one that is"),
        ((*IN_TIME, "--trace", "p4.json"), "p4.json cannot be read"),
        ((*IN_TIME, "--runs", "0"), "--runs is 0, expected at least 1"),
    ],
)
def test_impossible_questions_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    err = said(capsys, *arguments, code=2)
    assert err.count("\n") == 1
    assert sentence in err
