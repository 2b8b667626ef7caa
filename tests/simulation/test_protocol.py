"""``spotmpi simulate protocol``: what it takes, what it says."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from spotmpi.errors import UsageError
from spotmpi.protocol.recovery import DoorState, Lost, Recovery
from spotmpi.simulation import protocol
from spotmpi.simulation.schedules import STRATEGIES, Campaign
from spotmpi.simulation.search import execute, length
from spotmpi.simulation.training import samples
from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once, check_replicas
from spotmpi.training.steps.switching import Switching


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    protocol.add_arguments(parser)
    return protocol.main(parser.parse_args(list(arguments)))


def test_it_says_how_often_the_strategy_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """In each schedule scripts want it to change; some jobs are over before."""
    given = "--strategy", "changing", "--workers", "2-3", "--runs", "12"
    assert command(*given) == 0
    found = re.search(
        r", (\d+) changes of the strategy \((\d+) of (\d+) pairs\), ", capsys.readouterr().out
    )
    assert found is not None
    changes, pairs, possible = map(int, found.groups())
    schedules = [
        Campaign(2, 3, 0, strategies=STRATEGIES, changing=True).schedule(number, length)
        for number in range(12)
    ]
    assert all(schedule.changes for schedule in schedules)
    there = [tuple(one) for schedule in schedules for one in execute(schedule).switched]
    assert (changes, pairs, possible) == (len(there), len({*there}), 13 * 12)
    assert {one for change in there for one in change} <= {*STRATEGIES}
    assert pairs > 5


def test_a_change_that_one_worker_does_not_carry_out_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = Switching.heard

    def heard(self: Switching, *known: Any) -> None:
        if self._journal._me != 1:
            true(self, *known)

    monkeypatch.setattr(Switching, "heard", heard)
    assert command("--strategy", "changing", "--workers", "3", "--runs", "60", "--jobs", "1") == 1
    said = capsys.readouterr().out
    assert "of --workers 3-3 --seed 0 --strategy changing: 3 workers" in said
    assert "it is to be " in said


def test_it_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--workers", "3", "--runs", "12", "--seed", "4") == 0
    said = capsys.readouterr()
    assert "12 runs of 3 workers broke no promise" in said.out
    assert said.err == ""


@pytest.mark.matrix
@pytest.mark.parametrize("drawn", [[], ["--strategy", "changing"]])
def test_processes_share_a_campaign_and_come_to_the_same(
    drawn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for jobs in ("1", "3"):
        assert command("--workers", "2-5", "--runs", "31", "--jobs", jobs, *drawn) == 0
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
        (["--losses", "3", "--strategy", "changing"], "leave it out, or --strategy changing"),
        (["--losses", "-1"], "--losses is -1, expected at least 0"),
        (["--jobs", "0"], "--jobs is 0, expected at least 1"),
        (["--seed", "-1"], "--seed is -1, expected at least 0"),
        (["--trace", "nowhere/at/all"], "the trace nowhere/at/all cannot be written"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command(*arguments)
