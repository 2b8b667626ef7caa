"""Trainings from event to event: against closed forms, and against one that takes small steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spotmpi.economy.market.availability import Availability
from spotmpi.economy.market.lifetimes import Exponential, Lifetime, Never
from spotmpi.economy.plan.events import Fallback, Result, Runtime, Staff, Training, train

HOUR = 3600.0
CHANCE = np.random.default_rng(0)
FREE = Runtime("free", 0, 0, False, False, 0, math.inf, 0)
ELASTIC = Runtime("elastic", 1.0, 0.5, False, False, 60, 300, 5)
RESTART = Runtime("restart", 60, 65, False, True, 60, 300, 5)


@dataclass
class Fates:
    """Lifetimes that are written down beforehand; then everybody lives for ever."""

    lives: Sequence[float]
    left: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.left = deque(self.lives)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        return np.array([self.left.popleft() if self.left else math.inf for _ in range(size)])

    def cdf(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        raise NotImplementedError

    @property
    def text(self) -> str:
        return "as written"


def staff(lives: Lifetime | None = None, **changed: object) -> Staff:
    usual = Staff("worker", 4, 1.0, lives or Never(), 0.0, math.inf)
    return replace(usual, **changed)  # type: ignore[arg-type]


def plan(one: Staff, seconds: float = 4000.0, **changed: object) -> Training:
    """A training that four workers do in ``seconds``."""

    def speed(counts: tuple[int, ...]) -> float:
        return sum(counts) / (4 * seconds)

    return replace(Training([one], speed, "second"), **changed)  # type: ignore[arg-type]


def lived(one: Training, runtime: Runtime = FREE) -> Result:
    return train(one, runtime, np.random.default_rng(1))


# Closed forms.


def test_without_losses_it_takes_what_was_predicted() -> None:
    outcome = lived(plan(staff()))
    assert outcome.seconds == pytest.approx(4000)
    assert outcome.dollars == pytest.approx(4 * 4000 / 3600)
    assert (outcome.losses, outcome.joins, outcome.undone) == (0, 0, 0)


@given(st.integers(1, 3), st.floats(0.01, 0.99))
def test_work_is_conserved(gone: int, when: float) -> None:
    """T = f T0 + (1 - f) T0 n / (n - k), and the workers' hours do not change."""
    outcome = lived(plan(staff(Fates([4000 * when] * gone))))
    assert outcome.seconds == pytest.approx(4000 * (when + (1 - when) * 4 / (4 - gone)))
    assert outcome.dollars == pytest.approx(4 * 4000 / 3600)


def test_a_replacement_is_paid_from_its_creation() -> None:
    free = lived(plan(staff(Fates([1000]), replacement_s=600, boot_s=0)))
    booted = lived(plan(staff(Fates([1000]), replacement_s=600, boot_s=200)))
    assert booted.seconds == free.seconds
    hourly = staff(Fates([1000])).dollars_per_hour
    assert booted.dollars - free.dollars == pytest.approx(hourly * 200 / 3600)
    # Of a time that is said to be shorter than the boot no more can be paid than that.
    short = lived(plan(staff(Fates([1000]), replacement_s=50, boot_s=200)))
    least = lived(plan(staff(Fates([1000]), replacement_s=50, boot_s=0)))
    assert short.dollars - least.dollars == pytest.approx(hourly * 50 / 3600)


def test_a_replacement_comes_after_its_time() -> None:
    outcome = lived(plan(staff(Fates([1000]), replacement_s=600)))
    assert outcome.seconds == pytest.approx(4000 + 600 / 4)
    assert (outcome.losses, outcome.joins) == (1, 1)


def test_a_restart_undoes_what_came_after_the_last_checkpoint() -> None:
    runtime = replace(RESTART, checkpoint_s=0.0, loss_s=60.0)
    outcome = lived(plan(staff(Fates([1000, math.inf]))), runtime)
    # 3 checkpoints of 300 s; 100 s of four workers are done again by three, and 60 s are lost.
    left = (4000 - 900) * 4 / 3
    assert outcome.seconds == pytest.approx(1000 + 60 + left)
    assert outcome.undone == pytest.approx(100 / 4000)


