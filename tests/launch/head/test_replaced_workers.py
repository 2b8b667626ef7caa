"""Workers that are revoked on a host that stays, and who is started in their places."""

from __future__ import annotations

import pytest

from spotmpi.launch.head.job_state import JobState
from tests.launch.head.turnover import Job
from tests.saying import said


@pytest.fixture
def job() -> Job:
    return Job().begin()


@pytest.fixture
def replacing() -> Job:
    return Job(replace=True).begin()


def test_one_that_is_revoked_is_replaced_on_its_host(replacing: Job) -> None:
    replacing.end(2)
    ((seconds, again),) = replacing.later
    assert seconds == 0.5
    again()
    assert replacing.brought == [3]
    assert replacing.verdict.host_of(3) == "h2"


def test_unless_that_was_not_asked_for(job: Job) -> None:
    job.end(2)
    assert job.later == []


def test_each_that_is_revoked_is_replaced(replacing: Job) -> None:
    replacing.end(0, 2)
    for _, again in replacing.later:
        again()
    assert [replacing.verdict.host_of(worker) for worker in (3, 4)] == ["h1", "h2"]


def again_and_again(job: Job, worker: int, until: str) -> list[float]:
    """A worker is lost, and then all who replace it, who come so far; the pauses between them."""
    pauses = []
    while True:
        job.end(worker)
        due = [one for one in job.later if one[0] < 60]
        job.later.clear()
        if not due:
            return pauses
        ((seconds, again),) = due
        pauses.append(seconds)
        worker = len(job.states)
        again()
        job.go_on(worker, until)


@pytest.mark.parametrize("until", ["waiting", "trains"])
def test_those_that_do_not_last_are_replaced_ever_later_and_then_not_at_all(
    replacing: Job, until: str
) -> None:
    """As a worker does whose host has not enough memory for it: nobody waits for that for ever."""
    assert again_and_again(replacing, 1, until) == [0.5, 1, 2, 4]
    assert replacing.verdict.lines[-1] == (
        "nobody is started any more in place of worker 6 on h1: 4 times in a row a worker was lost "
        "there before the last newcomer had trained for 60 s, or because it hung; find out why (is "
        "there too little memory?), then have another started by `spotmpi grow --host h1 --workers "
        "1`"
    )


def test_one_that_lasted_gives_its_place_all_tries_again(replacing: Job) -> None:
    replacing.end(1)
    replacing.later.pop()[1]()
    replacing.go_on(3, "trains")
    ((_, lasts),) = [one for one in replacing.later if one[0] == 60]
    lasts()
    replacing.later.clear()
    assert again_and_again(replacing, 3, "trains") == [0.5, 1, 2, 4]


def test_workers_that_die_of_who_replaces_others_are_not_replaced_for_ever() -> None:
    """Who comes needs memory, and the kernel takes it from another one, which has it all."""
    job = Job(replace=True).begin()
    for worker in (0, 1):
        job.turnover.newcomer("h1", 1)  # the host is to have four
        job.go_on(3 + worker, "trains")
        job.later.pop()[1]()  # they have lasted
    pauses = []
    for victim in (0, 1, 3, 4, 5):
        job.end(victim)
        ((seconds, again),) = job.later or ((0.0, lambda: None),)
        job.later.clear()
        pauses.append(seconds)
        again()
        job.go_on(len(job.states) - 1, "trains")
        job.later.clear()
    assert pauses == [0.5, 1, 2, 4, 0]
    assert "nobody is started any more in place of worker 5" in job.verdict.lines[-1]


def test_spares_that_wait_beside_workers_that_die_now_and_then_cost_no_tries() -> None:
    job = Job(spares=1, replace=True).begin()
    job.turnover.asked(4)
    job.come("h1")
    for victim in (0, 1, 3, 4, 5, 6):
        job.end(victim)
        ((seconds, again),) = job.later
        assert seconds == 0.5
        again()
        newest = len(job.states) - 1
        job.go_on(newest, "waiting")
        job.later.clear()
        job.go_on(newest - 1, "trains")  # it was the spare
        job.later.pop()[1]()  # and lasts


def test_the_places_of_one_host_do_not_share_their_tries(replacing: Job) -> None:
    again_and_again(replacing, 0, "waiting")
    assert again_and_again(replacing, 1, "waiting") == [0.5, 1, 2, 4]


def test_nobody_is_replaced_on_a_host_that_is_to_be_taken_away(replacing: Job) -> None:
    replacing.turnover.noticed("h2")
    replacing.end(2)
    assert replacing.later == []
    replacing.end(1)
    replacing.turnover.noticed(None)
    replacing.later.pop()[1]()
    assert len(replacing.states) == 3


def test_one_that_was_to_leave_and_is_killed_for_it_is_not_replaced(replacing: Job) -> None:
    replacing.full = True
    replacing.turnover.part(1, "asked")
    replacing.end(1)
    assert replacing.later == []


@pytest.mark.parametrize("done", [(0, 2), (0,)])
def test_nobody_is_started_for_those_who_have_trained(
    replacing: Job, done: tuple[int, ...]
) -> None:
    """They come to the end together, and say so one after another."""
    replacing.end(1)
    for worker in done:
        replacing.verdict.told(worker, said("done"))
    replacing.later.pop()[1]()
    assert len(replacing.states) == 3


