"""What the fates of workers mean for the job."""

from __future__ import annotations

import signal

import pytest

from spotmpi.launch.head.job_state import JobState
from tests.launch.head.fed import code, exited, expecting, started
from tests.saying import said


def test_all_that_trained_finish() -> None:
    verdict = started(2)
    for worker in range(2):
        verdict.told(worker, said("done"))
        assert not verdict.complete
        verdict.ended(worker, exited(0))
    assert verdict.complete
    assert verdict.ending is None
    assert (verdict.conclude().code, verdict.conclude().sentence) == (0, "")


def test_scripts_that_never_train_finish() -> None:
    verdict = expecting(2)
    verdict.ended(0, exited(0))
    verdict.ended(1, exited(0))
    assert verdict.conclude().code == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_revoked_worker_is_named_and_the_others_go_on(number: signal.Signals) -> None:
    verdict = started(3)
    verdict.ended(2, number)
    assert verdict.ending is None
    assert verdict.lines == [f"worker 2 on here was revoked ({number.name}); 2 of 3 workers remain"]
    for worker in range(2):
        verdict.told(worker, said("done"))
        verdict.ended(worker, exited(0))
    assert verdict.conclude().code == 0
    assert "2 workers finished" in verdict.conclude().sentence


def test_nobody_left_is_a_code_of_its_own() -> None:
    verdict = started(2)
    verdict.ended(0, signal.SIGKILL)
    verdict.lost(1, "SIGKILL")
    assert verdict.complete
    assert verdict.conclude().code == 69


def test_a_worker_that_ends_after_its_revocation_is_counted_once() -> None:
    verdict = started(2)
    verdict.ended(0, signal.SIGKILL)
    verdict.lost(0, "SIGKILL")
    assert len(verdict.lines) == 1


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGINT, signal.SIGRTMIN])
def test_a_crash_is_a_bug(number: int) -> None:
    verdict = started(2)
    verdict.ended(1, number)
    assert code(verdict) == 1
    assert verdict.ending is not None
    assert verdict.ending.sentence.startswith("worker 1 on here died by ")


@pytest.mark.parametrize("status", [1, 3, 130, 255])
def test_an_exit_code_is_a_bug(status: int) -> None:
    verdict = started(2)
    verdict.ended(1, exited(status))
    assert code(verdict) == 1
    assert verdict.ending is not None
    assert f"worker 1 on here ended with code {status}" in verdict.ending.sentence


def test_the_first_exception_is_the_one_to_show() -> None:
    verdict = started(2)
    verdict.told(1, said("failed", traceback="ValueError: first\n"))
    verdict.told(0, said("failed", traceback="ValueError: second\n"))
    assert code(verdict) == 1
    assert verdict.ending is not None
    assert verdict.ending.text == "worker 1 on here:\nValueError: first\n"


def test_who_ends_in_the_middle_of_a_training_has_left_early() -> None:
    verdict = started(2)
    verdict.ended(0, exited(0))
    assert code(verdict) == 1
    assert verdict.ending is not None
    assert "worker 0 on here ended early" in verdict.ending.sentence


def test_who_never_trains_while_others_do_has_left_early() -> None:
    verdict = expecting(2)
    verdict.told(0, said("begin"))
    verdict.ended(1, exited(0))
    assert code(verdict) == 1


def test_who_had_ended_when_others_began_has_left_early() -> None:
    verdict = expecting(2)
    verdict.ended(1, exited(0))
    assert code(verdict) is None
    verdict.told(0, said("begin"))
    assert code(verdict) == 1
    assert verdict.ending is not None
    assert "worker 1" in verdict.ending.sentence


def test_a_second_training_may_be_left_early_too() -> None:
    verdict = started(2)
    for event in ("done", "begin"):
        for worker in range(2):
            verdict.told(worker, said(event))
    verdict.ended(1, exited(0))
    assert code(verdict) == 1


