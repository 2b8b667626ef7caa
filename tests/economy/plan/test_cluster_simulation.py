"""``spotmpi simulate cluster``, as its user sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotmpi import cli
from spotmpi.economy.plan import cluster_simulation


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert cli.main(["simulate", "cluster", *arguments]) == code
    streams = capsys.readouterr()
    return streams.out if code == 0 else streams.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(said(capsys, *arguments, "--json"))


FREE = ("--checkpoint-cost", "0s", "--boot", "0s")
"""The paper's times begin when training does, and hold no checkpoint."""


TRAINED = ("--study", "trained")
"""Which of the two lifetimes of the paper's nodes."""


def test_four_k80_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    """Table I: 1.05 h and $1.05 with the server as spot; the model's error is 10 %."""
    answer = as_json(capsys, "--cluster", "K80:4", "--runs", "2000", *FREE, *TRAINED)
    ours = answer["runtimes"]["spotmpi"]
    assert ours["seconds"]["mean"]["value"] / 3600 == pytest.approx(1.05, rel=0.1)
    assert ours["dollars"]["mean"]["value"] == pytest.approx(1.18, rel=0.1)  # Table IV's server
    assert ours["losses"] == pytest.approx(13 / 32, abs=0.1)
    assert answer["undisturbed"]["on_demand_dollars"] == pytest.approx(3.08, abs=0.01)


def test_a_restart_is_never_faster(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--cluster", "K80:8", "--lifetime", "exponential:2h", "--replacement", "4min")
    runtimes = as_json(capsys, *arguments, "--runs", "200")["runtimes"]
    for figure in ("mean", "p50", "p95"):
        for what in ("seconds", "dollars"):
            ours, theirs = (runtimes[name][what][figure] for name in ("spotmpi", "restart"))
            assert ours["value"] < theirs["value"]
            assert ours["low"] <= ours["value"] <= ours["high"]


def test_what_is_assumed_comes_before_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "--cluster", "K80:4", "--runs", "20", "--replacement", "4min", *TRAINED)
    assert out.startswith("ResNet-32 on CIFAR-10, 64,000 iterations, on K80:4\nprices of 2019-02")
    assert "told 30.0 s before, replaced after 4.0 min" in out
    assert "undisturbed: 66.2 min +- 10 % (the profile's error), $1.29; on demand $3.35" in out
    assert "K80: trains 5.4 min after its creation, which are paid; measured" in out
    assert "spotmpi" in out
    assert "restart" in out


def test_the_boot_is_waited_for_and_paid(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("--cluster", "K80:4", "--lifetime", "never", "--runs", "2")
    at_once = as_json(capsys, *question, *FREE)["runtimes"]["spotmpi"]
    booted = as_json(capsys, *question, *FREE[:2], "--boot", "10min")["runtimes"]["spotmpi"]
    waited = booted["seconds"]["p50"]["value"] - at_once["seconds"]["p50"]["value"]
    assert waited == pytest.approx(600)
    paid = booted["dollars"]["p50"]["value"] - at_once["dollars"]["p50"]["value"]
    assert paid == pytest.approx((4 * 0.256 + 0.143) / 6)


def test_on_demand_nodes_are_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    answer = as_json(capsys, "--cluster", "K80:2", "--on-demand", "--runs", "3")
    assert answer["runtimes"]["restart"]["losses"] == 0
    assert answer["undisturbed"]["dollars"] == answer["undisturbed"]["on_demand_dollars"]


def test_runs_that_never_end_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "--cluster", "K80:2", "--lifetime", "exponential:1min", "--runs", "5")
    assert out.count("never ends") == 2 * 6
    assert "ended                0.0 %" in out


def test_a_trace_says_how_many_nodes_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "nodes.csv"
    trace.write_text("0,2\n3600000,2\n7200000,2\n")
    half = as_json(capsys, "--cluster", "K80:4", "--trace", str(trace), "--runs", "3")
    two = as_json(capsys, "--cluster", "K80:2", "--on-demand", "--runs", "3")
    seconds = [one["runtimes"]["spotmpi"]["seconds"]["mean"]["value"] for one in (half, two)]
    assert seconds[0] == pytest.approx(seconds[1])


