"""What it means for the job that workers come and leave."""

from __future__ import annotations

import signal

import pytest

from spotmpi.launch.head.fates import JobEnding
from spotmpi.launch.head.job_state import JobState
from spotmpi.settings import Revocation
from tests.launch.head.fed import code, exited, started
from tests.saying import said


def with_newcomer(workers: int = 2) -> tuple[JobState, int]:
    """A job that trains, and one more worker that waits to be brought in."""
    verdict = started(workers)
    worker = verdict.newcomer("there")
    for event in ("begin", "waiting"):
        verdict.told(worker, said(event))
    return verdict, worker


def finished(verdict: JobState, *workers: int) -> None:
    for worker in workers:
        verdict.told(worker, said("done"))
        verdict.ended(worker, exited(0))


def joined(verdict: JobState, worker: int) -> None:
    for event in ("ready", "admitted"):
        verdict.told(worker, said(event))
    verdict.told(worker, said("trains", step=40))


def test_a_newcomer_s_state_is_told_as_it_comes_in() -> None:
    verdict = started(2)
    worker = verdict.newcomer("there")
    states = [verdict.fates[worker].state]
    for event in ("begin", "waiting", "ready", "trains", "done"):
        verdict.told(worker, said(event, **({"step": 4} if event == "trains" else {})))
        states.append(verdict.fates[worker].state)
    assert states == ["starting", "starting", "waiting", "joining", "training", "trained"]
    assert verdict.host_of(worker) == "there"
    assert verdict.lines == ["worker 2 on there has joined: it trains from step 4 on"]


JOINED = "worker 2 on there has joined: it trains from step 40 on"


def test_a_newcomer_is_admitted_first_and_joins_then_whoever_is_heard_first() -> None:
    """Its word and that of those who admitted it take different ways."""
    verdict, worker = with_newcomer()
    joined(verdict, worker)
    assert verdict.lines == []
    fields = {"generation": 1, "step": 30, "workers": 3, "pause_ms": 1.5, "left": []}
    verdict.told(0, said("change", **fields, joined=[worker]))
    admitted, trains = verdict.lines
    assert admitted.startswith("worker 2 on there was admitted before step 30")
    assert trains == JOINED


def test_a_newcomer_whose_admission_nobody_tells_has_joined_all_the_same() -> None:
    for end in (said("done"), None):
        verdict, worker = with_newcomer()
        joined(verdict, worker)
        if end is None:
            verdict.lost(worker, "SIGKILL")
        else:
            verdict.told(worker, end)
        assert verdict.lines[0] == JOINED


@pytest.mark.parametrize(
    "status", [exited(0), exited(1), exited(75), signal.SIGSEGV, signal.SIGKILL]
)
def test_a_newcomer_that_ends_before_it_trains_is_no_failure_of_the_job(status: int) -> None:
    verdict, worker = with_newcomer()
    assert verdict.learning(worker)
    verdict.ended(worker, status)
    assert verdict.turned_away(worker)
    assert not verdict.learning(worker)
    assert verdict.ending is None
    assert len(verdict.lines) == 1
    assert verdict.lines[0].startswith("worker 2 on there did not join: ")
    assert not verdict.stopping
    finished(verdict, 0, 1)
    assert verdict.complete
    assert verdict.conclude() == JobEnding(0, "")


def test_a_newcomer_says_why_it_did_not_join_where_it_can() -> None:
    for event, fields, expected in (
        ("withdrawn", {"why": "no step was left"}, "no step was left"),
        ("failed", {"traceback": "ValueError: x\n"}, "its script failed\nValueError: x"),
        ("left", {"code": 3}, "it ended with code 3"),
    ):
        verdict, worker = with_newcomer()
        verdict.told(worker, said(event, **fields))
        assert verdict.ending is None
        verdict.ended(worker, exited(3))
        assert verdict.lines == [f"worker 2 on there did not join: {expected}"]


