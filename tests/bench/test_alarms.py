"""`spotmpi.bench.alarms`: that it would find a false alarm, and that it runs. Never a timing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import pytest

from spotmpi.bench import alarms
from spotmpi.bench.alarms import Alarm, Found
from spotmpi.bench.measuring.network import missing
from spotmpi.bench.scripts import load
from spotmpi.errors import UsageError
from spotmpi.launch.control_messages import Report
from spotmpi.launch.head.fates import WorkerState
from spotmpi.launch.head.status_report import StatusReport
from spotmpi.launch.liveness import WINDOW
from tests.patience import FOUND_SILENT, FOUND_SILENT_S


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    alarms.add_arguments(parser)
    return parser.parse_args(words)


def status(*states: str, how: str = "") -> Report:
    """A report of workers on one host."""
    fates = [WorkerState("h2", state, how) for state in states]
    return StatusReport("train.py").report("spotmpi-00", fates, {}, {})


def found(silences: Sequence[float] = (), **more: Any) -> Found:
    """A run with these silences of one host, and a control that was caught."""
    windows = [{"h1": ms} for ms in silences]
    fields = {"longest": {"h1": max(silences, default=0.0)}, "cut_off": "h4", "out": 210.0}
    return Found({"without": [{"h1": 25.0}], "with": windows}, **fields | {"resumed": 250.0} | more)


@pytest.mark.matrix
def test_a_host_that_is_cut_off_is_found_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (why := missing()) is not None:
        pytest.skip(why)
    file = tmp_path / "alarms.json"
    size = ("--minutes", "0.01", "--hosts", "2", "--slots", "1", "--load", "1")
    code = alarms.main(arguments(*size, *FOUND_SILENT, "--json", str(file)))
    results = json.loads(file.read_text())
    assert results["failures"] == []
    assert results["alarms"] == []
    assert results["cut_off"] == "h2"
    assert 500 < results["out"] < 60_000
    assert 500 < results["resumed"] < 60_000
    for windows in results["silences"].values():
        (window,) = windows
        assert set(window) == {"h1", "h2"}
        assert all(0 < ms <= results["longest"][host] for host, ms in window.items())
    assert results["machine"]["cores"] >= 1
    assert code == (0 if results["out"] <= 2e3 * FOUND_SILENT_S else 1)
    assert "control: h2 was cut off, and thrown out after" in capsys.readouterr().out


def test_a_third_of_the_time_under_load_lies_without_load_in_between() -> None:
    assert alarms.plan(0.001) == [False, True]
    windows = alarms.plan(12)
    assert sum(windows) * WINDOW == 720
    assert 3 * windows.count(False) == windows.count(True)
    turns = [len(list(turn)) * WINDOW for _, turn in groupby(windows)]
    assert turns == [30, 90] * 8


def test_a_worker_counts_once_when_it_is_gone_and_nothing_was_done_to_it() -> None:
    one = Found()
    one.note(status("training", "waiting", "joining"), "without")
    assert one.alarms == []
    one.note(status("training", "revoked", "training", how="silent"), "with")
    one.note(status("revoked", "revoked", "turned away", how="gone"), "without", {0})
    assert one.alarms == [Alarm(1, "h2", "silent", "with"), Alarm(2, "h2", "gone", "without")]


def test_it_fails_by_a_false_alarm_a_failed_job_or_a_control_that_was_missed() -> None:
    assert found([60.0]).holds(200)
    assert not found([60.0], alarms=[Alarm(1, "h2", "silent", "with")]).holds(200)
    assert not found([60.0], failures=["the job ended"]).holds(200)
    assert not found([60.0], out=None, resumed=None).holds(200)
    assert not found([60.0], out=401.0).holds(200)
    assert found([60.0], out=401.0).holds(201)
    assert found([60.0], out=3900.0).holds(None)
    assert not found([60.0], out=4100.0).holds(None)
    assert not found([60.0], resumed=None).holds(200)
    assert not Found().holds(200)


def recovered(worker: int, at: float) -> dict[str, Any]:
    return {"event": "recovered", "at": at, "worker": worker}


def test_the_others_have_gone_on_when_the_last_of_them_has() -> None:
    control = 50.0, frozenset({2, 3}), frozenset({0, 1})
    early, one, two = recovered(1, 40.0), recovered(0, 50.3), recovered(1, 50.25)
    whole, part = Found(), Found()
    alarms.read_trace([early, one, two], whole, *control)
    assert whole.resumed == pytest.approx(300.0)
    alarms.read_trace([early, one], part, *control)
    assert part.resumed is None


def test_a_death_that_only_the_trace_knows_is_an_alarm() -> None:
    told = Found(alarms=[Alarm(1, "h1", "SIGKILL", "with")])
    lost = [{"event": "recovery", "at": at, "lost": ids} for at, ids in ((9, [1, 0]), (50, [2, 3]))]
    alarms.read_trace(lost, told, 50.0, frozenset({2, 3}), frozenset({4}))
    assert [one.worker for one in told.alarms] == [1, 0]


def test_the_page_says_how_near_it_was() -> None:
    room = {"without": [200.0], "with": [200.0, 400.0]}
    *table, control = alarms.page(found([float(ms) for ms in range(1, 201)], allowed=room), 400)
    assert table == [
        "         | longest silence of a host in 5 s, ms |   allowed, ms |  false",
        "load     |       n    median       p99      max | median    max | alarms",
        "without  |       1      25.0      25.0     25.0 |    200    200 |      0",
        "with     |     200     100.5     198.0    200.0 |    300    400 |      0",
        "",
        "  holds   0 false alarms; the longest silence was 200 ms, 50% of --detect-ms 400",
    ]
    assert control == (
        "  holds   control: h4 was cut off, and thrown out after 210 <= 800 ms; "
        "the others went on after 250 ms"
    )


def test_the_page_names_workers_that_went_together_as_one_alarm() -> None:
    gone = [Alarm(worker, "h2", "host h2 was silent for 203 ms", "with") for worker in (4, 5, 6)]
    lines = alarms.page(found([30.0], alarms=[*gone, Alarm(9, "h3", "SIGKILL", "without")]), 200)
    assert lines[2].endswith("|      1")
    assert lines[3].endswith("|      1")
    assert "  FALSE ALARM under load: h2, workers 4-6 (host h2 was silent for 203 ms)" in lines
    assert "  FALSE ALARM without load: h3, workers 9 (SIGKILL)" in lines
    assert any(line.startswith("  MISSED  2 false alarms") for line in lines)


def test_the_page_of_a_job_that_failed_claims_nothing() -> None:
    lines = alarms.page(Found(failures=["the job ended"]), 200)
    assert [line[:8] for line in lines[-2:]] == ["  MISSED"] * 2
    assert "no host was cut off" in lines[-1]


def test_the_load_is_the_same_in_all_runs() -> None:
    def first(number: int) -> list[float]:
        return list(chain.from_iterable(islice(load.turns(number), 3)))

    assert first(0) == pytest.approx([0.02, 0.03, 0.13, 0.18, 0.68, 0.93])
    assert first(1) == pytest.approx([0.1, 0.15, 0.65, 0.9, 0.92, 0.93])
    assert first(3) == first(0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hosts", "1"), "give 2 or more|made by root|not found"),
        (("--minutes", "0"), "more than 0|made by root|not found"),
        (("--minutes", "inf"), "more than 0|made by root|not found"),
        (("--minutes", "nan"), "more than 0|made by root|not found"),
        (("--load", "0"), "more than 0|made by root|not found"),
        (("--json", "/nowhere/x.json"), "no such folder|made by root|not found"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        alarms.main(arguments(*words))
