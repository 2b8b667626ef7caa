"""How fast a training goes is what its workers said in the last seconds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.showing.pace import Pace, Speed
from spotmpi.launcher_channel import IN_ROUND, Measured


def at(steps: int, samples: int = 0) -> Standing:
    """A worker after so many steps, in which all have used so many samples since it began."""
    return Standing(steps, steps, IN_ROUND, 0.0, measured=Measured(samples=samples))


def seen(*news: tuple[float, Mapping[int, Standing]]) -> Pace:
    pace = Pace()
    for now, workers in news:
        pace.see(now, workers)
    return pace


def test_one_look_tells_no_pace() -> None:
    assert seen().speed(0.0) is None
    assert seen((5.0, {0: at(10)}), (6.0, {})).speed(6.0) is None


def test_a_pace_is_that_of_the_last_seconds() -> None:
    steps = [*range(0, 200, 10), *range(200, 400, 50)]
    pace = seen(*((float(now), {0: at(one, 8 * one)}) for now, one in enumerate(steps)))
    assert pace.speed(23.0) == Speed(pytest.approx(22.0), pytest.approx(176.0))
    assert pace.samples == 8 * 350


def test_steps_of_minutes_have_a_pace_as_well() -> None:
    pace = seen(*((60.0 * step, {0: at(step)}) for step in range(9)))
    assert pace.speed(500.0) == Speed(pytest.approx(1 / 60), 0.0)


def test_who_does_not_go_on_gets_slower() -> None:
    pace = seen(*((float(now), {0: at(now)}) for now in range(5)))
    assert pace.speed(5.0) == Speed(pytest.approx(1.0), 0.0)
    assert pace.speed(41.0) == Speed(pytest.approx(0.1), 0.0)


def test_another_worker_s_count_of_samples_is_followed_from_where_it_is() -> None:
    """It may have joined later, and counts from there."""
    pace = seen(
        (0.0, {0: at(10, 80)}),
        (1.0, {0: at(20, 160), 7: at(20, 16)}),
        (2.0, {7: at(30, 96)}),
        (3.0, {7: at(40, 176)}),
    )
    assert pace.samples == 160 + 80
    assert pace.speed(3.0) == Speed(pytest.approx(10.0), pytest.approx((240 - 80) / 3))