def test_a_newcomer_that_was_given_up_is_turned_away_with_the_reason() -> None:
    verdict, worker = with_newcomer()
    verdict.blame(worker, "its sponsor is gone")
    verdict.blame(worker, "MPI says so, as it is being killed")
    verdict.ended(worker, signal.SIGKILL)
    assert verdict.lines == ["worker 2 on there did not join: its sponsor is gone"]


def test_a_newcomer_whose_host_is_lost_is_told_once() -> None:
    verdict, worker = with_newcomer()
    verdict.lost(worker, "host there was lost")
    verdict.lost(worker, "SIGKILL")
    assert verdict.lines == ["worker 2 on there did not join: host there was lost"]


def test_a_job_does_not_wait_for_newcomers_that_do_not_train() -> None:
    verdict, _worker = with_newcomer()
    finished(verdict, 0, 1)
    assert verdict.complete
    assert (verdict.conclude().code, verdict.conclude().sentence) == (0, "")


def test_a_newcomer_that_begins_after_others_have_finished_is_no_proof_against_them() -> None:
    """They have been through it all; it has come too late."""
    verdict = started(2)
    finished(verdict, 0)
    verdict.told(verdict.newcomer("there"), said("begin"))
    assert verdict.ending is None


def test_once_it_trains_a_newcomer_is_a_worker_as_any_other() -> None:
    verdict, worker = with_newcomer()
    joined(verdict, worker)
    assert worker in verdict.training
    finished(verdict, 0, 1)
    assert not verdict.complete
    verdict.ended(worker, signal.SIGKILL)
    assert verdict.lines[-1] == "worker 2 on there was revoked (SIGKILL); 0 of 3 workers remain"
    assert verdict.conclude().sentence == "2 workers finished, 1 was revoked"
    for status, sentence in ((exited(3), "ended with code 3"), (signal.SIGSEGV, "died by SIGSEGV")):
        verdict, worker = with_newcomer()
        joined(verdict, worker)
        verdict.ended(worker, status)
        assert code(verdict) == 1
        assert verdict.ending is not None
        assert f"worker 2 on there {sentence}" in verdict.ending.sentence


def test_newcomers_alone_may_finish_a_job() -> None:
    verdict, worker = with_newcomer()
    joined(verdict, worker)
    for old in (0, 1):
        verdict.ended(old, signal.SIGKILL)
    finished(verdict, worker)
    assert verdict.complete
    assert verdict.conclude().code == 0


def test_newcomers_that_only_wait_do_not_keep_a_job_alive() -> None:
    verdict, _worker = with_newcomer()
    for old in (0, 1):
        verdict.ended(old, signal.SIGKILL)
    assert verdict.complete
    assert verdict.conclude().code == 69


def test_who_left_as_it_was_told_counts_apart_and_is_no_bug() -> None:
    verdict = started(3)
    verdict.told(1, said("parted"))
    verdict.ended(1, exited(0))
    assert verdict.fates[1].state == "left"
    assert verdict.ending is None
    verdict.ended(2, signal.SIGKILL)
    finished(verdict, 0)
    assert verdict.conclude().code == 0
    assert verdict.conclude().sentence == "1 worker finished, 1 was revoked, 1 left"


@pytest.mark.parametrize("status", [exited(3), signal.SIGSEGV, signal.SIGKILL])
def test_who_has_left_may_end_as_it_likes(status: int) -> None:
    """Nobody needs it any more, and its host is about to be taken away."""
    verdict = started(2)
    verdict.told(1, said("parted"))
    if status == exited(3):
        verdict.told(1, said("left", code=3))
    verdict.ended(1, status)
    assert verdict.ending is None
    assert verdict.fates[1].state == "left"
    assert not verdict.lines
    finished(verdict, 0)
    assert verdict.conclude().sentence == "1 worker finished, 1 left"


def test_who_has_left_is_not_lost_with_its_host() -> None:
    verdict = started(2)
    verdict.told(1, said("parted"))
    verdict.lost(1, "host there was lost")
    assert verdict.fates[1].state == "left"
    assert not verdict.lines


