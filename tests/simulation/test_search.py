"""Campaigns hold what a training promises; what is broken on purpose is found (`hunting`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spotmpi.fabric.sim import newcomers
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice
from spotmpi.launch.head.admission_queue import Growth
from spotmpi.protocol.recovery import MESSAGES_PER_LOSS
from spotmpi.simulation.schedules import Campaign, Schedule
from spotmpi.simulation.search import Outcome, execute, length, outcome_of, search, shrink
from spotmpi.training import exchange
from tests.simulation.broken_promises import Patch


def campaign(least: int, most: int, runs: int, seed: int = 1) -> list[Outcome]:
    """What all of these came to; a schedule that fails is shown with what it needs to."""
    outcomes: list[Outcome] = []
    drawn = Campaign(least, most, seed)
    failing = search(drawn, range(runs), lambda _, outcome: outcomes.append(outcome))
    assert failing is None, shrink(drawn.schedule(failing, length))
    return outcomes


@pytest.mark.parametrize(
    ("least", "most", "runs", "alive", "taught"),
    [
        # One worker: its death ends the run, and with it what a newcomer could learn.
        (1, 1, 80, 0.1, 0.1),
        (2, 3, 30, 0.5, 0.1),
        (2, 3, 200, 0.5, 0.1),
        (4, 8, 20, 0.5, 0.1),
        (4, 8, 150, 0.5, 0.1),
        (16, 16, 15, 0.5, 0.1),
    ],
)
@pytest.mark.first("2-3-30-0.5-0.1", "4-8-20-0.5-0.1")
def test_no_schedule_breaks_a_promise(
    least: int, most: int, runs: int, alive: float, taught: float
) -> None:
    outcomes = campaign(least, most, runs)
    assert len(outcomes) == runs
    assert sum(outcome.recoveries for outcome in outcomes) > runs / 4
    assert sum(outcome.survivors for outcome in outcomes) > runs * least * alive
    assert sum(outcome.graduates for outcome in outcomes) > runs * taught


@pytest.mark.parametrize(("workers", "losses"), [(8, 3), (64, 3), (64, 12)])
def test_messages_are_bounded_by_the_losses_and_not_by_the_workers(
    workers: int, losses: int
) -> None:
    kills = [Kill((7 * i + 3) % workers, 25 * workers + i) for i in range(losses)]
    outcome = execute(Schedule(workers, 5, tuple(kills)))
    assert outcome.survivors == workers - losses
    assert 0 < outcome.worst_messages <= 2 * MESSAGES_PER_LOSS


@pytest.mark.matrix
def test_hundreds_of_workers_recover() -> None:
    kills = tuple(Kill(worker, 5_000) for worker in (0, 125, 126))
    assert execute(Schedule(250, 2, kills, passes=1)).survivors == 247


def test_all_workers_may_die() -> None:
    kills = tuple(Kill(worker, 100 + worker) for worker in range(3))
    assert execute(Schedule(3, 0, kills)).survivors == 0


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("step", [9, pytest.param(2, marks=pytest.mark.matrix)])
def test_a_newcomer_or_whoever_brings_it_in_may_die_at_any_event(step: int, victim: int) -> None:
    """From when it comes until it trains; worker 0 is its sponsor, and 1 looks on."""
    calm = Schedule(2, 3, arrivals=(Arrival(2, 40),))
    assert execute(calm).graduates == 1
    for at in range(40 + victim, 180, step):
        schedule = replace(calm, kills=(Kill(victim, at),))
        outcome = outcome_of(schedule)
        assert isinstance(outcome, Outcome), f"{schedule}: {outcome}"
        assert outcome.survivors >= 1, schedule


def test_what_a_newcomer_was_told_may_come_to_nothing_if_it_is_turned_away() -> None:
    """Worker 3 dies as well, and 4 comes in its place: it is told what was done once by a sponsor
    that dies, as does the only one that knew it."""
    arrivals = Arrival(3, 105), Arrival(5, 2)
    schedule = Schedule(3, 2751624573, (Kill(0, 125), Kill(1, 198)), arrivals, passes=5)
    assert execute(schedule).survivors


def left_out(victim: int) -> Iterator[int]:
    """When ``victim`` must die for a newcomer that was asked for never to train, in a job that is
    long enough for several tries; worker 0 is its first sponsor, and 3 the first try."""
    calm = Schedule(3, 2, arrivals=(Arrival(3, 40),), passes=8)
    deaths = (replace(calm, kills=(Kill(victim, at),)) for at in range(40, 240, 8))
    return (one.kills[0].at for one in deaths if not execute(one).graduates)


@pytest.fixture
def no_spawn_fails(monkeypatch: Patch) -> None:
    """By itself, or by taking too long: each request is tried four times and no more."""
    delays = Schedule.delays.fget
    assert delays is not None
    quick = property(lambda self: replace(delays(self), spawn=0.02))
    monkeypatch.setattr(Schedule, "delays", quick)
    monkeypatch.setattr(newcomers, "_SPAWNS_THAT_FAIL", 0.0)
    monkeypatch.setattr(newcomers, "_SPAWNS_THAT_HANG", 0.0)


@pytest.mark.usefixtures("no_spawn_fails")
@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.first("0")
def test_whoever_dies_somebody_comes_to_train_who_was_asked_for(victim: int) -> None:
    assert list(left_out(victim)) == []


@pytest.mark.usefixtures("no_spawn_fails")
def test_a_newcomer_that_nobody_ends_with_its_sponsor_is_left_out(monkeypatch: Patch) -> None:
    """The test above can fail."""
    monkeypatch.setattr(Growth, "_without", lambda self, worker: ())
    assert any(left_out(0))


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.matrix)])
def test_a_leader_that_leaves_alone_with_a_newcomer_leaves_no_step_untold(step: int) -> None:
    """Whenever it is told to: the newcomer cannot tell of the step in which it learnt."""
    calm = Schedule(1, 7, arrivals=(Arrival(1, 10),))
    for at in range(0, execute(calm).events, step):
        execute(replace(calm, notices=(LeaveNotice(0, at),)))


def lost_on_the_way() -> Iterator[str]:
    """What goes wrong if the first leader dies, at any event at all."""
    runs = (
        Schedule(3, seed, (Kill(0, at),), passes=1)
        for seed in (3, 4)
        for at in range(length(3, 1, 1))
    )
    return (outcome for outcome in map(outcome_of, runs) if isinstance(outcome, str))


@pytest.mark.parametrize("seed", range(3))
def test_a_job_that_must_stop_before_it_has_begun_has_one_model(seed: int) -> None:
    whole = Schedule(4, seed, passes=1, min_workers=4)
    for event in range(60):
        assert execute(replace(whole, kills=(Kill(0, event),))).survivors == 3


@pytest.mark.parametrize("seed", [13, 16, 17])
@pytest.mark.first("13")
def test_leaders_that_die_one_after_another_at_the_end_leave_no_step_untold(seed: int) -> None:
    stopped = Schedule(3, seed, passes=1, stop=100)
    end = execute(stopped).events
    for first in range(end - 30, end):
        for second in range(first + 8 + first % 2, first + 18, 2):  # a recovery later
            execute(replace(stopped, kills=(Kill(0, first), Kill(1, second))))


@pytest.mark.matrix
def test_a_leader_dies_at_any_event_of_what_it_does_once() -> None:
    assert list(lost_on_the_way()) == []


@pytest.mark.matrix
def test_a_second_leader_that_does_not_wait_for_the_first_ones_value_is_found(
    monkeypatch: Patch,
) -> None:
    """It is on its way in a round of its own size, though who has done it is dead."""
    follow = exchange.follow
    monkeypatch.setattr(exchange, "follow", lambda *known: follow(*known)._replace(owed=False))
    assert any(lost_on_the_way())


HISTORY = """
import zlib
from spotmpi.simulation.schedules import Campaign
from spotmpi.simulation.search import execute, length
transcript = []
for number in range(3):
    execute(Campaign(5, 5, 3).schedule(number, length), transcript)
print(len(transcript), zlib.crc32("\\n".join(transcript).encode()))
"""


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    """Whatever the process hashes strings to."""
    said = [
        subprocess.run(
            [sys.executable, "-c", HISTORY],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in (1, 2)
    ]
    assert said[0] == said[1]
    assert int(said[0].split()[0]) > 200


def test_only_a_failing_run_can_be_shrunk() -> None:
    with pytest.raises(ValueError, match="breaks no promise"):
        shrink(Schedule(3, 0, (Kill(1, 50),)))


@pytest.mark.campaign
@pytest.mark.parametrize(("least", "most"), [(2, 6), (2, 16), (16, 16)])
def test_many_schedules(least: int, most: int) -> None:
    campaign(least, most, 10_000, seed=3)


@pytest.mark.campaign
def test_ten_thousand_workers_recover_from_a_hundred_losses_at_once() -> None:
    drawn = Campaign(10_000, 10_000, 1, losses=100)
    assert execute(drawn.schedule(0, length)).survivors == 9_900