@pytest.mark.parametrize("events", [[], ["begin"], ["begin", "ready"]])
def test_a_loss_before_all_are_ready_keeps_the_job_from_starting(events: list[str]) -> None:
    verdict = expecting(2)
    for event in events:
        verdict.told(0, said(event))
    verdict.lost(0, "SIGKILL")
    assert code(verdict) == 71


def test_a_round_that_is_over_says_that_all_were_ready() -> None:
    """What another host's worker said of itself may come later, or not at all."""
    verdict = expecting(2)
    for event in ("begin", "ready", "underway"):
        verdict.told(0, said(event))
    assert verdict.started
    verdict.lost(0, "SIGKILL")
    assert code(verdict) is None
    assert [fate.state for fate in verdict.fates] == ["revoked", "training"]


def test_a_loss_in_a_second_training_is_an_ordinary_one() -> None:
    verdict = started(2)
    for event in ("done", "begin"):
        for worker in range(2):
            verdict.told(worker, said(event))
    verdict.lost(0, "SIGKILL")
    assert code(verdict) is None


def test_stopped_workers_ask_to_be_requeued() -> None:
    verdict = started(3)
    verdict.lost(2, "SIGKILL")
    verdict.told(0, said("done"))
    assert not verdict.stopping
    verdict.ended(0, exited(75))
    assert verdict.stopping
    verdict.ended(1, exited(75))
    assert verdict.complete
    assert verdict.conclude().code == 75
    assert "--resume" in verdict.conclude().sentence


def test_mpirun_that_gives_up_before_the_start_could_not_start() -> None:
    verdict = expecting(2)
    verdict.runtime_gave_up()
    assert code(verdict) == 71
    assert verdict.ending is not None
    assert verdict.ending.runtime


def test_mpirun_that_gives_up_later_was_told_to_by_the_script() -> None:
    verdict = started(2)
    verdict.runtime_gave_up()
    verdict.lost(0, "SIGKILL")
    assert code(verdict) == 1


def test_mpirun_that_gives_up_after_the_training_ends_no_script() -> None:
    """As it does when the start of a newcomer fails because the others have ended MPI."""
    verdict = started(2)
    verdict.told(0, said("done"))
    verdict.told(1, said("done"))
    verdict.runtime_gave_up()
    assert verdict.ending is None
    verdict.ended(0, exited(0))
    verdict.ended(1, exited(0))
    assert verdict.complete
    assert (verdict.conclude().code, verdict.conclude().sentence) == (0, "")


def test_mpirun_that_gives_up_while_somebody_trains_ends_the_job() -> None:
    verdict = started(2)
    verdict.told(0, said("done"))
    verdict.runtime_gave_up()
    assert code(verdict) == 1


@pytest.mark.parametrize(("verdict", "expected"), [(expecting(2), 71), (started(2), 69)])
def test_mpirun_that_is_killed_takes_everybody_along(verdict: JobState, expected: int) -> None:
    verdict.runtime_killed("SIGKILL")
    assert code(verdict) == expected


def test_nobody_is_told_to_start_what_the_launcher_starts_again() -> None:
    for again in (False, True):
        killed, lost = started(1, again), started(1, again)
        killed.runtime_killed("SIGKILL")
        lost.lost(0, "SIGKILL")
        for verdict in (killed, lost):
            assert verdict.conclude().code == 69
            assert ("start it again" in verdict.conclude().sentence) is not again


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_to_the_launcher_ends_the_job(number: int, expected: int) -> None:
    verdict = started(2)
    verdict.interrupted("Ctrl-C", number)
    assert code(verdict) == expected


