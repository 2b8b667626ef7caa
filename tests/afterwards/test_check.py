"""`spotmpi check`: a line for each check, and what the exit code says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.trace.proof import CHECKS
from spotmpi.trace.records import Record
from tests.trace.traced import changed, trace


def write(path: Path, *trainings: list[Record]) -> str:
    lines = [json.dumps(one) for records in trainings for one in records]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_what_holds_is_said_in_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", write(tmp_path / "t.jsonl", trace())]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said] == [["holds", what] for what in CHECKS]


def test_one_check_that_fails_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = changed(trace(), "recovered", 0, digest="f" * 16)
    assert cli.main(["check", write(tmp_path / "t.jsonl", wrong)]) == 1
    said = capsys.readouterr()
    (failed,) = [line for line in said.out.splitlines() if line.startswith("FAILS")]
    assert "replicas" in failed
    assert said.err == ""


def test_trainings_one_after_another_are_each_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = changed(trace(), "recovered", 0, digest="f" * 16)
    assert cli.main(["check", write(tmp_path / "t.jsonl", trace(), wrong)]) == 1
    said = capsys.readouterr().out
    assert said.index("training 1 of 2") < said.index("training 2 of 2") < said.index("FAILS")


@pytest.mark.parametrize("command", ["check", "why", "plot"])
@pytest.mark.parametrize("data", ["", "no trace\n", '{"event":"mended","at":1}\n'])
def test_what_is_no_trace_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, data: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(data)
    assert cli.main([command, str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"spotmpi {command}: ")
    assert said.err.count("\n") == 1


def test_what_a_trace_holds_commands_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = changed(trace(), "end", 0, outcome="\x1b]0;owned\x07")
    hostile = changed(hostile, "cause", 0, cause="\x1b[2J", why="a\nb\u202e")
    path = write(tmp_path / "t.jsonl", hostile)
    assert cli.main(["check", path]) == 0
    assert cli.main(["why", path]) == 0
    assert all(one.isprintable() or one == "\n" for one in capsys.readouterr().out)