def test_one_that_is_lost_between_two_trainings_is_replaced_in_the_next(replacing: Job) -> None:
    for worker in range(3):
        replacing.tell(worker, "done")
    replacing.end(1)
    replacing.pass_time()
    assert len(replacing.states) == 3
    for worker in (0, 2):
        replacing.tell(worker, "begin")
    replacing.pass_time()
    assert len(replacing.states) == 4


def test_nobody_is_started_while_all_are_to_stop(replacing: Job) -> None:
    """A disk that is full takes that back."""
    replacing.end(1)
    replacing.verdict.asked_to_stop()
    replacing.pass_time()
    assert len(replacing.states) == 3
    replacing.verdict.refused_to_stop(again=False)
    replacing.pass_time()
    assert len(replacing.states) == 4


def test_nobody_is_started_when_too_few_remain_and_all_stop() -> None:
    job = Job(replace=True, least=2).begin()
    job.end(0, 1)
    job.pass_time()
    assert len(job.states) == 3


def test_nobody_is_started_while_mpirun_does_not_answer(replacing: Job) -> None:
    """Who waits for it would have all others stop."""
    replacing.end(1)
    replacing.mute = True
    replacing.pass_time()
    assert len(replacing.states) == 3
    replacing.mute = False
    replacing.pass_time()
    assert len(replacing.states) == 4


def test_nobody_is_started_when_the_job_is_ended_meanwhile(replacing: Job) -> None:
    replacing.end(1)
    replacing.verdict.asked_to_stop()
    replacing.pass_time()
    replacing.verdict.refused_to_stop(again=False)
    replacing.verdict.interrupted("Ctrl-C", 2)
    replacing.turnover.tend()
    assert len(replacing.states) == 3


def test_nobody_is_started_for_those_who_are_lost_with_their_host(replacing: Job) -> None:
    """It comes anew with all its workers."""
    replacing.verdict.lost(2, "host h2 was silent for 203 ms")
    replacing.turnover.gone(2, with_host=True)
    assert replacing.later == []


def test_those_that_hang_are_not_replaced_for_ever_however_long_that_takes(replacing: Job) -> None:
    """Each has held up all others, for much longer than it has to train to have lasted."""
    worker = 1
    for tries in range(5):
        replacing.turnover.hangs(worker)
        replacing.end(worker)
        replacing.pass_time()
        worker = len(replacing.states) - 1
        if tries < 4:
            replacing.go_on(worker, "trains")
            ((_, lasts),) = [one for one in replacing.later if one[0] == 60]
            lasts()
        replacing.later.clear()
    assert len(replacing.states) == 3 + 4
    assert "nobody is started any more in place of worker 6" in replacing.verdict.lines[-1]


def test_what_is_said_of_who_takes_a_place(replacing: Job) -> None:
    """How to be rid of a worker is said once."""
    for lost, comes in ((1, 3), (3, 4)):
        replacing.end(lost)
        replacing.pass_time()
        replacing.go_on(comes, "trains")
        replacing.later.clear()
    kept = [line for line in replacing.verdict.lines if "joined" not in line]
    assert kept == [
        "worker 1 on h1 was revoked (SIGKILL); 2 of 3 workers remain",
        (
            "worker 3 on h1 starts in place of worker 1; to be rid of a worker say `spotmpi shrink "
            "--worker W`, and to have none replaced start the job with --no-replace"
        ),
        "worker 3 on h1 was revoked (SIGKILL); 2 of 3 workers remain",
        "worker 4 on h1 starts in place of worker 3",
    ]


def test_who_asked_for_replacing_is_not_told_how_to_have_none_replaced() -> None:
    verdict = JobState(replace_asked=True)
    verdict.expect(["h1", "h1"])
    for worker in range(2):
        verdict.told(worker, said("ready"))
    verdict.lost(1, "SIGKILL")
    verdict.replaces(verdict.newcomer("h1"), 1)
    assert verdict.lines[-1] == (
        "worker 2 on h1 starts in place of worker 1; to be rid of a worker say `spotmpi shrink "
        "--worker W`"
    )


def test_a_worker_counts_until_another_trains_in_its_place(replacing: Job) -> None:
    replacing.end(1)
    replacing.pass_time()
    replacing.end(3)  # while it starts
    replacing.pass_time()
    replacing.end(2)
    assert replacing.verdict.lines[-1].endswith("; 1 of 3 workers remains")
    replacing.go_on(4, "trains")
    replacing.end(4)
    assert replacing.verdict.lines[-1].endswith("; 1 of 3 workers remains")


def test_a_worker_of_a_new_host_that_came_at_its_second_try_is_one_more(replacing: Job) -> None:
    replacing.end(replacing.come("h3"))
    replacing.pass_time()
    replacing.go_on(4, "trains")
    replacing.end(1)
    assert replacing.verdict.lines[-1].endswith("; 3 of 4 workers remain")


def test_a_host_that_has_no_room_any_more_gets_nobody(replacing: Job) -> None:
    """It was lost and came anew meanwhile, with all its workers."""
    replacing.room = False
    replacing.end(1)
    replacing.later.pop()[1]()
    assert len(replacing.states) == 3
