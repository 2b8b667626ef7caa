"""Spot nodes while they are there, on-demand nodes when they must be: never late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi.economy.market.availability import Availability
from spotmpi.economy.plan.deadlines import POLICIES, Choice, Job, State, least, replay
from spotmpi.errors import UsageError

HOUR = 3600.0


def trace(*steps: tuple[float, int], hours: float) -> Availability:
    """So many nodes from each hour on."""
    times, counts = zip(*steps, strict=True)
    return Availability(
        np.array(times, dtype=np.float64) * HOUR, np.array(counts, dtype=np.int64), hours * HOUR
    )


def job(work_h: float, deadline_h: float, changeover_h: float = 0.0, nodes: int = 1) -> Job:
    return Job(nodes, work_h * HOUR, deadline_h * HOUR, changeover_h * HOUR, 1.0, 3.0)


def hours(policy: str, supply: Availability, task: Job) -> tuple[float, float, float]:
    """Of the run, of spot nodes, of nodes on demand."""
    done = replay(POLICIES[policy], supply, 0.0, task)
    assert done.dollars == pytest.approx((done.spot_s + 3 * done.on_demand_s) / HOUR)
    return done.seconds / HOUR, done.spot_s / HOUR, done.on_demand_s / HOUR


def test_where_spot_nodes_stay_nothing_else_is_paid() -> None:
    always = trace((0, 4), hours=100)
    for policy in ("greedy", "uniform progress"):
        assert hours(policy, always, job(10, 15, 0.5, 4)) == pytest.approx((10.5, 42, 0))
    assert hours("on demand", always, job(10, 15, 0.5, 4)) == pytest.approx((10.5, 0, 42))


def test_without_spot_nodes_greedy_waits_as_long_as_it_can() -> None:
    never = trace((0, 0), hours=100)
    # Two changeovers before the end: one is taken, the other is left over.
    assert hours("greedy", never, job(10, 15, 0.5)) == pytest.approx((14.5, 0, 10.5))
    assert hours("uniform progress", never, job(10, 15, 0.5)) == pytest.approx((10.5, 0, 10.5))


def test_uniform_progress_waits_until_the_even_pace_has_caught_up() -> None:
    """12 h of work in 24 h: half an hour of work in each."""
    gone = trace((0, 1), (5, 0), hours=100)
    # 4.9 h are done by then, which is enough until 9.8 h.
    took, spot, on_demand = hours("uniform progress", gone, job(12, 24, 0.1))
    assert spot == pytest.approx(5)
    assert took == pytest.approx(9.8 + 0.1 + 12 - 4.9)
    assert on_demand == pytest.approx(0.1 + 12 - 4.9)
    # Greedy waits until only on demand is in time: 7.1 h and two changeovers before the end.
    took, spot, on_demand = hours("greedy", gone, job(12, 24, 0.1))
    assert (took, spot, on_demand) == pytest.approx((23.9, 5, 7.2))


def test_an_on_demand_node_is_left_only_by_who_is_ahead_by_two_changeovers() -> None:
    back = trace((0, 0), (2, 1), hours=100)
    # On demand from the start; 0.5 (t + 2 * 1) < t - 1 from the hour 4 on, spot or not.
    took, spot, on_demand = hours("uniform progress", back, job(12, 24, 1.0))
    assert on_demand == pytest.approx(4)
    assert spot == pytest.approx(1 + 12 - 3)
    assert took == pytest.approx(4 + 1 + 9)


def test_without_spot_an_on_demand_node_is_kept_however_far_ahead() -> None:
    assert hours("uniform progress", trace((0, 0), hours=99), job(5, 50)) == pytest.approx(
        (5, 0, 5)
    )


def test_the_missing_nodes_of_a_cluster_are_on_demand() -> None:
    """Three of four nodes do three quarters of the pace of all, and 12 h in 13 h need more."""
    three = trace((0, 3), hours=100)
    took, spot, on_demand = hours("uniform progress", three, job(12, 13, 0.0, 4))
    assert (took, spot, on_demand) == pytest.approx((12, 36, 12))
    # They are enough for 16 h.
    assert hours("uniform progress", three, job(12, 16.1, 0.0, 4)) == pytest.approx((16, 48, 0))


def test_who_is_in_need_keeps_the_spot_nodes_that_train() -> None:
    lost = trace((0, 2), (6, 1), hours=100)
    # No slack at all from the start on: both are kept, and the lost one is replaced.
    took, spot, on_demand = hours("greedy", lost, job(10, 10.5, 0.25, 2))
    assert (spot, on_demand) == pytest.approx((0, 20.5)), "nothing ran when the need began"
    took, spot, on_demand = hours("greedy", lost, job(10, 11, 0.25, 2))
    assert took <= 11 + 1e-9
    assert spot > 10


def test_a_deadline_that_nothing_meets_is_refused() -> None:
    with pytest.raises(UsageError, match=r"takes 10\.00 h and a changeover 1\.0 h|60\.0 min"):
        job(10, 10.5, 1.0)


supplies = st.lists(st.integers(0, 5), min_size=1, max_size=30).map(
    lambda counts: trace(*enumerate(counts), hours=len(counts))
)


@settings(max_examples=150, deadline=None)
@given(
    supplies,
    *(st.integers(1, 4), st.floats(0.5, 20), st.floats(0, 10), st.floats(0, 1)),
    st.floats(0, 1),
)
@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_is_late_and_nobody_pays_less_than_who_knows_the_trace(
    policy: str,
    supply: Availability,
    nodes: int,
    work_h: float,
    slack_h: float,
    changeover_h: float,
    begin: float,
) -> None:
    task = job(work_h, work_h + changeover_h + slack_h, changeover_h, nodes)
    offset = begin * supply.length_s
    done = replay(POLICIES[policy], supply, offset, task)
    assert done.seconds <= task.deadline_s + 1e-3
    assert done.dollars >= least(supply, offset, task) * (1 - 1e-6) - 1e-6
    # What is paid was trained or was a changeover.
    paid = done.spot_s + done.on_demand_s
    assert paid >= task.work_s * nodes * (1 - 1e-6) - 1e-3
    assert paid <= task.work_s * nodes + done.starts * task.changeover_s + 1e-3 * done.starts + 1e-3


def test_a_policy_that_only_waits_is_late() -> None:
    """So that the check above can fail."""

    def waiting(state: State) -> Choice:
        return Choice(min(state.supply, state.job.nodes), 0, float("inf"))

    task = job(5, 8)
    assert replay(waiting, trace((0, 1), (1, 0), (20, 1), hours=99), 0.0, task).seconds > 8 * HOUR


def test_who_knows_the_trace_takes_the_long_stays_first() -> None:
    two = trace((0, 1), (1, 0), (3, 1), (8, 0), hours=100)
    # 5 h of the long stay do 4.5 h; the rest costs less in the short one than on demand.
    assert least(two, 0.0, job(4.5, 20, 0.5)) == pytest.approx(5)
    assert least(two, 0.0, job(4.75, 20, 0.5)) == pytest.approx(5 + 0.75)
    assert least(two, 0.0, replace(job(6, 20, 0.5), spot=2.9)) == pytest.approx(3 * 6.5)
