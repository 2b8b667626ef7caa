"""``spotmpi plan``, as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi import cli
from spotmpi.economy.models import profiles

PUBLISHED = ("--profile", "spotdnn", "--prices", "2023", "--loss", "0.8", "--runs", "50")
NODES = ("--profile", "icac19", "--prices", "icac19", "--runs", "200")
QUEUE = (*NODES, "--study", "trained")


PROFILED = """\
model: ring
name: train.py
error_percent: 5
gradient_mb: 4
loss: {g1: 20, g3: 100, g5: 0.5}
instances:
  local: {workers_per_host: 2, cores: 2, compute_s: 0.01, exchange_s_per_worker: 0.002}
"""
"""As `spotmpi profile` writes it where nobody has said what the host is, and one host was there."""


@pytest.fixture
def mine(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "train.yaml").write_text(PROFILED)
    (tmp_path / "prices.csv").write_text("name,spot,lifetime\nlocal,0.03,never\nc5.large,0.03,\n")
    files = ("--profile", str(tmp_path / "train.yaml"), "--prices", str(tmp_path / "prices.csv"))
    return (*files, "--loss", "0.6", "--deadline", "1h", "--runs", "20")


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command prints, on either stream."""
    assert cli.main(["plan", *arguments]) == code
    streams = capsys.readouterr()
    return streams.out if code == 0 else streams.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


