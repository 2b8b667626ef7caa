"""Sums of a job that programs read: they only grow, also where the job is started again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotmpi.launch import messages
from spotmpi.launch.control_messages import Report, WorkerReport
from spotmpi.launch.showing.figures import Figures, Spent
from tests.launch.commands.test_status_table import status, training
from tests.saying import said

TWO = status([training("h1"), training("h2")])


def report(*seconds: tuple[float, float, float], **more: Any) -> Report:
    """Two workers on two hosts, which have computed, waited and stalled for so long."""
    workers: list[WorkerReport] = list(TWO.workers)
    for worker, (computing, waiting, stalled) in enumerate(seconds):
        workers[worker] = replace(
            workers[worker],
            computing_seconds=computing,
            waiting_seconds=waiting,
            stalled_seconds=stalled,
        )
    return replace(TWO, workers=tuple(workers), **more)


def without(status: Report, *workers: int) -> Report:
    """The same, where these are revoked."""
    gone = [replace(w, state="revoked") if w.worker in workers else w for w in status.workers]
    return replace(status, workers=tuple(gone))


def recovery(generation: int, *lost: int, **more: Any) -> Any:
    fields = {"step": 5, "workers": 1, "verdict": "retry", "total_ms": 20.0}
    return said("recovery", generation=generation, lost=[*lost], **(fields | more))


def test_what_workers_spent_is_kept_when_they_are_gone_and_when_the_job_begins_anew() -> None:
    figures = Figures()
    figures.begins()
    assert figures.spent == Spent()
    figures.look(report((4.0, 2.0, 0.5), (3.0, 3.0, 0.5)), 0.0)
    assert figures.spent == Spent(7.0, 4.0, 1.0)
    figures.look(without(report((5.0, 2.0, 0.5), (3.0, 3.0, 0.5)), 1), 1.0)
    assert figures.spent == Spent(8.0, 4.0, 1.0)
    figures.begins()
    assert figures.spent == Spent(8.0, 4.0, 1.0)
    figures.look(report((1.0, 1.0, 0.0)), 2.0)
    assert figures.spent == Spent(9.0, 5.0, 1.0)


@pytest.mark.parametrize(
    ("heard", "cause"),
    [
        (said("ended", status=9), "killed"),
        (messages.Vanished(), "killed"),
        (messages.HostLost("was silent for 203 ms"), "host"),
        (said("stopped", seconds=0.2), "stopped"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_recovery_has_one_cause_whichever_is_heard_first(
    heard: Any, cause: str, late: bool
) -> None:
    """All members tell of it, and one may recover before the death is heard of."""
    figures = Figures()
    if not late:
        figures.told(1, heard)
    figures.told(0, recovery(1, 1))
    figures.told(2, recovery(1, 1, total_ms=25.0))
    if late:
        assert not figures.recoveries
        figures.told(1, heard)
    figures.told(1, said("ended", status=9))
    assert figures.recoveries == {cause: 1}
    assert figures.recovering == pytest.approx(0.025), "until the last one went on"


def test_who_is_killed_for_a_reason_of_ours_is_lost_for_that() -> None:
    figures = Figures()
    figures.lost(1, "hung")
    figures.told(1, said("ended", status=9))
    figures.told(0, recovery(1, 1))
    assert figures.recoveries == {"hung": 1}


def test_who_ends_by_itself_is_not_lost() -> None:
    figures = Figures()
    figures.told(1, said("ended", status=0))
    figures.told(0, recovery(1, 1))
    assert not figures.recoveries


def test_changes_count_once_and_gradients_in_vain_for_each_worker() -> None:
    figures = Figures()
    for worker in (0, 1):
        change = said(
            "change", generation=1, step=5, workers=3, joined=[2], left=[3, 4], pause_ms=None
        )
        figures.told(worker, change)
    assert (figures.joined, figures.departed) == (1, 2)
    for generation, vain in ((2, 1), (3, 1), (4, 3)):
        for worker in (0, 1):
            figures.told(worker, recovery(generation, 9, recomputed_gradients=vain))
    assert figures.recomputed == 6


def test_samples_of_steps_that_are_taken_again_are_told() -> None:
    figures = Figures()
    figures.begins()
    for step, samples in ((0, 0), (10, 80), (20, 160)):
        figures.look(report(step=step, samples=samples), float(step))
    figures.begins()  # from the checkpoint of step 12
    for step, samples in ((12, 0), (20, 64), (30, 144)):
        figures.look(report(step=step, samples=samples), 30.0 + step)
    assert (figures.samples, figures.samples_again) == (160 + 144, 64)


def test_time_of_workers_and_dollars_of_hosts() -> None:
    figures = Figures(dollars_an_hour=3.6)
    figures.begins()
    figures.look(report((0.0, 0.0, 0.0)), 0.0)
    assert figures.goodput is None
    figures.look(report((8.0, 1.0, 0.0), (8.0, 1.0, 0.0)), 10.0)
    assert figures.worker_seconds == 20.0
    assert figures.dollars == pytest.approx(0.02)
    assert figures.goodput == pytest.approx(0.8)
    figures.look(without(report((12.0, 1.0, 0.0), (8.0, 1.0, 0.0)), 1), 15.0)
    assert figures.worker_seconds == 25.0
    assert figures.dollars == pytest.approx(0.025)
    figures.begins()  # what passes without workers costs nothing here
    figures.look(report(), 100.0)
    assert figures.worker_seconds == 25.0


def test_how_much_of_a_notice_was_needed() -> None:
    figures = Figures()
    figures.begins()
    figures.look(report(), 0.0)
    figures.noticed("h2", 120.0, 1.0)
    figures.noticed("h2", 110.0, 11.0)  # said again
    figures.noticed("h1", None, 1.0)
    figures.look(report(), 2.0)
    assert (figures.notices, figures.notice_given) == (2, 0.0)
    figures.look(without(report(), 1), 4.0)
    assert (figures.notice_given, figures.notice_used) == (120.0, 3.0)
    figures.look(without(report(), 0, 1), 5.0)
    assert (figures.notice_given, figures.notice_used) == (120.0, 3.0), "nobody said how long"
