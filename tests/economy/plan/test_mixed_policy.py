"""On-demand nodes in the place of lost spot nodes, where the deadline needs them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotmpi import cli
from spotmpi.economy.market.lifetimes import Exponential, Lifetime, Never
from spotmpi.economy.plan.events import Fallback, Result, Runtime, Staff, Training, train

HOUR = 3600.0
FREE = Runtime("free", 0, 0, True, False, 0, math.inf, 0)
SAFE = Runtime("safe", 0, 0, True, False, 0, 1e-3, 0)
"""Nothing is lost with the last node: a checkpoint costs nothing."""


def lived(
    life: Lifetime,
    *,
    deadline_h: float,
    nodes: int = 4,
    boot_s: float = 60.0,
    replacement_s: float = math.inf,
    seed: int = 0,
    fallback: bool = True,
    runtime: Runtime = FREE,
) -> Result:
    """Ten hours of work on all nodes; a spot node costs $1 an hour, one on demand $3."""
    staff = Staff("worker", nodes, 1.0, life, 0.0, replacement_s, boot_s)
    training = Training(
        [staff],
        lambda counts: sum(counts) / (nodes * 10 * HOUR),
        "second",
        fallback=Fallback(deadline_h * HOUR, [3.0]) if fallback else None,
    )
    return train(training, runtime, np.random.default_rng(seed))


def test_who_loses_nothing_hires_nobody() -> None:
    outcome = lived(Never(), deadline_h=10.5)
    assert (outcome.hired_s, outcome.seconds) == (0, pytest.approx(10 * HOUR))
    assert outcome.dollars == pytest.approx(40)


def test_what_is_lost_is_hired_only_when_the_even_pace_has_caught_up() -> None:
    """The one node is lost at some time, and the deadline is twice the work."""
    outcome = lived(Exponential(3 * HOUR), deadline_h=20, nodes=1, boot_s=60, runtime=SAFE)
    lost = outcome.dollars - 3 * outcome.hired_s / HOUR
    assert 0 < lost < 10, "in hours, as its node costs a dollar"
    assert outcome.losses == 1
    # What was done is enough until twice that time; then it boots and does the rest.
    assert outcome.hired_s == pytest.approx((10 - lost) * HOUR + 60)
    assert outcome.seconds == pytest.approx((2 * lost + 10 - lost) * HOUR + 60)


def test_who_must_does_it_at_once() -> None:
    """Without slack for two boots the loss is replaced in the moment in which it happens."""
    outcome = lived(
        Exponential(5 * HOUR), deadline_h=10.05, nodes=1, boot_s=120, seed=1, runtime=SAFE
    )
    assert outcome.losses == 1
    assert outcome.seconds == pytest.approx(10 * HOUR + 120, abs=1)


def test_a_spot_node_that_comes_ends_the_hire() -> None:
    paid = lived(Exponential(2 * HOUR), deadline_h=16, replacement_s=1200, seed=2)
    alone = lived(Exponential(2 * HOUR), deadline_h=16, replacement_s=1200, seed=2, fallback=False)
    assert paid.losses > 3
    assert paid.hired_s < 0.2 * 40 * HOUR
    assert paid.seconds <= 16 * HOUR
    assert alone.seconds > 10 * HOUR


@settings(max_examples=80, deadline=None)
@given(
    *(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.02, 20), st.floats(0, 900)),
    *(st.floats(0.0, 6), st.sampled_from([math.inf, 60.0, 3600.0])),
)
def test_nobody_is_late_who_has_time_for_two_boots(
    seed: int, nodes: int, mean_h: float, boot_s: float, slack_h: float, replacement_s: float
) -> None:
    """Also where all nodes live for minutes."""
    life = Exponential(mean_h * HOUR)
    deadline_h = 10 + slack_h + (2 * boot_s + 1) / HOUR
    outcome = lived(
        life,
        deadline_h=deadline_h,
        nodes=nodes,
        boot_s=boot_s,
        seed=seed,
        replacement_s=max(replacement_s, boot_s),
        runtime=SAFE,
    )
    assert outcome.seconds <= deadline_h * HOUR + 1
    assert outcome.dollars <= 3 * nodes * (10 + slack_h) + 5 * nodes * (outcome.losses + 2)


LOSSY = (
    *("plan", "--profile", "spotdnn", "--prices", "2023", "--loss", "0.8", "--runs", "100"),
    *("--quota", "p3.2xl:2,g3.8xl:8", "--deadline", "42min", "--boot", "1min"),
    *("--lifetime", "exponential:20min", "--replacement", "10min"),
)


def test_a_plan_that_is_late_on_spot_is_in_time_mixed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*LOSSY]) == 3
    capsys.readouterr()
    assert cli.main([*LOSSY, "--policy", "mixed", "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    for plan in answer["plans"]:
        assert plan["in_time"]["value"] == 1
        assert plan["hired_node_seconds"] > 0
        # Dearer than undisturbed, and at most what on demand costs and the boots.
        assert plan["undisturbed"]["dollars"] < plan["dollars"]["p50"]["value"]
    assert cli.main([*LOSSY, "--policy", "mixed"]) == 0
    assert "mixed: on-demand nodes take the place of missing spot nodes" in capsys.readouterr().out


@pytest.mark.matrix
def test_a_boot_that_nobody_knows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "nobody knows how long p3.2xl, g3.8xl boot, so on-demand nodes are taken to train at"
    unknown = [one for one in LOSSY if one not in ("--boot", "1min")]
    assert cli.main([*unknown, "--policy", "mixed"]) == 0
    assert sentence in capsys.readouterr().out
    assert cli.main([*LOSSY, "--policy", "mixed"]) == 0
    assert sentence not in capsys.readouterr().out


def test_a_type_without_an_on_demand_price_cannot_be_mixed(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("name,spot\ng3.8xl,0.7\n")
    question = ("plan", "--profile", "spotdnn", "--loss", "0.8", "--deadline", "2h")
    more = ("--quota", "g3.8xl:4", "--policy", "mixed", "--prices", str(path))
    assert cli.main([*question, *more]) == 2
    assert "g3.8xl has no on-demand price" in capsys.readouterr().err
