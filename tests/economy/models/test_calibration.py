"""Fitting the ring model: what is known comes back, what is not is said, errors are held out."""

from __future__ import annotations

import itertools
import math
import random
from statistics import median

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spotmpi.economy.models.calibration import (
    Fit,
    Measured,
    Vector,
    calibrate,
    fit_loss,
    loss_error,
    non_negative,
)
from spotmpi.economy.models.ring import HostType, RingLoss
from spotmpi.errors import UsageError

SIZES = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 6)]


def runs_of(host: HostType, sizes: list[tuple[int, int]], megabytes: float = 4.0) -> list[Measured]:
    return [Measured(h, w, [host.step(w, h, megabytes)] * 3) for h, w in sizes]


def slow_non_negative(matrix: Vector, target: Vector) -> Vector:
    """One number after the other is moved to where it is best, until none moves."""
    x = np.zeros(matrix.shape[1])
    for _ in range(200_000):
        before = x.copy()
        for i, column in enumerate(matrix.T):
            if column @ column > 0:
                x[i] = max(0.0, x[i] + column @ (target - matrix @ x) / (column @ column))
        if np.abs(x - before).max() < 1e-15:
            break
    return x


@given(
    matrix=arrays.arrays(float, (6, 3), elements=st.integers(-5, 5).map(float)),
    target=arrays.arrays(float, 6, elements=st.integers(-5, 5).map(float)),
)
def test_non_negative_least_squares_is_as_near_as_slow_descent(
    matrix: Vector, target: Vector
) -> None:
    got = non_negative(matrix, target)
    assert got.min() >= 0
    slow = slow_non_negative(matrix, target)
    off, least = (float(np.linalg.norm(matrix @ x - target)) for x in (got, slow))
    assert off <= least + 1e-9


positive = st.floats(1e-4, 10)


@given(c=positive, e=positive, s=positive)
def test_exact_runs_on_one_host_give_their_numbers_back(c: float, e: float, s: float) -> None:
    host = HostType(2, 2, c, e, s)
    fit = calibrate(runs_of(host, SIZES), 2, 4.0)
    got = fit.host
    assert [got.compute_s, got.exchange_s_per_worker, got.crowding_s] == [
        pytest.approx(x, rel=1e-6, abs=1e-9) for x in (c, e, s)
    ]
    assert (got.workers, got.cores, fit.unknown) == (2, 2, [])
    assert fit.error == pytest.approx(0, abs=1e-6)


@given(c=positive, e=positive, bandwidth=st.floats(10, 1e4), latency=st.floats(1e-3, 1))
def test_exact_runs_on_many_hosts_give_their_numbers_back(
    c: float, e: float, bandwidth: float, latency: float
) -> None:
    host = HostType(2, 4, c, e, 0.0, bandwidth, latency)
    sizes = [(1, 1), (1, 2), (2, 1), (4, 2), (8, 2)]
    fit = calibrate(runs_of(host, sizes, 100.0), 4, 100.0)
    got = fit.host
    assert got.compute_s == pytest.approx(c, rel=1e-4, abs=1e-6)
    assert got.exchange_s_per_worker == pytest.approx(e, rel=1e-4, abs=1e-6)
    assert got.bandwidth_mbps == pytest.approx(bandwidth, rel=1e-2)
    assert got.latency_s == pytest.approx(latency, rel=1e-2)
    assert got.step(2, 16, 100.0) == pytest.approx(host.step(2, 16, 100.0), rel=1e-3)


@given(
    times=st.dictionaries(
        st.tuples(st.integers(1, 4), st.integers(1, 9)), st.floats(1e-6, 1e3), min_size=1
    ),
    cores=st.integers(1, 8),
)
def test_whatever_was_measured_nothing_is_negative_and_all_is_a_number(
    times: dict[tuple[int, int], float], cores: int
) -> None:
    try:
        fit = calibrate([Measured(h, w, [t]) for (h, w), t in times.items()], cores, 4.0)
    except UsageError:
        assert max(hosts for hosts, _ in times) > 1
        return
    host = fit.host
    for number in vars(host).values():
        assert number is None or (number >= 0 and math.isfinite(number))
    assert host.compute_s > 0
    for hosts, workers in times:
        assert 0 < host.step(workers, hosts, 4.0) < math.inf
    assert fit.error is None or 0 <= fit.error < math.inf