def test_the_same_seed_gives_the_same_figures(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--cluster", "K80:4,V100:1", "--runs", "50", *TRAINED)
    first = said(capsys, *arguments, "--seed", "3")
    assert said(capsys, *arguments, "--seed", "3") == first
    assert said(capsys, *arguments, "--seed", "4") != first


@pytest.mark.parametrize("lifetime", ["exponential:2h", "exponential:1min"])
def test_the_plot_is_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lifetime: str
) -> None:
    """Also of a training that never ends."""
    plot = tmp_path / "plot.png"
    arguments = ("--cluster", "K80:2", "--lifetime", lifetime, "--runs", "20")
    assert f"drawn: {plot}" in said(capsys, *arguments, "--plot", str(plot))
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--cluster", "K80"), "--cluster is 'K80', expected types and numbers as in K80:4,V100:1"),
        (
            ("--cluster", "A100:1"),
            "have no instance 'A100'; did you mean V100?",
        ),
        (
            ("--cluster", "V100:1"),
            "studies disagree on how long V100 nodes live; say --study trained",
        ),
        (
            ("--cluster", "V100:1", "--study", "best"),
            "have no study 'best'; known are trained, watch",
        ),
        (
            ("--cluster", "K80:1", "--study", "watched", "--lifetime", "never"),
            "--study and --lifetime both say how long nodes live; leave one out",
        ),
        (("--cluster", "K80:9999999"), "has 9,999,999 workers, expected at most 1,000,000"),
        (("--cluster", "K80:1", "--trace", "x.csv", "--notice", "1s"), "leave out --notice and"),
        (("--cluster", "K80:1", "--runs", "0"), "--runs is 0, expected at least 1"),
        (("--cluster", "K80:1", "--prices", "2023"), "--prices needs --profile"),
        (("--cluster", "K80:1", "--lifetime", "long"), "--lifetime is 'long'"),
        (("--cluster", "K80:1", "--notice", "30"), "--notice is '30', expected a number with its"),
        (("--cluster", "K80:1", "--on-demand", "--lifetime", "never"), "--on-demand nodes are not"),
        (("--cluster", "K80:1", "--checkpoint-every", "0s"), "--checkpoint-every is 0, expected"),
        (("--cluster", "K80:1", "--trace", "nowhere.csv"), "nowhere.csv cannot be read"),
        (("--cluster", "K80:1", "--plot", "nowhere/at/all.png"), "there is no folder nowhere/at"),
        (("--cluster", "K80:1", "--plot", "plot.xyz"), "expected a name that ends in .png"),
        (("--cluster", "K80:1", "--plot", "plot"), "expected a name that ends in .png"),
        (("--cluster", "K80:1", "--plot", "."), "is a folder; name a file in it"),
        (("--cluster", "K80:1", "--loss", "0.8"), "has no loss model"),
        (("--cluster", "K80:1", "--iterations", "-1"), "--iterations is -1, expected more than 0"),
        (("--cluster", "K80:1", "--profile", "mine", "--prices", "2023"), "no profile 'mine'"),
    ],
)
def test_impossible_questions_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    err = said(capsys, *arguments, *([] if "--runs" in arguments else ["--runs", "2"]), code=2)
    assert err.startswith("spotmpi simulate: ")
    assert err.count("\n") == 1
    assert sentence in err


def test_a_plot_that_cannot_be_drawn_is_known_before_the_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_soon(*_: object) -> None:
        raise AssertionError("the runs had begun")

    monkeypatch.setattr(cluster_simulation, "campaign", too_soon)
    said(capsys, "--cluster", "K80:1", "--plot", "nowhere/at/all.png", code=2)
    monkeypatch.setattr(cluster_simulation, "find_spec", lambda name: None)
    err = said(capsys, "--cluster", "K80:1", "--plot", "plot.png", code=2)
    assert "--plot needs matplotlib: python -m pip install matplotlib" in err


def test_it_is_said_that_means_are_of_the_runs_that_ended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sentence = "the means are those of the runs that ended; the others were given up"
    lossy = ("--cluster", "K80:4", "--lifetime", "exponential:1h", "--runs", "50")
    assert sentence in said(capsys, *lossy)
    assert sentence not in said(capsys, "--cluster", "K80:4", "--on-demand", "--runs", "5")


def test_nodes_that_live_for_milliseconds_end_the_run_not_the_patience(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fate = ("--lifetime", "exponential:1ms", "--replacement", "1ms")
    answer = as_json(capsys, "--cluster", "K80:4", *fate, "--runs", "1")
    assert answer["runtimes"]["spotmpi"]["ended"]["value"] == 0


def test_a_trace_of_mixed_nodes_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "nodes.csv"
    trace.write_text("0,2\n1000,3\n")
    err = said(capsys, "--cluster", "K80:1,V100:1", "--trace", str(trace), code=2)
    assert "--trace says how many nodes there are, not of which type" in err
