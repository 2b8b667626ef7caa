"""What campaigns have found once, each with what it takes: a promise, or a check, was wrong."""

from __future__ import annotations

import pytest

from spotmpi.simulation.schedules import Arrival, Change, Kill, LeaveNotice, Refusal, Schedule
from spotmpi.simulation.search import execute

_STREAMING = "diloco:h=6,outer=0.5,momentum=0.75,fragments=2,delay=1,mix=0.5"

FOUND = {
    "a_newcomer_learns_with_the_round_that_is_left_after_a_loop": Schedule(
        8,
        2442853573,
        kills=(Kill(1, 300), Kill(3, 581)),
        arrivals=(Arrival(10, 297),),
        size=99,
        passes=3,
        arrays=3,
        narrow="fp16",
        strategy="easgd:every=2,pull=0.5",
    ),
    "who_dies_had_revoked_the_control_communicator_and_the_others_hear_it_after_a_seal": Schedule(
        7,
        3255869289,
        kills=(Kill(2, 337), Kill(6, 482), Kill(5, 533), Kill(1, 535)),
        arrivals=(Arrival(9, 807),),
        notices=(LeaveNotice(0, 104),),
        min_workers=7,
        size=6,
        passes=3,
        arrays=2,
        strategy="localsgd:h=3",
    ),
    "who_dies_has_changed_its_strategy_after_a_step_that_the_others_take_again": Schedule(
        7,
        1010614251,
        kills=(Kill(0, 264), Kill(4, 272), Kill(2, 279)),
        size=99,
        passes=2,
        checkpoint_every=5,
        arrays=3,
        narrow="fp16",
        changes=(Change(0, "hogwild:control=4"),),
    ),
    "who_is_to_leave_with_the_end_meets_two_losses_one_while_records_are_shared": Schedule(
        4,
        2308180178,
        kills=(Kill(2, 508), Kill(1, 568), Kill(3, 579)),
        arrivals=(Arrival(4, 563), Arrival(5, 122)),
        size=99,
        passes=4,
        narrow="int8",
        strategy="parameterserver:shards=2,control=4",
        changes=(Change(2, "diloco:h=2,outer=0.5,momentum=0.75"), Change(4, "localsgd:h=3")),
    ),
    "a_newcomer_learns_after_a_loop_and_was_told_the_mean_that_the_others_asked_for": Schedule(
        7,
        1890826270,
        kills=(Kill(4, 307), Kill(5, 206), Kill(3, 335)),
        arrivals=(Arrival(7, 25),),
        size=99,
        passes=3,
        checkpoint_every=7,
        narrow="fp16",
        strategy="easgd:every=2,pull=0.5",
    ),
    "the_last_worker_is_to_leave_and_the_disk_refuses_what_it_would_keep_for_long": Schedule(
        8,
        179070576,
        kills=(
            *(Kill(0, 933), Kill(1, 936), Kill(2, 936), Kill(3, 995)),
            *(Kill(4, 1008), Kill(5, 1024), Kill(6, 1030)),
        ),
        notices=(LeaveNotice(7, 1117),),
        size=99,
        passes=5,
        checkpoint_every=5,
        refusals=(Refusal(973, 3085),),
        narrow="bf16",
        strategy=_STREAMING,
    ),
    "a_newcomer_waits_for_the_last_worker_which_is_to_leave_and_cannot": Schedule(
        8,
        179070576,
        kills=(
            *(Kill(0, 933), Kill(1, 936), Kill(2, 936), Kill(3, 995)),
            *(Kill(4, 1008), Kill(5, 1024), Kill(6, 1030)),
        ),
        arrivals=(Arrival(8, 1342),),
        notices=(LeaveNotice(7, 1117),),
        size=99,
        passes=5,
        checkpoint_every=5,
        refusals=(Refusal(973, 3085),),
        narrow="bf16",
        strategy=_STREAMING,
    ),
    "all_go_at_their_own_pace_where_the_trace_has_a_gap": Schedule(
        2,
        1162114396,
        kills=(Kill(0, 326), Kill(1, 331)),
        arrivals=(Arrival(2, 105),),
        size=6,
        passes=8,
        checkpoint_every=5,
        arrays=2,
        strategy=_STREAMING,
        changes=(Change(12, "adpsgd:control=3"),),
    ),
    "a_newcomer_stops_with_the_round_in_which_the_others_have_finished": Schedule(
        5,
        3291243346,
        kills=(Kill(0, 621),),
        arrivals=(Arrival(5, 124),),
        min_workers=5,
        size=6,
        passes=4,
        checkpoint_every=3,
        strategy="localsgd:h=3",
    ),
    "a_loss_while_some_let_others_leave_before_their_steps_and_one_is_a_round_behind": Schedule(
        5,
        1603355090,
        kills=(Kill(2, 984), Kill(0, 1176), Kill(5, 956)),
        arrivals=(Arrival(5, 700), Arrival(6, 871)),
        notices=(LeaveNotice(3, 844),),
        size=99,
        passes=4,
        checkpoint_every=1,
        arrays=3,
        narrow="bf16",
        strategy="localsgd:h=2",
        changes=(Change(7, _STREAMING),),
    ),
}


@pytest.mark.parametrize("schedule", FOUND.values(), ids=FOUND)
def test_it_breaks_no_promise(schedule: Schedule) -> None:
    assert execute(schedule).recoveries > 0