@pytest.mark.parametrize(("keeps", "again"), [(True, True), (False, False)])
def test_where_just_the_agent_was_killed_the_launcher_starts_again(
    keeps: bool, again: bool
) -> None:
    verdict = JobState(keeps)
    verdict.expect(["here"])
    for event in ("begin", "ready"):
        verdict.told(0, said(event))
    verdict.lost(0, "host here was lost", "reset", stays=True)
    ending = verdict.conclude()
    assert (ending.code, ending.again) == (69, again)
    assert ("start it again" in ending.sentence) is not again


def test_while_the_end_cannot_be_kept_that_is_said_at_once_and_each_minute() -> None:
    verdict = started(2)
    for patience in (565.0, 564.0, 554.0, 540.0, 530.0):
        full = {"step": 30, "why": "no room for step 30", "patience": patience}
        verdict.told(0, said("unsaved", **full))
    assert verdict.asked_to_stop("SIGTERM") == (
        "the training is over, and its last checkpoint is waited for"
    )
    then = "or end the job without it: Ctrl-C twice, or `spotmpi stop --now`"
    over = "the training is over, but no room for step 30; make room: it is tried again for"
    assert verdict.lines == [
        f"{over} 10 min more, {then}",
        f"{over} 9 min more, {then}",
        "SIGTERM: the training is over, and its last checkpoint is waited for",
    ]


def test_the_first_cause_counts() -> None:
    verdict = started(2)
    verdict.ended(0, exited(3))
    verdict.interrupted("Ctrl-C", signal.SIGINT)
    assert code(verdict) == 1


def test_a_recovery_is_told_once_with_the_time_of_whoever_goes_on_last() -> None:
    verdict = started(4)
    fields = {"generation": 1, "lost": [1, 3], "step": 40, "workers": 2, "verdict": "retry"}
    verdict.told(0, said("recovery", **(fields | {"total_ms": 13.04})))
    verdict.told(2, said("recovery", **(fields | {"total_ms": 12.0})))
    verdict.told(2, said("recovery", **(fields | {"generation": 2, "lost": [0], "total_ms": None})))
    verdict.lost(2, "SIGKILL")  # who was waited for
    after = "2 of 4 workers remain (retry, generation"
    assert verdict.lines[:2] == [
        f"recovered from the loss of workers 1, 3 at step 40 in 13 ms: {after} 1)",
        f"recovered from the loss of worker 0 at step 40: {after} 2)",
    ]


def test_a_checkpoint_is_told_once() -> None:
    verdict = started(2)
    for worker in range(2):
        verdict.told(worker, said("checkpoint", step=7, path="x"))
    assert verdict.lines == ["checkpoint of step 7 written to x"]


# What is not finite.


def test_what_is_not_finite_any_more_is_told_once_with_who_brought_it() -> None:
    """Whoever is heard first."""
    verdict = started(3)
    for worker in (1, 0, 2):
        verdict.told(worker, said("not_finite", step=7, why="w is NaN", brought=worker == 1))
    verdict.told(2, said("not_finite", step=9, why="w is NaN", brought=True))  # has just learnt
    assert verdict.lines == [
        "step 7: w is NaN",
        "step 7: worker 1 on here brought it to the others",
    ]


def test_if_all_have_brought_it_nobody_is_named() -> None:
    """They may have it from an earlier step."""
    verdict = started(2)
    for worker in range(2):
        verdict.told(worker, said("not_finite", step=7, why="w is NaN", brought=True))
    assert verdict.lines == ["step 7: w is NaN"]


@pytest.mark.parametrize("unkept", [False, True])
def test_a_training_that_ends_not_finite_has_a_code_of_its_own(unkept: bool) -> None:
    verdict = started(2)
    for worker in range(2):
        verdict.told(worker, said("ends_not_finite", why="w is NaN"))
        if unkept:
            verdict.told(worker, said("unkept"))
        verdict.told(worker, said("done"))
        verdict.ended(worker, exited(0))
    assert verdict.ending is None, "what stands behind the training goes on"
    assert verdict.conclude().code == 65
    assert verdict.conclude().sentence.startswith("the training is over, and w is NaN: --resume")
