"""Four workers and forty are shown in a table that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotmpi.launch import messages
from spotmpi.launch.commands.status_table import numbers, table
from spotmpi.launch.control_messages import Report, SavedAt
from spotmpi.launch.head.fates import JobEnding, WorkerState
from spotmpi.launch.head.status_report import StatusReport
from spotmpi.launch.wording import duration

LOST = WorkerState("h2", "revoked", "host h2 was lost: the connection was closed")


def status(fates: list[WorkerState], ending: JobEnding | None = None, **more: Any) -> Report:
    """A report on workers whose ends came at the same moment."""
    standing = StatusReport("train.py", ["--passes", "3"])
    report = standing.report("spotmpi-0123456789ab", fates, {}, {}, ending)
    moment = "2026-11-21T14:10:02+01:00"
    workers = tuple(replace(one, when=moment if one.how else None) for one in report.workers)
    fixed = {"since": "2026-11-21T14:02:10+01:00", "seconds": 753.2, "host": "head", "launcher": 7}
    return replace(report, **{"workers": workers, **fixed, **more})


def training(host: str) -> WorkerState:
    return WorkerState(host, "training", "")


def test_four_workers() -> None:
    fates = [training("h1"), training("h1"), training("h2"), LOST]
    kept = SavedAt(120, "/runs/a/step-120")
    assert table(status(fates, step=124, generation=1, checkpoint=kept)).splitlines() == [
        "job         spotmpi-0123456789ab: train.py --passes 3",
        "since       2026-11-21 14:02:10 (12 min 33 s), launcher 7 on head",
        "training    step 124, generation 1",
        "checkpoint  step 120 in /runs/a/step-120",
        "workers     4: 3 training, 1 revoked",
        "",
        "HOST  WORKERS  STATE",
        "h1    0-1      training",
        "h2    2        training",
        f"      3        revoked ({LOST.how}) at 2026-11-21 14:10:02",
    ]


def test_the_processes_of_workers_that_live_stand_beside_them() -> None:
    standing, fates = StatusReport("train.py"), [training("h1")] * 6 + [training("h2"), LOST]
    for worker in range(7):
        standing.told(worker, messages.Runs(4711 + 2 * worker))
    assert table(standing.report("spotmpi-00", fates, {}, {})).splitlines()[-4:] == [
        "HOST  WORKERS  PROCESSES               STATE",
        "h1    0-5      4711,4713,4715,4717,..  training",
        "h2    6        4723                    training",
        f"      7                                revoked ({LOST.how})",
    ]


def test_a_job_that_waits_for_hosts_has_a_step_to_go_on_from() -> None:
    standing = StatusReport("train.py", since=0.0, resumed=70)
    report = standing.report("spotmpi-night", [], {}, {})
    assert table(report).splitlines()[2:] == [
        "training    step 70, generation 0",
        "checkpoint  none",
        "workers     none: it waits for hosts",
    ]
    assert report.seconds > 1e9, "since the job began, and not its last start"


def test_how_far_and_how_fast_it_goes() -> None:
    more = {"steps_in_all": 5000, "loss": 0.31274, "steps_per_second": 12.3}
    shown = table(status([training("h1")], step=124, seconds_to_go=396.0, **more)).splitlines()
    assert shown[2:5] == [
        "training    step 124 of 5000, loss 0.3127, generation 0",
        "pace        12.3 steps/s, 6 min 36 s to go",
        "checkpoint  none",
    ]
    ended = table(status([training("h1")], JobEnding(0, ""), steps_per_second=12.3))
    assert "pace" not in ended


def test_the_strategy_and_why_it_was_chosen() -> None:
    standing = StatusReport("train.py")
    for said, line in (
        (messages.Follows(0, "ssgd", None), "strategy    ssgd"),
        (
            messages.Follows(8, "adpsgd:control=64", "because"),
            "strategy    adpsgd:control=64: because",
        ),
        (  # told again, by the next leader
            messages.Follows(8, "adpsgd:control=64", None),
            "strategy    adpsgd:control=64: because",
        ),
        (messages.Follows(9, "ssgd", None), "strategy    ssgd"),
    ):
        standing.told(0, said)
        report = standing.report("spotmpi-0123456789ab", [training("h1")], {}, {})
        assert table(report).splitlines()[3] == line


def test_forty_workers_of_one_fate_on_each_host_have_a_row_a_host() -> None:
    shown = table(status([training(f"h{worker // 4}") for worker in range(40)])).splitlines()
    assert len(shown) == 7 + 10
    assert shown[-1] == "h9    36-39    training"


def test_where_there_is_little_room_hosts_where_all_is_well_share_a_row() -> None:
    fates = [training(f"h{worker // 2}") for worker in range(40)]
    fates[5] = LOST
    shown = table(status(fates), width=50, height=12).splitlines()
    assert shown[7:] == [
        "(19 hosts)  0-3,6-39  training",
        "h2          4         training",
        "            5         revoked (host h2 was lost: t",
    ]
    assert len(shown) <= 12
    assert all(len(line) <= 50 for line in shown)


def test_what_does_not_fit_is_counted() -> None:
    fates = [WorkerState(f"h{worker}", "revoked", "SIGKILL") for worker in range(40)]
    shown = table(status(fates), height=20).splitlines()
    assert len(shown) == 20
    assert shown[-1] == "(and 28 lines more)"


def test_who_keeps_others_waiting_stands_out() -> None:
    report = status([training("h1"), training("h1")])
    first, last = report.workers

    def waited(seconds: float, quiet: float = 0.0, busy: str | None = None) -> str:
        late = replace(last, awaited_seconds=seconds, quiet_seconds=quiet, busy=busy)
        workers = first, late
        return table(replace(report, workers=workers)).splitlines()[-1]

    assert "others have waited 1 min 1 s for it" in waited(61.0)
    assert waited(0.2) == "h1    0-1      training"
    assert waited(61.0, 50.0).endswith("waited 1 min 1 s for it, which has done nothing for 50 s")
    assert "training, busy: evaluating; others have waited" in waited(61.0, busy="evaluating")


def test_who_starts_and_does_nothing_stands_out() -> None:
    report = status([training("h1"), WorkerState("h1", "starting", "")])
    for seconds, said in [(9.0, "starting"), (61.0, "starting, has done nothing for 1 min 1 s")]:
        late = replace(report.workers[1], quiet_seconds=seconds)
        shown = table(replace(report, workers=(report.workers[0], late)))
        assert shown.splitlines()[-1].endswith(said)


def test_an_end_says_what_its_code_means() -> None:
    shown = table(status([training("h1")], JobEnding(69, "so it ended")))
    ended = "code 69: every worker was revoked, or none can go on"
    assert f"\nended       {ended}\n            so it ended\n" in shown
    assert "code 143: SIGTERM, as Ctrl-C" in table(status([training("h1")], JobEnding(143, "")))
    assert "code 138: ended by signal 10" in table(status([training("h1")], JobEnding(138, "")))


@pytest.mark.parametrize(
    ("workers", "text"), [([], ""), ([3], "3"), ([0, 1], "0-1"), ([5, 0, 2, 1, 9], "0-2,5,9")]
)
def test_ids_are_spans(workers: list[int], text: str) -> None:
    assert numbers(workers) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (61, "1 min 1 s"), (7200, "2 h 0 min"), (90061, "1 d 1 h"), (59.9, "59 s")],
)
def test_times_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text
