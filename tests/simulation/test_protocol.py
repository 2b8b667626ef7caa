"""``spotmpi simulate protocol``: what it takes, what it says."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from spotmpi.errors import UsageError
from spotmpi.protocol.recovery import DoorState, Lost, Recovery
from spotmpi.simulation import protocol
from spotmpi.simulation.schedules import Campaign
from spotmpi.simulation.search import length
from spotmpi.simulation.training import samples
from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once, check_replicas


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    protocol.add_arguments(parser)
    return protocol.main(parser.parse_args(list(arguments)))


def test_it_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--workers", "3", "--runs", "12", "--seed", "4") == 0
    said = capsys.readouterr()
    assert "12 runs of 3 workers broke no promise" in said.out
    assert said.err == ""


@pytest.mark.matrix
def test_processes_share_a_campaign_and_come_to_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = []
    for jobs in ("1", "3"):
        assert command("--workers", "2-5", "--runs", "31", "--jobs", jobs) == 0
        said.append(capsys.readouterr().out.partition(";")[0])
    assert "31 runs of 2 to 5 workers broke no promise" in said[0]
    assert said[0] == said[1]


def test_many_losses_at_one_moment(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--workers", "40", "--losses", "12", "--runs", "2") == 0
    assert "2 runs of 40 workers broke no promise" in capsys.readouterr().out


@pytest.mark.matrix
def test_a_trace_is_like_that_of_a_real_run(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    for seed in range(10):
        given = "--workers", "4", "--runs", "3", "--seed", f"{seed}", "--trace", f"{file}"
        assert command(*given) == 0
        records = list(trace.read(file))
        assert records[0]["event"] == "start"
        finished = any(record.get("outcome") == "finished" for record in records)
        if finished and (recoveries := [r for r in records if r["event"] == "recovery"]):
            passes = Campaign(4, 4, seed).schedule(2, length).passes
            check_exactly_once(records, samples(4), passes)
            assert check_replicas(records) > 0
            assert all(record["total_ms"] > 0 for record in recoveries)
            return
    pytest.fail("no last run had a recovery and came to its end")


@pytest.mark.matrix
def test_it_shows_what_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {**Recovery.TRANSITIONS, (DoorState.PREPARED, Lost): lambda self, event: []}
    monkeypatch.setattr(Recovery, "TRANSITIONS", wrong)
    file = tmp_path / "trace.jsonl"
    given = "--workers", "4", "--runs", "600", "--jobs", "1", "--trace", str(file)
    assert command(*given) == 1
    said = capsys.readouterr().out
    assert "of --workers 4-4 --seed 0: 4 workers with the seed " in said
    assert "All that it takes: worker " in said
    assert "Hang: " in said
    assert " dies\n" in said
    assert next(trace.read(file))["event"] == "start"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers is 0, expected a number from 1 on, or a range as 2-16"),
        (["--workers", "5-2"], "--workers is 5-2, expected"),
        (["--workers", "many"], "--workers is many, expected"),
        (["--runs", "0"], "--runs is 0, expected at least 1"),
        (["--losses", "-1"], "--losses is -1, expected at least 0"),
        (["--jobs", "0"], "--jobs is 0, expected at least 1"),
        (["--seed", "-1"], "--seed is -1, expected at least 0"),
        (["--trace", "nowhere/at/all"], "the trace nowhere/at/all cannot be written"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command(*arguments)
