"""The file of a plan: what was asked comes back, and the command line goes before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotmpi import cli
from spotmpi.economy.following import plan_file
from spotmpi.economy.following.nodes import Node
from spotmpi.errors import UsageError

ASKED = (
    *("plan", "--profile", "spotdnn", "--prices", "2023", "--loss", "0.8", "--deadline", "1h"),
    *("--quota", "g3.8xl:8,g4dn.4xl:4", "--lifetime", "exponential:5h", "--replacement", "3min"),
    *("--runs", "40", "--include-ps"),
)


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(list(arguments)) == code
    streams = capsys.readouterr()
    return streams.out if code == 0 else streams.err


def test_what_was_asked_is_asked_again_by_the_file(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    first = said(capsys, *ASKED, "--write", str(file))
    assert said(capsys, "plan", str(file)) == first
    assert plan_file.read(file).nodes == {"g3.8xl": 5}
    assert "within 50.0 min" in said(capsys, "plan", str(file), "--deadline", "50min")
    # What takes the place of each other does not contradict itself.
    other = said(capsys, "plan", str(file), "--iterations", "5000", "--trace", "p3", code=2)
    assert "--trace says when nodes come and go: leave out --notice and --replacement" in other


def test_prices_and_profiles_are_found_from_any_folder(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("name,spot,on_demand\ng3.8xl,0.7,2.3\n")
    Path("ages.csv").write_text("lifetime\n3h\n9h\n")
    here = ("--prices", "mine.csv", "--quota", "g3.8xl:8", "--lifetime", "sample:ages.csv")
    question = [one for one in ASKED[:9] if one not in ("--prices", "2023")]
    first = said(capsys, *question, *here, "--runs", "20", "--write", "cluster.yaml")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = said(capsys, "plan", "../cluster.yaml")
    table, before = (text.partition("cluster  ")[2] for text in (again, first))
    assert table
    assert table == before


def test_hosts_are_told_by_type_and_market(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text('asked: {}\nhosts: {h1: g3.8xl, "h2": "p3.2xl on demand"}\n')
    assert plan_file.read(file).hosts == {
        "h1": Node("g3.8xl"),
        "h2": Node("p3.2xl", on_demand=True),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("asked: {profil: x}\n", "line 1: asked.profil is no option of spotmpi plan"),
        ("asked: {loss: low}\n", "asked.loss is 'low', expected a number"),
        ("asked: {include_ps: maybe}\n", "asked.include_ps is 'maybe', expected true or false"),
        ("nodes: K80\nasked: {}\n", "line 1: nodes is 'K80', expected types and numbers"),
        ("prices: x\n", "prices is not known here"),
        ("written: 2026-01-01\n", "there is no asked, which is needed"),
    ],
)
def test_what_is_wrong_in_it_is_said_with_the_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        plan_file.read(file)
    assert sentence in str(caught.value)


def test_without_a_plan_the_question_must_be_whole(capsys: Any) -> None:
    err = said(capsys, "plan", "--profile", "spotdnn", code=2)
    assert "--prices is missing; say it, or name a plan that --write has written" in err


def test_no_plan_is_not_written(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    said(capsys, *ASKED, "--deadline", "5min", "--write", str(file), code=3)
    assert not file.exists()
    wrong = said(capsys, *ASKED, "--write", str(tmp_path / "no" / "c.yaml"), code=2)
    assert "cannot be written: No such file or directory" in wrong