def test_spotmpi_undoes_nothing_as_long_as_somebody_lives() -> None:
    outcome = lived(plan(staff(Fates([1000, 1000, 2000]))), ELASTIC)
    assert outcome.undone == 0


def test_where_everybody_is_lost_the_checkpoint_is_what_is_left() -> None:
    runtime = replace(ELASTIC, checkpoint_s=0.0)
    outcome = lived(plan(staff(Fates([1000] * 4), replacement_s=100)), runtime)
    assert outcome.undone == pytest.approx(100 / 4000)
    # The first of the four starts again from the checkpoint, the others join at the same moment.
    assert outcome.seconds == pytest.approx(1100 + 60 + 3100)


def test_nobody_left_and_nobody_to_come_never_ends() -> None:
    outcome = lived(plan(staff(Fates([1000] * 4))))
    assert outcome.seconds == math.inf
    assert outcome.dollars == pytest.approx(4 * 1000 / 3600), "what was used is paid"


def test_a_notice_saves_a_restart_its_work() -> None:
    one = staff(Fates([1000]), notice_s=30.0)
    told = lived(plan(one), replace(RESTART, checkpoint_s=0.0))
    untold = lived(plan(staff(Fates([1000]))), replace(RESTART, checkpoint_s=0.0))
    assert told.undone == pytest.approx(30 / 4000)
    assert untold.undone == pytest.approx(100 / 4000)


def test_a_worker_with_a_notice_leaves_at_once_and_is_paid_to_its_end() -> None:
    one = staff(Fates([1000]), notice_s=30.0)
    outcome = lived(plan(one), replace(FREE, leaves=True))
    assert outcome.seconds == pytest.approx(970 + (4000 - 970) * 4 / 3)
    assert outcome.dollars == pytest.approx((1000 + 3 * outcome.seconds) / 3600)


def test_a_notice_that_is_long_enough_brings_the_next_one_in_time() -> None:
    one = staff(Fates([1000]), notice_s=120.0, replacement_s=120.0)
    assert lived(plan(one)).seconds == pytest.approx(4000)


def test_a_checkpoint_at_a_notice_takes_its_time() -> None:
    runtime = replace(FREE, rolls_back=True, checkpoint_s=20.0)
    outcome = lived(plan(staff(Fates([1000]), notice_s=30.0)), runtime)
    # Told at 970, it trains again from 990 on; these 10 s are done again.
    assert outcome.undone == pytest.approx(10 / 4000)
    assert outcome.seconds == pytest.approx(1000 + (4000 - 970) * 4 / 3)


def test_who_restarts_for_a_newcomer_has_written_a_checkpoint_for_it() -> None:
    runtime = replace(RESTART, checkpoint_every_s=math.inf)
    outcome = lived(plan(staff(Fates([1000, 3000]), replacement_s=1000.0)), runtime)
    # Back to 0 at 1000; three workers train from 1060 to 2000 and write that down; back to it at
    # 3000, then three workers from 3060 to 4000, again four from 4065 on.
    assert outcome.undone == pytest.approx((1000 + 3000 - 2065) / 4000)
    assert outcome.seconds == pytest.approx(4065 + 4000 - 2 * 940 * 3 / 4)


def test_who_comes_early_waits_for_the_one_that_it_replaces() -> None:
    def speed(counts: tuple[int, ...]) -> float:
        assert counts[0] <= 4
        return counts[0] / 16000

    one = plan(staff(Fates([1000]), notice_s=100.0, replacement_s=40.0), speed=speed)
    outcome = train(one, replace(RESTART, checkpoint_s=0.0), CHANCE, timeline=True)
    assert outcome.seconds == pytest.approx(1000 + 60 + 3100), "one restart, at the loss"
    assert outcome.dollars == pytest.approx((4 * outcome.seconds + 60) / 3600), "both are paid"
    assert {workers for _, workers in moments(outcome)} == {4}


def test_hours_are_paid_as_they_are_begun() -> None:
    outcome = lived(plan(staff(Fates([100.0])), billing="hour"))
    assert outcome.dollars == pytest.approx(1 + 3 * 2), "5301 s: two hours of three workers"


