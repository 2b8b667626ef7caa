"""What to add or drop: a cluster that is too slow, one that is too dear, and what must be said."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from spotmpi.economy import planning
from spotmpi.economy.following.advice import Advice, Fleet, advise
from spotmpi.economy.following.plan_file import PlanFile, completed
from spotmpi.economy.following.watched import Watched
from spotmpi.economy.plan.question import Question, understood

PRICES = "name,spot,on_demand,lifetime,start,boot\nnode,1.0,3.0,{life},60s,60s\n"
PROFILE = """\
model: ring
name: training
gradient_mb: 0.001
loss: {g1: 100, g3: 1000, g5: 0.1, workers: 1}
instances:
  node:
    {workers_per_host: 1, cores: 1, compute_s: 0.1, exchange_s_per_worker: 0, bandwidth_mbps: 1e6}
"""
"""A step takes 0.1 s, on however many nodes."""


def asked(tmp_path: Path, *more: str, life: str = "never", profile: str = PROFILE) -> Question:
    """36,000 batches: an hour on one node."""
    (tmp_path / "prices.csv").write_text(PRICES.format(life=life))
    (tmp_path / "profile.yaml").write_text(profile)
    parser = argparse.ArgumentParser()
    planning.add_arguments(parser)
    files = ("--prices", str(tmp_path / "prices.csv"), "--profile", str(tmp_path / "profile.yaml"))
    question = ("--quota", "node:4", "--deadline", "40min", "--checkpoint-cost", "0s")
    work = () if "--loss" in more else ("--iterations", "36000")
    options = parser.parse_args([*files, *question, *work, *more])
    return understood(completed(options, PlanFile()))


def at(minutes: float, nodes: int, *, slower: float = 1.0, loss: Any = None) -> Watched:
    """A training that has gone on for so long with so many nodes."""
    watched = Watched()
    watched.meet({f"h{n}": 1 for n in range(nodes)})
    watched.begin(0)
    for step in range(1, int(600 * minutes / slower) + 1):
        watched.pass_time(0.1 * slower * step)
        watched.step(step, None if loss is None else loss(step * nodes))
    return watched


def after(question: Question, watched: Watched, **fleet: Any) -> Advice:
    present = {"node": len(watched.hosts)}
    return advise(question, watched, Fleet(present, **fleet))


def test_who_is_in_time_keeps_what_runs(tmp_path: Path) -> None:
    advice = after(asked(tmp_path), at(10, 2))
    assert advice.keep is not None
    assert advice.keep.in_time.value == 1
    assert advice.keep.middle_s == pytest.approx(20 * 60, rel=0.01)
    assert advice.keep.dollars == pytest.approx(2 * 20 / 60, rel=0.01)
    assert (advice.add, advice.drop, advice.why) == ({}, {}, "")
    assert advice.speed == pytest.approx(1, rel=0.01)


def test_who_is_too_late_adds_as_few_as_are_enough(tmp_path: Path) -> None:
    advice = after(asked(tmp_path), at(10, 1))
    assert (advice.add, advice.drop) == ({"node": 1}, {})
    assert not advice.on_demand
    assert advice.keep is not None
    assert advice.keep.in_time.value == 0
    assert advice.to is not None
    assert advice.to.in_time.value == 1
    # 30,000 batches are left; one trains for the minute in which the other starts.
    assert advice.to.middle_s == pytest.approx(60 + 29400 / 20, rel=0.01)


def test_the_speed_that_was_seen_counts_and_not_the_profile(tmp_path: Path) -> None:
    advice = after(asked(tmp_path), at(10, 2, slower=1.6))
    assert advice.speed == pytest.approx(1 / 1.6, rel=0.01)
    assert advice.add == {"node": 1}
    # Hosts that have just come tell no speed; what was seen before goes on to count.
    watched = at(10, 2, slower=1.6)
    watched.meet({"h0": 1, "h1": 1, "h2": 1})
    fleet = Fleet({"node": 3})
    assert advise(asked(tmp_path), watched, fleet, 1 / 1.6).speed == pytest.approx(1 / 1.6)
    assert advise(asked(tmp_path), watched, fleet).speed is None


def test_who_has_more_than_is_needed_drops_what_costs_more_than_it_saves(tmp_path: Path) -> None:
    """In a ring four nodes cost as much as two for half as long; by the hour they do not."""
    slow = PROFILE.replace("bandwidth_mbps: 1e6", "bandwidth_mbps: 0.02")
    question = asked(tmp_path, "--deadline", "3h", profile=slow)
    watched = at(10, 4, slower=1.75)
    advice = after(question, watched)
    assert advice.drop == {"node": 3}
    assert advice.why == "it is cheaper"


def test_what_is_coming_is_not_asked_for_again(tmp_path: Path) -> None:
    advice = after(asked(tmp_path), at(10, 1), coming={"node": 1})
    assert (advice.add, advice.drop) == ({}, {})
    assert advice.keep is not None
    assert advice.keep.cluster == {"node": 2}
    assert advice.keep.in_time.value == 1


def test_where_nothing_is_in_time_the_fastest_is_named(tmp_path: Path) -> None:
    advice = after(asked(tmp_path), at(36, 1))
    assert advice.add == {"node": 3}
    assert "no cluster of the quota is in time; this is the fastest" in advice.why
    enough = after(asked(tmp_path, "--quota", "node:1"), at(36, 1))
    assert (enough.add, enough.why) == ({}, "nothing within the quota is faster")
    assert after(asked(tmp_path), at(41, 1)).why == "the deadline is over"


def test_mixed_gets_on_demand_nodes_when_behind_and_spot_nodes_when_ahead(tmp_path: Path) -> None:
    question = asked(tmp_path, "--policy", "mixed", life="exponential:10h")
    behind = after(question, at(10, 1))
    assert behind.add
    assert behind.on_demand
    ahead = after(question, at(15, 3), on_demand={"node": 1})
    assert ahead.add == {"node": 1}
    assert not ahead.on_demand
    assert "the place of those on demand" in ahead.why
    spot = after(asked(tmp_path, life="exponential:10h"), at(10, 1))
    assert spot.add
    assert not spot.on_demand


def test_a_loss_is_planned_to_from_where_it_is_by_the_curve_of_the_run_itself(
    tmp_path: Path,
) -> None:
    question = asked(tmp_path, "--loss", "0.15", "--deadline", "20min")
    # By the profile 19,900 batches: 33 minutes of one node. This run learns twice as fast.
    advice = after(question, at(5, 1, loss=lambda j: 500 / (j + 50) + 0.1))
    assert advice.keep is not None
    assert advice.keep.middle_s == pytest.approx((9950 - 3000) / 10, rel=0.05)
    assert advice.keep.in_time.value == 1
    done = after(question, at(20, 1, loss=lambda j: 500 / (j + 50) + 0.1))
    assert done.reached
    silent = after(question, at(5, 1))
    assert "has told no loss yet" in silent.why