def test_a_threaded_script_is_predicted_though_its_workers_lose_threads() -> None:
    # 16 cores; a batch is 30 ms of one core, of which 20 can be shared by threads.
    def step(workers: int) -> float:
        return 0.010 + 0.020 / (16 // workers) + 0.001 * (workers - 1)

    fit = calibrate([Measured(1, w, [step(w)]) for w in (1, 2, 4, 8)], 16, 4.0)
    assert fit.host.step(16, 1, 4.0) == pytest.approx(step(16), rel=1e-6)


def test_runs_of_one_size_count_once_by_the_median_of_their_medians() -> None:
    host = HostType(2, 2, 0.010, 0.002)
    wild = [Measured(1, 2, [9.0] * 50), Measured(1, 2, [0.001] * 50)]
    fit = calibrate([*runs_of(host, SIZES), *wild], 2, 4.0)
    assert fit.host.exchange_s_per_worker == pytest.approx(0.002)
    assert fit.medians[1, 2] == pytest.approx(0.012)


def test_one_slow_step_among_many_does_not_count() -> None:
    assert median([0.01] * 9 + [5.0]) == Measured(1, 1, [0.01] * 9 + [5.0]).median


def test_one_size_alone_tells_nothing_of_others_and_has_no_error() -> None:
    fit = calibrate([Measured(1, 4, [0.02] * 10)], 2, 4.0)
    assert fit.error is None
    assert fit.host.exchange_s_per_worker is None
    assert "a further worker" in fit.unknown[0]
    assert fit.host.step(4, 1, 4.0) == pytest.approx(0.02), "that one is known"
    with pytest.raises(UsageError, match="another number of workers"):
        fit.host.step(8, 1, 4.0)


def test_two_sizes_tell_the_exchange_but_no_error() -> None:
    fit = calibrate(runs_of(HostType(1, 2, 0.010, 0.002), [(1, 1), (1, 2)]), 2, 4.0)
    assert fit.host.exchange_s_per_worker == pytest.approx(0.002)
    assert fit.error is None


def test_the_error_is_that_of_the_run_that_was_held_out_and_not_the_residual() -> None:
    # Three numbers fit three runs exactly; four workers are twice as slow as 1 and 2 let hope.
    times = {1: 0.010, 2: 0.012, 4: 0.052}
    fit = calibrate([Measured(1, w, [t]) for w, t in times.items()], 2, 4.0)
    for workers, seconds in times.items():
        assert fit.host.step(workers, 1, 4.0) == pytest.approx(seconds)
    (check,) = fit.checks
    assert (check.size, check.others) == ((1, 4), [(1, 1), (1, 2)])
    assert check.predicted == pytest.approx(2 * 0.010 + 3 * 0.002)
    assert check.lacking == ["crowding"]
    assert check.error == pytest.approx(-0.5)
    assert fit.error == pytest.approx(0.5)


def test_a_size_in_between_is_held_out_where_the_others_tell_every_number() -> None:
    times = {1: 0.010, 2: 0.012, 3: 0.030, 4: 0.032, 6: 0.060}
    fit = calibrate([Measured(1, w, [t]) for w, t in times.items()], 2, 4.0)
    assert {(check.size[1], len(check.others)) for check in fit.checks} == {
        (6, 3),
        *((w, 4) for w in times),
    }
    worst = max(abs(check.error) for check in fit.checks)
    assert fit.error == worst > 0.01


def test_what_a_check_predicts_comes_from_the_others_alone() -> None:
    honest = {1: 0.010, 2: 0.012, 4: 0.026}
    wild = {**honest, 4: 26.0}
    predicted = []
    for times in (honest, wild):
        fit = calibrate([Measured(1, w, [t]) for w, t in times.items()], 2, 4.0)
        predicted.append(fit.checks[0].predicted)
    assert predicted[0] == predicted[1]


def test_which_numbers_are_known_does_not_depend_on_what_was_measured() -> None:
    fit = calibrate([Measured(1, 1, [79.0]), Measured(1, 9, [1e-6])], 1, 4.0)
    assert fit.host.exchange_s_per_worker is not None


def test_an_exchange_that_cannot_be_told_from_the_cores_is_said_and_counts_as_theirs() -> None:
    fit = calibrate([Measured(1, 3, [0.010]), Measured(1, 5, [0.020])], 3, 4.0)
    assert fit.host.exchange_s_per_worker == 0
    assert "what a further worker on a host costs" in fit.unknown[0]
    assert fit.host.step(5, 1, 4.0) == pytest.approx(0.020)


def test_runs_that_are_all_on_as_many_hosts_do_not_tell_the_network() -> None:
    with pytest.raises(UsageError, match="on one host alone"):
        calibrate([Measured(4, 1, [0.01]), Measured(4, 2, [0.02])], 2, 4.0)


def test_no_steps_or_steps_without_time_are_refused() -> None:
    for nothing in ([], [Measured(1, 1, [])]):
        with pytest.raises(UsageError, match="no steps to profile; give traces"):
            calibrate(nothing, 2, 4.0)
    with pytest.raises(UsageError, match="took no time at all"):
        calibrate([Measured(1, 1, [0.0, 0.0])], 2, 4.0)


def test_noise_makes_an_error_and_not_a_crash() -> None:
    draw = random.Random(1)
    host = HostType(2, 2, 0.010, 0.002, 0.004)

    def noisy() -> Fit:
        runs = [
            Measured(1, w, [host.step(w, 1, 4.0) * draw.uniform(0.95, 1.05) for _ in range(30)])
            for w in (1, 2, 3, 6)
        ]
        return calibrate(runs, 2, 4.0)

    for fit in [noisy() for _ in range(5)]:
        assert fit.error is not None
        assert 0 < fit.error < 0.2
        assert fit.host.step(12, 1, 4.0) == pytest.approx(host.step(12, 1, 4.0), rel=0.1)


@given(
    g1=st.floats(1, 1e4), g3=st.floats(1, 1e5), g5=st.floats(0, 5), per_step=st.sampled_from([1, 8])
)
@pytest.mark.matrix
def test_an_exact_loss_curve_comes_back(g1: float, g3: float, g5: float, per_step: int) -> None:
    true = RingLoss(g1, g3, g5)
    j = [float(per_step * step) for step in range(2000)]
    losses = [true.at(x) for x in j]
    assume(losses[0] - losses[-1] > 0.01 * losses[0])
    got = fit_loss(j, losses)
    assert got is not None
    for x in (0.0, j[-1], 2 * j[-1]):
        assert got.at(x) == pytest.approx(true.at(x), rel=0.02)
    assert loss_error(j, losses) == pytest.approx(0, abs=0.02)


def test_the_loss_curve_is_as_near_as_any_of_a_fine_grid() -> None:
    draw = random.Random(2)
    j = [4.0 * step for step in range(60)]
    losses = [RingLoss(30, 100, 0.4).at(x) * draw.uniform(0.9, 1.1) for x in j]
    got = fit_loss(j, losses)
    assert got is not None

    def off(curve: RingLoss) -> float:
        return math.dist([curve.at(x) for x in j], losses)

    grid = itertools.product(range(5, 100), range(20, 300, 4), (0.0, 0.2, 0.3, 0.4, 0.5))
    assert off(got) <= min(off(RingLoss(g1, g3, g5)) for g1, g3, g5 in grid)


@pytest.mark.parametrize(
    "losses",
    [[], [1.0] * 7, [1.0] * 100, [0.0] * 100, [math.nan] * 100, list(range(100)), [-1.0, 2.0] * 9],
)
def test_losses_that_do_not_fall_have_no_curve(losses: list[float]) -> None:
    assert fit_loss(list(map(float, range(len(losses)))), losses) is None
    assert loss_error(list(map(float, range(len(losses)))), losses) is None


def test_a_loss_that_stops_falling_is_found_to_be_off() -> None:
    losses = [10.0 / (step + 1) + 0.1 for step in range(75)] + [3.0] * 25
    off = loss_error(list(map(float, range(100))), losses)
    assert off is not None
    assert off > 0.5
