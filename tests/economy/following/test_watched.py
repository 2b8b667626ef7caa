"""What is seen of a training: work, speed, loss and who was there."""

from __future__ import annotations

import pytest

from spotmpi.economy.following.nodes import Node, Nodes, Stay
from spotmpi.economy.following.watched import Watched
from spotmpi.economy.market import prices
from spotmpi.economy.plan.rental import Terms
from spotmpi.errors import UsageError

HOUR = 3600.0


def seen(*steps: tuple[float, int, dict[str, int], float | None]) -> Watched:
    watched = Watched()
    for elapsed, step, hosts, loss in steps:
        watched.pass_time(elapsed)
        watched.meet(hosts)
        watched.step(step, loss)
    return watched


def test_a_step_of_n_workers_is_n_batches_and_the_speed_is_that_of_the_hosts_that_are_there() -> (
    None
):
    watched = Watched()
    watched.meet({"a": 2})
    watched.begin(0)
    for step in range(1, 31):
        watched.pass_time(0.5 * step)
        watched.step(step, 1.0 / step)
    assert watched.batches == 60
    assert watched.speed == pytest.approx(4.0)
    watched.meet({"a": 2, "b": 2})
    assert watched.speed is None, "nobody knows it of these hosts"
    for step in range(31, 61):
        watched.pass_time(15 + 0.25 * (step - 30))
        watched.step(step, None)
    assert watched.batches == 60 + 120
    assert watched.speed == pytest.approx(16.0)
    assert watched.loss == pytest.approx(sum(1 / step for step in range(11, 31)) / 20)


def test_what_stood_still_counts_for_the_speed() -> None:
    watched = Watched()
    watched.meet({"a": 1})
    watched.begin(0)
    for step in range(1, 101):
        watched.pass_time(step + 50 * (step > 50))  # an evaluation
        watched.step(step, None)
    assert watched.speed == pytest.approx(95 / 145, rel=0.01)


def test_a_resume_takes_back_what_is_void() -> None:
    watched = Watched()
    watched.meet({"a": 2})
    watched.begin(0)
    for step in range(1, 11):
        watched.step(step, float(step))
    watched.begin(4)
    assert (watched.steps, watched.batches) == (4, 8)
    assert list(watched.losses[1]) == [1, 2, 3, 4]
    watched.step(5, 9.0)
    assert watched.batches == 10


def test_who_comes_to_a_training_that_runs_takes_its_steps_for_those_of_who_is_there() -> None:
    watched = Watched()
    watched.meet({"a": 3})
    watched.begin(100)
    assert watched.batches == 300


def test_each_host_is_paid_from_its_boot_to_its_end() -> None:
    watched = Watched()
    watched.meet({"a": 1, "b": 1})
    watched.pass_time(HOUR)
    watched.meet({"a": 1})
    watched.pass_time(2 * HOUR)
    watched.meet({"a": 1, "c": 1})
    watched.pass_time(3 * HOUR)
    nodes = Nodes({"c": Node("K80", on_demand=True)}, ["K80"])
    list_ = prices.shipped("icac19")
    spent = nodes.spent(watched.stays, watched.elapsed_s, list_, Terms(boot_s=360.0))
    assert spent == pytest.approx(0.256 * (3.1 + 1.1) + 0.723 * 1.1)
    assert watched.stays[1] == Stay("b", 0.0, HOUR)


def test_a_host_that_nobody_knows_must_be_named() -> None:
    nodes = Nodes({"h1": Node("K80")}, ["K80", "V100"])
    assert nodes.cluster(["h1", "h1"]) == {"K80": 2}
    with pytest.raises(UsageError, match=r'of which type host h2 is.*hosts: \{"h2": "K80"\}'):
        nodes.cluster(["h2"])
    nodes.expect(Node("V100", on_demand=True), ["h2"], 2)
    assert nodes.cluster(["h1", "h2", "h3"]) == {"K80": 1, "V100": 2}
    assert nodes.cluster(["h1", "h2", "h3"], on_demand=True) == {"V100": 2}
    assert Nodes({}, ["P100"]).cluster(["x"]) == {"P100": 1}