def test_the_published_plan_is_found_and_costs_what_was_published(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quota = ("--quota", "g3.8xl:5,g3.16xl:3", "--deadline", "43min")
    (plan,) = as_json(capsys, *PUBLISHED, *quota)["plans"]
    assert plan["cluster"] == {"g3.8xl": 5, "g3.16xl": 3}
    assert plan["undisturbed"]["seconds"] == pytest.approx(2549.02, abs=0.1)
    # Checkpoints of 5 s every 10 minutes are no part of it, and are in the simulated runs.
    assert plan["seconds"]["p50"]["value"] == pytest.approx(2549.02 * 605 / 600, abs=0.1)
    free = as_json(capsys, *PUBLISHED, *quota, "--checkpoint-cost", "0s")["plans"][0]
    assert free["seconds"]["p50"]["value"] == pytest.approx(2549.02, abs=0.1)
    assert plan["on_demand_dollars"] == pytest.approx(
        plan["undisturbed"]["dollars"] / 0.3, rel=1e-3
    )


def test_the_table_is_ranked_and_says_why_others_are_not_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = said(capsys, *PUBLISHED, "--deadline", "1h", "--quota", "g3.8xl:8,g3.16xl:4,g4dn.4xl:4")
    assert "times and costs below are +- 7 %, the profile's error, beside chance" in out
    assert "searched all 224 clusters; of the " in out
    assert "50 runs of each below; listed are those in time in 95 % of the runs" in out
    assert "g3.8xl: nobody knows how long it boots, so it trains at once (--boot); nobody" in out
    assert "nobody knows its lifetime; never revoked below (--lifetime)" in out
    rows = [line.split() for line in out.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == list("12345678")
    costs = [float(row[4].removeprefix("$")) for row in rows]
    assert costs == sorted(costs)
    assert "g4dn.4xl:4: takes 82.3 min, 22.3 min (37 %) too long" in out
    assert "g3.16xl:4: costs $5.11, $2.00 more than the first" in out


def test_revocations_spread_time_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    quota = ("--quota", "K80:4,V100:2", "--replacement", "5min")
    plans = as_json(capsys, *QUEUE, *quota, "--deadline", "1h")["plans"]
    spread = [plan["seconds"]["p95"]["value"] / plan["seconds"]["p50"]["value"] for plan in plans]
    assert max(spread) > 1.1
    for plan in plans:
        share = plan["in_time"]
        assert share["low"] <= share["value"] <= share["high"] + 1e-9
        assert plan["in_time_if_slower_by_the_error"]["value"] <= plan["in_time"]["value"]


def test_what_chance_leaves_open_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    quota = ("--quota", "K80:4", "--deadline", "2h")
    out = said(capsys, *NODES, *quota, "--lifetime", "never")
    assert "by chance p50 and p95 are at most 0.0 % off (95 % intervals: --json)\n" in out
    few = said(capsys, *NODES[:-2], *QUEUE[-2:], *quota, "--runs", "5")
    assert "by chance p50 and p95 may be off by any amount: too few runs" in few
    # Two P100 are both lost in some runs.
    # In some runs both P100 are lost.
    some = said(capsys, *QUEUE, "--confidence", "90", "--quota", "K80:5,P100:2", "--deadline", "1h")
    assert "(95 % intervals: --json)" in some


# What the profile's own error does.

TIGHT = (
    *("--profile", "spotdnn", "--prices", "2023", "--loss", "0.8", "--deadline", "1h"),
    *("--lifetime", "exponential:5h", "--replacement", "3min", "--runs", "200"),
    *("--quota", "g3.8xl:8,g3.16xl:4,g4dn.4xl:4"),
)


def test_the_first_choice_is_in_time_also_if_the_profile_is_off_by_its_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is cheaper, and then late, stands below, with its risk."""
    answer = as_json(capsys, *TIGHT)
    assert answer["in_time_also_if_slower_by_the_error"] is True
    plans, risky = answer["plans"], answer["risky"]
    assert plans[0]["cluster"] == {"g3.8xl": 5}
    assert all(plan["in_time_if_slower_by_the_error"]["value"] >= 0.95 for plan in plans)
    assert risky[0]["cluster"] == {"g3.8xl": 4, "g4dn.4xl": 1}, "the cheapest undisturbed"
    for plan in risky:
        assert plan["in_time"]["value"] >= 0.95 > plan["in_time_if_slower_by_the_error"]["value"]
        assert plan["dollars"]["p95"]["value"] < plans[0]["dollars"]["p95"]["value"]
    out = said(capsys, *TIGHT)
    rows = [line.split() for line in out.split("bottleneck")[1].splitlines()[1:]]
    assert [row[0] for row in rows[:11]] == [*"12345678", "risky", "risky", "safe"]
    assert rows[8][1] == "g3.8xl:4,g4dn.4xl:1"
    assert (
        "the first costs least of those that are in time in 95 % of the runs also if every" in out
    )
    assert "risky: cheaper, but late too often if everything takes so much longer" in out
    assert answer["on_demand"]["seconds"] * 1.071 < 3600, "what is called safe is"


def test_a_plan_that_the_profile_s_error_upsets_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = [*TIGHT[:-1], "g3.8xl:4,g4dn.4xl:2"]
    answer = as_json(capsys, *question)
    assert answer["in_time_also_if_slower_by_the_error"] is False
    then = [plan["in_time_if_slower_by_the_error"]["value"] for plan in answer["plans"]]
    assert then[0] == max(then)
    assert then == sorted(then, reverse=True)
    assert answer["plans"][0]["cluster"] == {"g3.8xl": 4, "g4dn.4xl": 2}, "not the cheapest"
    assert answer["risky"] == []
    out = said(capsys, *question)
    assert "do not rely on it: no cluster was found that is in time in 95 % of the runs also" in out
    assert f"the first is then in time in {100 * then[0]:.0f} %, and none more often" in out


def test_who_hires_in_time_is_asked_what_it_does_if_everything_takes_longer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mixed training that falls behind hires: it does not end so much later, it costs more."""
    question = (*TIGHT[:-1], "g3.8xl:5", "--policy", "mixed", "--lifetime", "exponential:2h")
    (plan,) = as_json(capsys, *question)["plans"]
    assert plan["seconds"]["p95"]["value"] * 1.071 > 3600
    assert plan["in_time_if_slower_by_the_error"]["value"] > 0.95


def test_without_an_error_in_the_profile_the_cheapest_is_the_first(
    capsys: pytest.CaptureFixture[str], mine: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.yaml").write_text(PROFILED.replace("error_percent: 5\n", ""))
    answer = as_json(capsys, *mine, "--quota", "local:1")
    assert answer["in_time_also_if_slower_by_the_error"] is None
    assert answer["plans"][0]["in_time_if_slower_by_the_error"] is None
    assert "the profile does not say how far off" in said(capsys, *mine, "--quota", "local:1")


UNDER_FIRE = (
    *("--profile", "spotdnn", "--prices", "2023", "--loss", "0.8", "--deadline", "40min"),
    *("--lifetime", "exponential:30min", "--replacement", "5min"),
)


@pytest.mark.matrix
def test_revocations_choose_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """The eight that are cheapest undisturbed are in time in less than half of the runs. Those that
    would be chosen if the profile had no error stand below."""
    quota = ("--quota", "p3.2xl:2,g4dn.4xl:5,g3.8xl:8,g3.16xl:8")
    answer = as_json(capsys, *UNDER_FIRE, *quota, "--runs", "400", "--confidence", "90")
    first, *others = answer["plans"]
    assert first["cluster"] == {"p3.2xl": 2, "g3.8xl": 8, "g3.16xl": 1}
    assert first["dollars"]["p90"]["value"] == pytest.approx(4.8, abs=0.1)
    assert answer["risky"][0]["cluster"] == {"p3.2xl": 2, "g3.8xl": 7}
    assert answer["risky"][0]["dollars"]["p90"]["value"] == pytest.approx(3.9, abs=0.1)
    costs = [plan["dollars"]["p90"]["value"] for plan in answer["plans"]]
    assert costs == sorted(costs)
    assert all(plan["in_time"]["value"] >= 0.9 for plan in answer["plans"])
    assert others, "else nothing was ranked"
    assert answer["searched"]["fast_enough_undisturbed"] > answer["searched"]["simulated"]


@pytest.mark.matrix
def test_the_safe_plan_costs_at_least_as_much(capsys: pytest.CaptureFixture[str]) -> None:
    quota = ("--quota", "p3.2xl:2,g4dn.4xl:5,g3.8xl:8,g3.16xl:8", "--runs", "400")
    half, sure = (
        as_json(capsys, *UNDER_FIRE, *quota, "--confidence", part)["plans"][0]
        for part in ("50", "99")
    )
    if_slower = "in_time_if_slower_by_the_error"
    assert sure[if_slower]["value"] >= 0.99 > half[if_slower]["value"]
    assert sure["dollars"]["p50"]["value"] > half["dollars"]["p50"]["value"]


def test_without_a_cluster_in_time_the_best_is_named_and_what_binds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quota = ("--quota", "p3.2xl:2,g4dn.4xl:5,g3.8xl:3", "--runs", "200")
    err = said(capsys, *UNDER_FIRE, *quota, code=3)
    assert (
        "no plan: none of the 5 clusters that are fast enough undisturbed is in time in 95" in err
    )
    assert "the best, p3.2xl:2,g4dn.4xl:5,g3.8xl:3, is in " in err
    assert "the deadline binds: 95 % of its runs end within" in err
    assert cli.main(["plan", *UNDER_FIRE, *quota, "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert not answer["feasible"]
    assert answer["best"]["cluster"] == {"p3.2xl": 2, "g4dn.4xl": 5, "g3.8xl": 3}


def test_an_unknown_lifetime_is_said_and_what_the_choice_depends_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quota = ("--quota", "p3.2xl:2,g4dn.4xl:5,g3.8xl:4", "--deadline", "1h")
    out = said(capsys, *PUBLISHED, *quota, "--replacement", "5min")
    assert "not known: no lifetime of p3.2xl" in out
    table = out.split("bottleneck")[1].split("by chance")[0].splitlines()
    assert not any("100 %" in line for line in table if not line.startswith("safe"))
    answer = as_json(capsys, *PUBLISHED, *quota, "--replacement", "5min")
    open_ = answer["if_lifetimes_are_short"]
    assert open_["lifetime_unknown_of"] == ["p3.2xl", "g4dn.4xl", "g3.8xl"]
    # With lives that long the choice is this one, and with shorter ones it is another.
    for mean_s, same in ((open_["mean_s_or_more"], True), (open_["changes_at_mean_s"], False)):
        known = ("--lifetime", f"exponential:{mean_s}s", "--replacement", "5min")
        chosen = as_json(capsys, *PUBLISHED, *quota, *known)
        assert chosen["if_lifetimes_are_short"] is None
        assert (chosen["plans"][0]["cluster"] == open_["cluster"]) is same


@pytest.mark.parametrize("part", ["0", "100", "x", "-5", "nan"])
def test_an_impossible_confidence_is_refused(capsys: pytest.CaptureFixture[str], part: str) -> None:
    question = ("--quota", "K80:4", "--deadline", "2h", f"--confidence={part}")
    err = said(capsys, *QUEUE, *question, code=2)
    assert f"--confidence is '{part}', expected a part of all runs, as 95 or 99.5" in err


def test_the_server_s_price_is_counted_if_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def dollars(*more: str) -> float:
        question = ("--quota", "K80:1", "--deadline", "5h", "--lifetime", "never")
        plan = as_json(capsys, *NODES, *question, *more)["plans"][0]
        return float(plan["undisturbed"]["dollars"])

    hours = 3.91
    assert dollars("--boot", "0s") == pytest.approx(0.256 * hours, rel=1e-3)
    hours += 325 / 3600  # from its creation to the first step
    assert dollars() == pytest.approx(0.256 * hours, rel=1e-3)
    assert dollars("--include-ps") == pytest.approx((0.256 + 0.143) * hours, rel=1e-3)


def test_after_a_revocation_what_is_left_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    again = ("--existing", "K80:3", "--done", "32000", "--quota", "K80:6", "--deadline", "40min")
    out = said(capsys, *QUEUE, *again, "--replacement", "5min")
    assert "K80:3 run already and are kept, new ones train after 5.0 min" in out
    assert "32000 iterations are done; times and costs below are of what is left to do" in out
    plans = as_json(capsys, *QUEUE, *again, "--replacement", "5min")["plans"]
    assert {plan["cluster"]["K80"] for plan in plans} <= {3, 4, 5, 6}
    four = next(plan for plan in plans if plan["cluster"]["K80"] == 4)
    whole = as_json(capsys, *QUEUE, "--quota", "K80:4", "--deadline", "2h")["plans"]
    complete = next(plan for plan in whole if plan["cluster"]["K80"] == 4)
    half = (complete["undisturbed"]["seconds"] - 325) / 2  # it boots only once
    model = profiles.shipped("icac19")
    three = 300 * model.rate({"K80": 3}) / 32000  # three train while the fourth starts
    assert four["undisturbed"]["seconds"] == pytest.approx(300 + (1 - three) * half)
    assert four["seconds"]["p50"]["value"] >= 300 + (1 - three) * half - 1e-6


AGAIN = (
    *("--profile", "spotdnn", "--prices", "2023", "--loss", "0.8", "--deadline", "900s"),
    *("--existing", "g3.16xl:3", "--quota", "g3.16xl:3,p3.2xl:5", "--lifetime", "never"),
    *("--replacement", "0s", "--checkpoint-cost", "0s", "--runs", "2"),
)


def test_a_loss_that_is_reached_is_planned_from(capsys: pytest.CaptureFixture[str]) -> None:
    """An iteration of more workers is worth less, so iterations cannot be carried over."""
    plans = as_json(capsys, *AGAIN, "--from-loss", "0.949")["plans"]
    took = {plan["cluster"].get("p3.2xl", 0): plan["undisturbed"]["seconds"] for plan in plans}
    assert took[3] == pytest.approx(715, abs=2)
    assert took[2] == pytest.approx(827, abs=2)
    assert [took[more] for more in sorted(took)] == sorted(took.values(), reverse=True)


def test_iterations_of_another_cluster_count_by_the_loss_that_they_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = ("--done", "11000", "--done-on", "g3.8xl:5,g3.16xl:3")
    reached = profiles.shipped("spotdnn").loss_after({"g3.8xl": 5, "g3.16xl": 3}, 11000)
    by_loss = as_json(capsys, *AGAIN, "--from-loss", repr(reached))["plans"][0]["undisturbed"]
    carried = as_json(capsys, *AGAIN, *whole)["plans"][0]["undisturbed"]
    assert carried["seconds"] == pytest.approx(by_loss["seconds"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from-loss", "0.7"), "a loss of 0.7 is reached already, and --loss is 0.8"),
        (("--from-loss", "nan"), "--from-loss is nan, expected a number"),
        (("--from-loss", "0.9", "--done", "3"), "both say what is done; leave one out"),
        (("--done-on", "g3.8xl:3"), "--done-on says where --done iterations were done"),
    ],
)
def test_what_is_done_is_one_answer(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    err = said(capsys, *AGAIN, *arguments, code=2)
    assert sentence in err
    assert err.count("\n") == 1


def test_what_iterations_are_worth_needs_their_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = ("--quota", "g3.8xl:4", "--deadline", "2h", "--done", "11000")
    assert "say --done-on TYPE:N,..., or the loss" in said(capsys, *PUBLISHED, *question, code=2)


# No plan.


def test_a_quota_that_binds_is_named_with_what_would_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = said(capsys, *QUEUE, "--quota", "K80:2", "--deadline", "1h", code=3)
    assert "no plan: the fastest cluster within the quota, K80:2, takes 119.5 min" not in err
    assert "K80:2, takes" in err
    assert "more than the deadline of 60.0 min; the quota binds: with 3 more K80 (K80:5)" in err


def test_a_deadline_that_binds_says_how_far_one_comes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quota = ("--quota", "g3.8xl:8,g4dn.4xl:4", "--deadline", "10min")
    err = said(capsys, *PUBLISHED, *quota, code=3)
    assert "the deadline binds: 64 more of any one type beside it would not do" in err
    assert "by the deadline" in err
    assert "comes to a loss of 1." in err


def test_the_loss_that_is_reached_by_the_deadline_is_reached_by_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is rounded up, and the checkpoints' time is counted in."""
    question = ("--profile", "spotdnn", "--prices", "2023", "--runs", "1", "--deadline", "1h")
    quota = ("--quota", "g3.8xl:2")
    err = said(capsys, *question, *quota, "--loss", "0.8", code=3)
    loss = err.rstrip().rpartition(" ")[2]
    assert as_json(capsys, *question, *quota, "--loss", loss)["feasible"]
    assert "no plan" in said(capsys, *question, *quota, "--loss", f"{float(loss) - 1e-3}", code=3)


def test_a_larger_quota_that_is_said_to_do_counts_the_start_of_new_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Though the quota has none of them, so that nothing else waits for new nodes."""
    again = ("--existing", "K80:4", "--deadline", "50min", "--replacement", "10min")
    err = said(capsys, *QUEUE, *again, "--quota", "K80:4", code=3)
    assert "the quota binds: with 2 more K80 (K80:6) it would be in time" in err
    assert as_json(capsys, *QUEUE, *again, "--quota", "K80:7")["feasible"]
    assert "with 1 more K80 (K80:6)" in said(capsys, *QUEUE, *again, "--quota", "K80:5", code=3)


def test_a_plan_beyond_the_bound_of_windows_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    quota = ("--quota", "g3.8xl:100,g3.16xl:100,g4dn.4xl:100", "--deadline", "30min")
    answer = as_json(capsys, *PUBLISHED, *quota)
    assert not answer["searched"]["all"]
    assert sum(answer["plans"][0]["cluster"].values()) > 13


def test_more_instances_than_can_be_searched_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = said(capsys, *QUEUE, "--quota", "K80:999999999", "--deadline", "1h", code=2)
    assert "--quota has 999,999,999 instances, expected at most 1,000,000" in err


def test_runs_that_did_not_end_are_no_short_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even half of them end, so the half that stays below any time is not there."""
    question = ("--quota", "K80:4", "--deadline", "70min", "--lifetime", "exponential:1h")
    assert cli.main(["plan", *NODES, *question, "--json"]) == 3
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["in_time"]["value"] < 0.2
    assert best["seconds"] == best["dollars"] == {"p50": None, "p95": None}
    assert "revocations bind: too many runs never end" in said(capsys, *NODES, *question, code=3)


def test_a_training_of_so_many_iterations_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    """As needs be where a profile has no loss."""
    plans = [
        as_json(
            capsys,
            *(*NODES, "--quota", "K80:1", "--deadline", "5h", "--lifetime", "never"),
            *("--iterations", number, "--boot", "0s"),
        )
        for number in ("32000", "64000")
    ]
    half, whole = (answer["plans"][0]["undisturbed"]["seconds"] for answer in plans)
    assert 2 * half == pytest.approx(whole)


def test_nothing_left_to_do_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("--profile", "spotdnn", "--prices", "2023", "--quota", "g3.8xl:2")
    err = said(capsys, *question, "--deadline", "1h", "--loss", "1e9", code=2)
    assert "has before its first iteration; ask for less" in err
    done = ("--loss", "0.8", "--existing", "g3.8xl:2", "--done", "8e5")
    err = said(capsys, *question, "--deadline", "1h", *done, code=2)
    assert "is reached already, and --loss is 0.8: no iteration is left to do" in err


def test_no_plan_is_json_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *QUEUE, "--quota", "K80:1", "--deadline", "1min", "--json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["feasible"] is False
    assert "takes" in answer["reason"]


# What cannot be.


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--quota", "K80:0", "--deadline", "1h"), "--quota is 'K80:0', which is no instance"),
        (("--quota", "K80", "--deadline", "1h"), "--quota is 'K80', expected types and numbers"),
        (("--quota", "K81:1", "--deadline", "1h"), "does not know instance type 'K81'; it knows"),
        (("--quota", "K80:1", "--deadline", "2"), "--deadline is '2', expected a number with its"),
        (("--quota", "K80:1", "--deadline", "0s"), "--deadline is 0, expected more"),
        (("--quota", "K80:1", "--deadline", "-1h"), "--deadline is '-1h', expected a number with"),
        (("--quota", "K80:1", "--deadline", "1h", "--runs", "0"), "--runs is 0, expected at least"),
        (("--quota", "K80:1", "--deadline", "1h", "--loss", "0.3"), "no loss"),
        (
            ("--quota", "K80:1", "--deadline", "1h", "--existing", "K80:2"),
            "K80 runs already, 2 of them, and the quota has 1; a quota includes what runs",
        ),
    ],
)
def test_impossible_questions_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    err = said(capsys, *QUEUE, *arguments, code=2)
    assert err.startswith("spotmpi plan: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_type_that_was_not_measured_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str], mine: tuple[str, ...]
) -> None:
    err = said(capsys, *mine, "--quota", "c5.large:4", code=2)
    assert err == (
        "spotmpi plan: the profile of train.py does not know instance type 'c5.large'; it knows "
        "local, as it was measured there; local is a host that was profiled without --instance: "
        "if it is a c5.large, write c5.large in its place into the profile, and else profile your "
        "script on one (spotmpi profile --instance c5.large)\n"
    )
    err = said(capsys, *PUBLISHED, "--deadline", "1h", "--quota", "c5.large:4", code=2)
    assert "as it was measured there; ask for one of these, or profile your script on one" in err


def test_clusters_that_cannot_be_predicted_are_counted_with_the_reason(
    capsys: pytest.CaptureFixture[str], mine: tuple[str, ...]
) -> None:
    out = said(capsys, *mine, "--quota", "local:8")
    why = "nobody has measured a run on several hosts; add bandwidth_mbps (MB/s of a host) and lat"
    assert f"  7 cannot be predicted; of local:2, for one: {why}" in out
    searched = as_json(capsys, *mine, "--quota", "local:8")["searched"]
    assert searched["outside_the_model"] == 7
    assert searched["outside_for_example"]["cluster"] == {"local": 2}
    assert searched["outside_for_example"]["why"].startswith(why)
    err = said(capsys, *mine, "--quota", "local:8", "--existing", "local:2", code=3)
    assert "train.py predicts no cluster within the quota local:8; of local:2, for one: " in err
    assert why in err


def test_a_name_that_only_the_profile_has_is_said_to_be_needed_in_both(
    capsys: pytest.CaptureFixture[str], mine: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "prices.csv").write_text("name,spot\nc5.large,0.03\n")
    err = said(capsys, *mine, "--quota", "local:8", code=2)
    assert (
        "have no instance 'local'; known are c5.large; a type must have the same name in the" in err
    )


def test_a_loss_at_the_floor_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--profile", "spotdnn", "--prices", "2023", "--loss", "0.5")
    err = said(capsys, *arguments, "--quota", "g3.8xl:1", "--deadline", "1h", code=2)
    assert "a loss of 0.5 is never reached: the floor of ResNet-110 on CIFAR-10 is 0.5" in err


def test_a_zero_price_is_refused_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("name,spot\nK80,0.256\nV100,0\n")
    arguments = ("--profile", "icac19", "--prices", str(prices), "--quota", "K80:1")
    err = said(capsys, *arguments, "--deadline", "1h", code=2)
    assert f"{prices}, line 3: spot is 0 $/h, expected more than 0" in err


def test_an_instance_without_a_price_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("name,spot\nV100,1\n")
    arguments = ("--profile", "icac19", "--prices", str(prices), "--quota", "K80:1")
    assert "K80" in said(capsys, *arguments, "--deadline", "1h", code=2)


def test_what_is_on_demand_stands_beside_as_the_safe_alternative(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = (*PUBLISHED, "--deadline", "1h", "--quota", "g3.8xl:8,g3.16xl:4,g4dn.4xl:4")
    out = said(capsys, *question)
    (safe,) = [line for line in out.splitlines() if line.startswith("safe")]
    assert safe.split()[:5] == ["safe", "g3.8xl:5", "on", "demand", "54.6"]
    assert "$10.38" in safe
    answer = as_json(capsys, *question)["on_demand"]
    assert answer["cluster"] == {"g3.8xl": 5}
    assert answer["dollars"] == pytest.approx(10.38, abs=0.01)


def test_where_revocations_make_all_late_on_demand_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    question = ("--quota", "K80:4", "--deadline", "70min", "--lifetime", "exponential:1h")
    err = said(capsys, *NODES, *question, code=3)
    assert err.rstrip().endswith("; on demand K80:4 takes 66.2 min and costs $3.19")