def test_a_lost_server_takes_everybody_back() -> None:
    server = staff(Fates([1000.0]), wanted=1, dollars_per_hour=0.5, replacement_s=200.0)
    runtime = replace(ELASTIC, checkpoint_s=0.0)
    outcome = lived(plan(staff(), server=server), runtime)
    assert outcome.seconds == pytest.approx(1000 + 200 + 60 + 3100)
    paid = 4 * outcome.seconds + 0.5 * (outcome.seconds - 200)
    assert outcome.dollars == pytest.approx(paid / 3600), "nobody pays for a server that is gone"
    assert outcome.losses == 0, "workers are counted"


def test_a_server_s_life_begins_when_it_is_there() -> None:
    server = staff(Fates([1000.0, 150.0]), wanted=1, replacement_s=200.0)
    outcome = lived(plan(staff(), server=server))
    # Lost at 1000 and, 150 s after it came again, at 1350: all begin anew at 1550.
    assert outcome.seconds == pytest.approx(1550 + 4000)
    assert outcome.undone == pytest.approx(1150 / 4000)


def test_a_told_server_s_checkpoint_takes_its_time() -> None:
    server = staff(Fates([1000.0]), wanted=1, notice_s=30.0, replacement_s=200.0)
    outcome = lived(plan(staff(), server=server), replace(FREE, checkpoint_s=20.0))
    assert outcome.seconds == pytest.approx(4000 + 200 + 20)


def test_nodes_come_and_go_as_in_a_trace() -> None:
    supply = Availability(np.array([0.0]), np.array([2]), 1e6)
    assert lived(plan(staff(), availability=supply)).seconds == pytest.approx(8000)
    supply = Availability(np.array([0.0]), np.array([9]), 1e6)
    assert lived(plan(staff(), availability=supply)).seconds == pytest.approx(4000)


def test_a_trace_that_stays_empty_is_given_up() -> None:
    supply = Availability(np.array([0.0]), np.array([0]), 1000.0)
    outcome = lived(plan(staff(), availability=supply, give_up_s=1e5))
    assert (outcome.seconds, outcome.dollars) == (math.inf, 0)


# Against small steps of time, which know nothing of events.


def in_small_steps(one: Training, runtime: Runtime, step: float) -> tuple[float, float, float]:
    """Seconds, dollars and what was undone, of a plan with one staff whose lives are written."""
    staff_ = one.staff[0]
    lives = staff_.lifetime
    ends = [float(lives.sample(CHANCE, 1)[0]) for _ in range(staff_.wanted)]
    coming: list[float] = []
    now = still = done = saved = since = undone = paid = 0.0
    pace = runtime.checkpoint_every_s / (runtime.checkpoint_every_s + runtime.checkpoint_s)
    while done < 1:
        now += step
        for end in [end for end in ends if end <= now]:
            ends.remove(end)
            coming.append(end + staff_.replacement_s)
            if runtime.rolls_back or not ends:
                undone, done, since = undone + done - saved, saved, 0.0
            if ends:
                still = max(still, end + runtime.loss_s)
        for at in [at for at in coming if at <= now]:
            coming.remove(at)
            if runtime.rolls_back and ends:
                saved, since = done, 0.0
            still = max(still, at + (runtime.join_s if ends else runtime.restart_s))
            ends.append(at + float(lives.sample(CHANCE, 1)[0]))
        paid += len(ends) * step
        if now > still:
            done += one.speed((len(ends),)) * step * pace
            since += step * pace
            if since >= runtime.checkpoint_every_s:
                saved, since = done, since - runtime.checkpoint_every_s
    return now, paid * staff_.dollars_per_hour / 3600, undone