def test_a_change_is_told_once() -> None:
    verdict, worker = with_newcomer()
    fields = {"generation": 1, "step": 40, "workers": 2, "pause_ms": 1.5, "joined": [worker]}
    for teller in (0, 1):
        verdict.told(teller, said("change", **fields, left=[]))
    gone = {"generation": 2, "left": [1], "joined": [], "workers": 2}
    for teller in (0, worker):
        verdict.told(teller, said("change", **(fields | gone)))
    came, left = verdict.lines
    assert came == "worker 2 on there was admitted before step 40 (pause 1.5 ms), and learns"
    assert left.startswith("worker 1 on here left before step 40: 2 of 3 workers remain")
    assert left.endswith("(pause 1.5 ms)")


def test_a_loss_and_a_change_of_one_generation_are_both_told() -> None:
    verdict, worker = with_newcomer(3)
    fields = {"generation": 1, "step": 40, "workers": 3}
    verdict.told(0, said("change", **fields, pause_ms=1.5, joined=[worker], left=[]))
    for told in range(3):
        verdict.told(told, said("recovery", **fields, lost=[2], verdict="retry", total_ms=1.5))
    assert [line.partition(" at step")[0] for line in verdict.lines][1:] == [
        "recovered from the loss of worker 2"
    ]


def test_what_several_workers_warn_of_is_said_once() -> None:
    verdict = started(3)
    for worker in range(3):
        verdict.told(worker, said("says", text="the trace ends here"))
    verdict.told(1, said("says", text="a checkpoint cannot be read"))
    assert verdict.lines == [
        "worker 0 on here: the trace ends here",
        "worker 1 on here: a checkpoint cannot be read",
    ]


def test_of_workers_that_do_not_reach_each_other_those_go_who_are_fewer() -> None:
    verdict = started(5)
    verdict.ended(4, signal.SIGKILL)
    one = "does not reach it, though the head does"
    assert verdict.to_part(0, [2, 3, 4]) == {2: f"worker 0 {one}", 3: f"worker 0 {one}"}
    assert verdict.to_part(0, [1, 2, 3]) == {0: "it does not reach 3 workers, though the head does"}
    assert verdict.to_part(0, [4, 99]) == {}
    assert verdict.to_part(4, [0]) == {}


def test_a_rehearsal_whose_step_never_came_is_named() -> None:
    verdict = started(4)
    for worker in (0, 2, 3):
        verdict.told(worker, said("done"))
        verdict.ended(worker, exited(0))
    verdict.ended(1, signal.SIGKILL)
    asked = [Revocation(500, (0, 1, 3)), Revocation(40, (1,))]
    (line,) = verdict.unrevoked(asked)
    assert line.startswith("workers 0, 3 did not die in step 500 (--revoke 0,1,3@500)")


def test_a_worker_that_is_not_in_the_next_training_has_left_early() -> None:
    verdict = started(3)
    for worker in range(3):
        verdict.told(worker, said("done"))
    verdict.told(0, said("begin", training=1))
    verdict.ended(1, exited(0))
    assert code(verdict) == 1
    assert verdict.ending is not None
    assert "worker 1 on here ended early" in verdict.ending.sentence


def test_a_worker_that_has_ended_before_the_others_begin_another_training_has_too() -> None:
    verdict = started(2)
    for worker in range(2):
        verdict.told(worker, said("done"))
    verdict.ended(1, exited(0))
    assert verdict.ending is None
    verdict.told(0, said("begin", training=1))
    assert code(verdict) == 1


def test_a_newcomer_that_goes_past_trainings_has_left_out_none() -> None:
    verdict = started(1)
    newcomer = verdict.newcomer("there")
    verdict.told(0, said("done"))
    verdict.told(0, said("begin", training=1))
    verdict.told(newcomer, said("begin", training=0))
    verdict.ended(newcomer, exited(0))
    assert verdict.ending is None
