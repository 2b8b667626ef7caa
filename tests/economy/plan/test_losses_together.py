"""Nodes of a type that go at once, as real ones often do."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from spotmpi import cli
from spotmpi.economy.market import availability
from spotmpi.economy.market.lifetimes import Exponential, Lifetime, Weibull
from spotmpi.economy.plan.events import Result, Runtime, Staff, Training, train

HOUR = 3600.0
FREE = Runtime("free", 0, 0, False, False, 0, math.inf, 0)


def lived(seed: int, together: float, life: Lifetime, replacement_s: float = math.inf) -> Result:
    """Two hours, which no work ends: eight nodes for which a second is a billionth of it."""
    workers = Staff("worker", 8, 1.0, life, 0.0, replacement_s)
    training = Training(
        [workers], lambda counts: 1e-9, "second", together=together, give_up_s=2 * HOUR
    )
    return train(training, FREE, np.random.default_rng(seed), timeline=True)


def sizes(outcome: Result) -> list[int]:
    """How many went at each moment at which some did."""
    lost: dict[float, int] = {}
    before = 8
    for moment in outcome.timeline:
        lost[moment.at_s] = lost.get(moment.at_s, 0) + max(0, before - moment.workers)
        before = moment.workers
    return [count for count in lost.values() if count]


def test_all_or_none_go_at_once() -> None:
    for seed in range(20):
        assert set(sizes(lived(seed, 1.0, Exponential(HOUR)))) <= {8}
        assert set(sizes(lived(seed, 0.0, Exponential(HOUR)))) <= {1}


@pytest.mark.parametrize("together", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("life", [Exponential(2 * HOUR), Weibull(3 * HOUR, 2.0)])
def test_how_long_one_node_lives_does_not_depend_on_it(life: Lifetime, together: float) -> None:
    runs = [lived(seed, together, life).losses / 8 for seed in range(600)]
    gone = float(life.cdf(2 * HOUR))
    # Of one run all eight may be alike.
    assert np.mean(runs) == pytest.approx(gone, abs=4 * math.sqrt(gone * (1 - gone) / 600))


def test_replaced_nodes_go_as_often_too() -> None:
    runs = [lived(seed, 0.7, Exponential(HOUR), 1.0).losses / 8 for seed in range(400)]
    assert np.mean(runs) == pytest.approx(2.0, rel=0.08)


def test_it_spreads_what_happens() -> None:
    alone, at_once = (
        [lived(seed, part, Exponential(2 * HOUR)).losses for seed in range(300)]
        for part in (0.0, 0.8)
    )
    assert np.std(at_once) > 1.5 * np.std(alone)


def test_a_trace_says_how_many_go_together(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("0,10\n1000,9\n2000,4\n3000,10\n4000,9\n5000,8\n6000,8\n")
    assert availability.read(path).together == 5 / 8
    path.write_text("0,1\n1000,2\n2000,3\n")
    assert availability.read(path).together == 0


def said(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> str:
    question = ("--cluster", "K80:4", "--lifetime", "exponential:1h", "--runs", "20")
    assert cli.main(["simulate", "cluster", *question, *more]) == code
    streams = capsys.readouterr()
    return streams.out if code == 0 else streams.err


def test_the_command_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "nodes of a type go together: each with probability"
    assert f"{sentence} 40 % as one" in said(capsys, "--together", "40%")
    assert f"{sentence} 77 % as one" in said(capsys, "--together", "p3")
    assert sentence not in said(capsys)
    assert "expected a probability as 0.4 or 40%" in said(capsys, "--together", "1.5", code=2)
    assert "there is no trace 'often'" in said(capsys, "--together", "often", code=2)


def test_a_plan_has_more_doubt_where_nodes_go_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = (
        "plan",
        "--profile",
        "spotdnn",
        "--prices",
        "2023",
        "--loss",
        "0.8",
        "--runs",
        "300",
    )
    more = ("--quota", "g3.8xl:7", "--deadline", "48min40s", "--lifetime", "exponential:3h")
    assert cli.main([*question, *more, "--replacement", "4min"]) == 0
    alone = capsys.readouterr().out
    code = cli.main([*question, *more, "--replacement", "4min", "--together", "0.9"])
    at_once = "".join(capsys.readouterr())
    assert "g3.8xl:7" in alone
    assert code == 3
    assert "none of the" in at_once


def in_zone(seed: int, zone: float, *lives: Lifetime) -> Result:
    """Two hours of four nodes of each type."""
    staff = [Staff(f"type{i}", 4, 1.0, life, 0.0, math.inf) for i, life in enumerate(lives)]
    training = Training(staff, lambda counts: 1e-9, "second", zone=zone, give_up_s=2 * HOUR)
    return train(training, FREE, np.random.default_rng(seed), timeline=True)


def test_a_zone_goes_with_all_its_types() -> None:
    for seed in range(20):
        assert set(sizes(in_zone(seed, 1.0, Exponential(HOUR), Exponential(HOUR)))) <= {8}
        assert set(sizes(in_zone(seed, 0.0, Exponential(HOUR), Exponential(HOUR)))) <= {1}


@pytest.mark.parametrize("zone", [0.0, 0.5, 1.0])
def test_how_long_a_node_lives_does_not_depend_on_its_zone(zone: float) -> None:
    same = Exponential(2 * HOUR), Exponential(2 * HOUR)
    runs = [in_zone(seed, zone, *same).losses / 8 for seed in range(600)]
    gone = float(same[0].cdf(2 * HOUR))
    assert np.mean(runs) == pytest.approx(gone, abs=4 * math.sqrt(gone * (1 - gone) / 600))
    # Of types that live differently long it holds on average over the cluster.
    mixed = Exponential(HOUR), Exponential(8 * HOUR)
    runs = [in_zone(seed, zone, *mixed).losses / 8 for seed in range(600)]
    gone = float(mixed[0].cdf(2 * HOUR) + mixed[1].cdf(2 * HOUR)) / 2
    assert np.mean(runs) == pytest.approx(gone, abs=4 * math.sqrt(gone * (1 - gone) / 600))


def test_zones_and_types_are_said_in_one_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sentence = "nodes of all types go together: each with probability"
    both = said(capsys, "--together", "0.4,zone:20%")
    assert f"{sentence} 20 % as one" in both
    assert "nodes of a type go together: each with probability 40 %" in both
    assert f"{sentence} 77 % as one" in said(capsys, "--together", "zone:p3")
    assert "probability 30 %" in said(capsys, "--together", "type:0.3")
    assert "says zone twice" in said(capsys, "--together", "zone:0.1,zone:0.2", code=2)
    assert "expected a probability" in said(capsys, "--together", "zone:2", code=2)
    assert "there is no trace 'region:x'" in said(capsys, "--together", "region:x", code=2)