@given(
    st.lists(st.floats(50, 6000), max_size=8),
    st.sampled_from([ELASTIC, RESTART]),
    st.floats(30, 2000),
)
def test_events_agree_with_small_steps(
    lives: list[float], runtime: Runtime, replacement: float
) -> None:
    def one() -> Training:
        return plan(staff(Fates(lives), replacement_s=replacement), seconds=2000.0)

    fast, step = lived(one(), runtime), 0.5
    slow = in_small_steps(one(), runtime, step)
    # Each event may fall on either side of a step, or of a checkpoint.
    changes = 2 * len(lives) + 2
    if abs(fast.undone - slow[2]) < 0.01:
        assert fast.seconds == pytest.approx(slow[0], abs=4 * step * changes)
        assert fast.dollars == pytest.approx(slow[1], abs=16 * step * changes / 3600)
    else:
        assert abs(fast.undone - slow[2]) < 300 / 2000 * changes


# Chance.


def test_the_same_seed_gives_the_same_fate_to_any_runtime() -> None:
    def fates(runtime: Runtime) -> Result:
        one = plan(staff(Exponential(3000.0), replacement_s=300.0))
        return train(one, runtime, np.random.default_rng(3), timeline=True)

    first, again, other = fates(ELASTIC), fates(ELASTIC), fates(RESTART)
    assert first == again
    assert first.seconds < other.seconds
    at = [moment.at_s for moment in first.timeline[:-1]]
    assert at == list(dict.fromkeys(moment.at_s for moment in other.timeline))[: len(at)]


def test_more_losses_take_longer() -> None:
    def mean(life: float) -> float:
        one = plan(staff(Exponential(life)), seconds=1000.0)
        runs = [train(one, ELASTIC, np.random.default_rng([5, i])).seconds for i in range(200)]
        return float(np.mean([s for s in runs if math.isfinite(s)]))

    assert 1000 < mean(1e6) < mean(5000) < mean(1500)


def moments(outcome: Result) -> Iterator[tuple[float, int]]:
    yield from ((moment.at_s, moment.workers) for moment in outcome.timeline)


def test_a_timeline_tells_who_was_there() -> None:
    one = plan(staff(Fates([1000]), replacement_s=600))
    outcome = train(one, FREE, CHANCE, timeline=True)
    assert list(moments(outcome)) == [(0, 4), (1000, 3), (1600, 4), (pytest.approx(4150), 4)]


def test_a_timeline_shows_work_before_it_is_rolled_back() -> None:
    outcome = lived_with_timeline(replace(RESTART, checkpoint_s=0.0, loss_s=0.0))
    done = [moment.done for moment in outcome.timeline if moment.at_s == 1000]
    # 1000 s of training were done, the last checkpoint was at 900.
    assert done == [pytest.approx(1000 / 4000), pytest.approx(900 / 4000)]
    drops = sum(max(0.0, a.done - b.done) for a, b in pairwise(outcome.timeline))
    assert drops == pytest.approx(outcome.undone)


def lived_with_timeline(runtime: Runtime) -> Result:
    return train(plan(staff(Fates([1000]))), runtime, CHANCE, timeline=True)


def test_who_is_there_trains_while_the_others_start_and_all_are_paid() -> None:
    """Ten hours for four of which two come after an hour: an hour at half speed."""
    staff = Staff("worker", 4, 1.0, Never(), 0.0, math.inf, coming=2, coming_s=HOUR)
    still = Runtime("still", 0, 0, True, False, 0, math.inf, 0)
    training = Training([staff], lambda counts: sum(counts) / (40 * HOUR), "second")
    outcome = train(training, still, np.random.default_rng(0))
    assert outcome.seconds == pytest.approx(10.5 * HOUR)
    assert outcome.dollars == pytest.approx(4 * 10.5)


def test_what_is_on_demand_at_the_beginning_trains_at_its_price_and_is_not_lost() -> None:
    staff = Staff("worker", 2, 1.0, Never(), 0.0, math.inf, hired=1)
    still = Runtime("still", 0, 0, True, False, 0, math.inf, 0)
    fallback = Fallback(20 * HOUR, [3.0])
    training = Training(
        [staff], lambda counts: sum(counts) / (20 * HOUR), "second", fallback=fallback
    )
    outcome = train(training, still, np.random.default_rng(0))
    assert outcome.seconds == pytest.approx(10 * HOUR)
    assert outcome.dollars == pytest.approx(10 * 1 + 10 * 3)
