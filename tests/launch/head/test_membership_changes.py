"""Workers come and leave: the verdict and the orders are real, the crew notes what it is told."""

from __future__ import annotations

import pytest

from spotmpi.launcher_channel import Cause, Order
from tests.launch.head.turnover import LIMITS, Job


@pytest.fixture
def job() -> Job:
    return Job().begin()


# Newcomers.


def test_a_newcomer_is_brought_in_by_one_that_trains(job: Job) -> None:
    job.come("h3")
    job.come("h4")
    assert job.brought == [3]
    assert job.orders == {0: Order(newcomer=3)}
    job.tell(3, "admitted")
    assert job.brought == [3, 4]
    assert job.orders == {0: Order(newcomer=4)}
    job.tell(4, "admitted")
    assert job.orders == {0: Order()}


def test_who_loses_its_sponsor_is_ended_with_the_reason_and_tried_again(job: Job) -> None:
    job.come("h3")
    job.end(0)
    assert job.revoked == [3]
    job.end(3)
    assert "worker 3 on h3 did not join: its sponsor is gone" in job.verdict.lines
    ((seconds, again),) = job.later
    assert seconds == 1
    again()
    assert job.brought == [3, 4]
    assert job.orders[1] == Order(newcomer=4)


def test_a_newcomer_that_could_not_be_brought_in_is_ended(job: Job) -> None:
    job.come("h3")
    job.turnover.gave_up(4, "of somebody else")
    assert job.revoked == []
    job.turnover.gave_up(3, "no room")
    assert job.revoked == [3]
    job.end(3)
    assert "worker 3 on h3 did not join: no room" in job.verdict.lines


def test_what_mpi_has_to_do_for_a_newcomer_must_not_take_for_ever(job: Job) -> None:
    """Its sponsor may hang in it from then on: another one brings in the next."""
    job.come("h3")
    assert job.later == []
    job.turnover.spawning(3)
    ((seconds, look),) = job.later
    assert seconds == LIMITS.spawn
    job.later.clear()
    look()
    assert job.revoked == [3]
    job.end(3)
    assert "worker 3 on h3 did not join: MPI did not bring it in within 12 s" in job.verdict.lines
    job.later.pop()[1]()
    assert job.orders[1] == Order(newcomer=4)
    assert job.orders[0] == Order()


def test_what_scripts_have_to_do_may_take_as_long_as_they_like(job: Job) -> None:
    worker = job.come("h3")
    job.turnover.spawning(worker)
    for event in ("connected", "ready", "knocks", "admitted", "trains"):
        job.tell(worker, event)
    (spawned, look), (lasts, _) = job.later
    assert spawned == LIMITS.spawn < lasts
    look()
    assert job.revoked == []
    assert job.states[worker] == "training"


