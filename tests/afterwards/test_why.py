"""`spotmpi why`: each interruption in a line, of a trace and of a job that runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from spotmpi import cli
from spotmpi.launch.commands import client
from tests.trace.traced import changed, trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in trace()))
    return path


def test_each_interruption_has_a_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", str(file)]) == 0
    first, second, third, head, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("goodput 88.6%: steps advanced in 0.3 of 0.4 s, since 2023-11-1")
    assert second == (
        "a usual step takes 10.0 ms; 1 interruption took more than twice that, and has a cause"
    )
    assert third == "cost by cause: killed 40 ms (once), join 0 ms (once)"
    assert head.split() == ["after", "step", "cause", "workers", "cost"]
    parts = "detection 6.0, agreement 5.0, rebuilding 4.0, retry 25.0 ms"
    assert rows == [
        f"0.15 s    10  killed  1        40 ms  {parts}; SIGKILL; retry",
        "0.25 s    20  join    3         0 ms  pause 1.5 ms",
    ]


def test_the_cost_of_each_cause_is_summed_and_the_dearest_is_first(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = changed(changed(trace(), "step", 15, seconds=0.1), "step", 17, seconds=0.2)
    file.write_text("".join(json.dumps(one) + "\n" for one in slow))
    assert cli.main(["why", str(file)]) == 0
    told = capsys.readouterr().out.splitlines()[2]
    assert told.startswith("cost by cause: unexplained 280 ms (twice), killed 40 ms (once), join")


def job(monkeypatch: pytest.MonkeyPatch, trace: str | None) -> None:
    monkeypatch.setattr(client, "find", lambda name, choose: Path("/x/spotmpi-0123456789ab"))
    monkeypatch.setattr(client, "status", lambda folder: SimpleNamespace(trace=trace))


@pytest.mark.parametrize("words", [[], ["spotmpi-0123456789ab"]])
def test_a_running_job_is_known_by_its_trace(
    file: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job(monkeypatch, str(file))
    assert cli.main(["why", *words]) == 0
    assert "killed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [(None, "writes no trace"), ("/nowhere/t.jsonl", "is not on this host")],
)
def test_a_job_without_a_trace_is_one_sentence(
    trace: str | None,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job(monkeypatch, trace)
    assert cli.main(["why"]) == 1
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_of_several_jobs_one_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Path(f"/x/spotmpi-{number}") for number in (1, 2)]
    monkeypatch.setattr(client, "running", lambda: jobs)
    assert cli.main(["why"]) == 2
    assert "choose by spotmpi why NAME:\n  spotmpi-1" in capsys.readouterr().err


def test_a_name_of_nothing_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", "nothing.jsonl"]) == 2
    assert "there is no trace nothing.jsonl" in capsys.readouterr().err