def test_nobody_is_brought_in_while_mpirun_does_not_answer(job: Job) -> None:
    job = Job(keeps=False).begin()
    job.mute = True
    job.come("h3")
    assert job.orders == {}
    assert "mpirun does not answer any more: nobody can join" in job.verdict.lines[0]
    job.mute = False
    job.turnover.tend()
    assert job.orders == {0: Order(newcomer=3)}
    assert job.verdict.lines[1:] == ["mpirun answers again"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_if_somebody_waits_meanwhile_all_stop_with_a_checkpoint(job: Job, when: str) -> None:
    if when == "after":
        job.mute = True
        job.turnover.tend()
        assert job.orders == {}
    job.come("h3")
    job.mute = True
    job.turnover.tend()
    assert all(job.orders[worker].stop for worker in range(3))
    assert "asked to stop" in job.verdict.lines[-1]
    said = list(job.verdict.lines)
    job.turnover.tend()
    assert job.verdict.lines == said


def test_a_host_s_newcomer_is_tried_four_times_until_the_host_comes_anew(job: Job) -> None:
    for stay in (1, 2):
        worker = job.come("h3", stay)
        for seconds in (1, 2, 4):
            job.end(worker)
            at, again = job.later.pop()
            assert at == seconds
            again()
            worker += 1
        job.end(worker)
        assert job.later == []


def test_nobody_is_tried_again_when_the_job_ends(job: Job) -> None:
    worker = job.come("h3")
    job.verdict.interrupted("Ctrl-C", 2)
    job.end(worker)
    assert job.later == []


def test_so_many_spares_wait_of_those_that_are_asked_for() -> None:
    job = Job(spares=1).begin()
    job.turnover.asked(5)
    job.come("h3")
    job.come("h4")
    assert job.brought == [3]
    job.tell(3, "admitted")
    assert job.brought == [3]
    job.turnover.asked(6)
    job.turnover.tend()
    assert job.brought == [3, 4]


# Notices.


def test_workers_of_a_host_that_is_to_be_taken_away_leave(job: Job) -> None:
    job.turnover.noticed("h1")
    assert job.orders == {0: Order(leave=True), 1: Order(leave=True)}
    assert job.revoked == []


def test_if_nobody_would_be_left_all_stop_together(job: Job) -> None:
    job.turnover.noticed("h1")
    job.turnover.noticed("h2")
    assert all(job.orders[worker].stop for worker in range(3))


def test_without_the_launcher_s_own_host_all_stop(job: Job) -> None:
    job.turnover.noticed(None)
    assert job.orders == dict.fromkeys(range(3), Order(stop=True))


def test_a_notice_before_the_beginning_is_heeded_then() -> None:
    job = Job()
    job.turnover.noticed("h2")
    assert job.orders == {}
    job.begin()
    assert job.orders == {2: Order(leave=True)}


def test_newcomers_of_a_host_that_is_to_be_taken_away_go_at_once_and_are_not_tried_again(
    job: Job,
) -> None:
    waits, learns = job.come("h2"), job.come("h2", until="admitted")
    job.turnover.noticed("h2")
    assert sorted(job.revoked) == [waits, learns]
    job.end(waits, learns)
    assert "worker 3 on h2 did not join: its host is to be taken away" in job.verdict.lines
    assert job.later == []


def test_of_newcomers_nothing_is_said_when_all_were_told_to_stop(job: Job) -> None:
    waits = job.come("h2")
    job.verdict.asked_to_stop("SIGTERM")
    job.turnover.noticed(None)
    assert job.revoked == [waits]
    job.end(waits)
    assert job.states[waits] == "turned away"
    assert job.verdict.lines == [
        "SIGTERM: the workers stop after this step, with a checkpoint",
    ]


def test_a_second_try_that_is_due_after_the_notice_is_left_out(job: Job) -> None:
    job.end(job.come("h2"))
    job.turnover.noticed("h2")
    ((_, again),) = job.later
    again()
    assert job.states[3:] == ["turned away"]


def test_a_host_that_came_back_is_not_the_one_that_was_taken_away(job: Job) -> None:
    job.turnover.noticed("h2")
    job.end(2)
    back = job.come("h2", stay=2, until="trains")
    job.turnover.noticed("h1")
    assert job.orders[0].leave
    assert job.orders.get(back, Order()) == Order()


# Workers that are told to leave.


def test_one_that_trains_leaves_and_what_it_was_to_bring_in_is_tried_again(job: Job) -> None:
    worker = job.come("h3")
    job.turnover.part(0, "asked")
    assert job.orders[0].leave
    assert job.revoked == [worker]


def test_one_whose_order_cannot_be_written_is_ended(job: Job) -> None:
    job.full = True
    job.turnover.part(1, "asked")
    assert job.revoked == [1]
    job.end(1)
    assert job.verdict.lines == ["worker 1 on h1 was revoked (asked); 2 of 3 workers remain"]


def test_one_that_is_lost_before_it_leaves_was_lost_by_what_took_it(job: Job) -> None:
    job.turnover.part(1, "asked")
    job.end(1)
    assert job.verdict.lines == ["worker 1 on h1 was revoked (SIGKILL); 2 of 3 workers remain"]


@pytest.mark.parametrize("until", ["waiting", "admitted"])
def test_one_that_does_not_train_yet_is_ended_and_not_tried_again(job: Job, until: str) -> None:
    worker = job.come("h3", until=until)
    job.turnover.part(worker, "asked")
    assert job.revoked == [worker]
    assert worker not in job.orders
    job.end(worker)
    assert job.verdict.lines[-1] == "worker 3 on h3 did not join: asked"
    assert job.later == []


def test_a_notice_that_comes_between_two_trainings_is_heeded_when_all_are_in_the_next_one(
    job: Job,
) -> None:
    for worker in range(3):
        job.tell(worker, "done")
    job.turnover.noticed("h2")
    for worker in (2, 0):
        job.tell(worker, "begin")
        assert job.orders == {}
    job.tell(1, "begin")
    assert job.orders == {2: Order(leave=True)}


def test_why_a_worker_leaves_is_told_to_the_others(job: Job) -> None:
    job.turnover.part(0, "spotmpi shrink")
    job.turnover.noticed("h2")
    assert job.causes == {
        0: Cause("asked", "spotmpi shrink"),
        2: Cause("notice", "its host is to be taken away"),
    }
