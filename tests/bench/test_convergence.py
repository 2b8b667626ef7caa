"""`spotmpi.bench.convergence`, small: that what it says happened did happen."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.bench import convergence
from spotmpi.bench.convergence import Shape
from spotmpi.bench.measuring import tasks
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.errors import UsageError
from spotmpi.strategies import NAMES, named


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    convergence.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.matrix
def test_a_strategy_is_measured_with_deaths_and_joins_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plot = tmp_path / "convergence.json", tmp_path / "convergence.png"
    words = ["--sets", "digits", "--strategies", "localsgd:h=2", "--seeds", "2"]
    words += ["--rates", "0.1", "--passes", "4", "--json", str(file), "--plot", str(plot)]
    words += ["--workers", "4"]  # most of the time goes into their start
    code = convergence.main(arguments(*words))
    results = json.loads(file.read_text())
    assert (code, results["failures"]) == (0, [])
    (cell,) = results["cells"]
    for side in ("without", "with"):
        assert 0.8 < cell[side]["2"] < 1
    (run,) = cell["runs"]
    assert run["steps"] > cell["steps"], "fewer workers need more steps for a pass"
    assert len({worker for worker, _ in run["deaths"]}) == 3
    assert len(run["joins"]) == 2
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "without revocations" in capsys.readouterr().out


@pytest.mark.matrix
def test_workers_may_be_lost_and_nobody_join(tmp_path: Path) -> None:
    file = tmp_path / "convergence.json"
    words = ["--sets", "digits", "--strategies", "ssgd", "--seeds", "2", "--rates", "0.1"]
    words += ["--workers", "3", "--lost", "1", "--spares", "0", "--passes", "4"]
    assert convergence.main(arguments(*words, "--json", str(file))) == 0
    results = json.loads(file.read_text())
    assert [results[one] for one in ("workers", "lost", "joined")] == [3, 1, 0]
    ((run,),) = (cell["runs"] for cell in results["cells"])
    assert len(run["deaths"]) == 1
    assert run["joins"] == []


def step(number: int, samples: dict[int, list[int]]) -> dict[str, Any]:
    contributions = [
        {"worker": worker, "step": number, "weight": len(indices), "samples": indices}
        for worker, indices in samples.items()
    ]
    return {
        "event": "step",
        "step": number,
        "generation": 0,
        "workers": list(samples),
        "contributions": contributions,
    }


def records() -> list[dict[str, Any]]:
    """Worker 1 of 2 dies, and worker 2 joins; six samples, one pass."""
    return [
        step(0, {0: [0, 1], 1: [2, 3]}),
        {"event": "recovery", "step": 1, "generation": 1, "lost": [1]},
        {"event": "change", "step": 1, "generation": 2, "joined": [2], "left": []},
        step(1, {0: [4], 2: [5]}),
    ]


def checked(told: list[dict[str, Any]]) -> list[int]:
    """Of a training in which worker 1 was to die, and one spare to join."""
    return convergence.check(told, deaths=[(1, 1)], spares=1, samples=6, passes=1)


def test_a_run_counts_in_which_all_happened_that_was_planned() -> None:
    assert checked(records()) == [1]


def wrong() -> Iterator[Any]:
    spared = records()
    del spared[1]
    yield pytest.param(spared, "workers .* were lost", id="nobody died")
    other = records()
    other[1]["lost"] = [0]
    yield pytest.param(other, "workers .* were lost", id="another one died")
    alone = records()
    del alone[2]
    yield pytest.param(alone, "1 spares 0 came", id="nobody joined")
    late = records()
    late[3] = step(1, {0: [4, 5]})
    yield pytest.param(late, "1 spares 0 came", id="the spare was admitted, and never trained")
    twice = records()
    twice[3] = step(1, {0: [4], 2: [4]})
    yield pytest.param(twice, "not every sample counted once", id="a sample counted twice")


@pytest.mark.parametrize(("told", "message"), list(wrong()))
def test_a_run_does_not_count_in_which_it_happened_otherwise(told: Any, message: str) -> None:
    with pytest.raises(JobFailed, match=message):
        checked(told)


def cell(strategy: str, without: list[float], revoked: list[float]) -> dict[str, Any]:
    accuracies = {
        side: {str(seed): one for seed, one in enumerate(values)}
        for side, values in (("without", without), ("with", revoked))
    }
    return {"set": "digits", "strategy": strategy, **accuracies}


def test_seeds_are_compared_in_pairs_and_their_median_counts() -> None:
    base = cell("ssgd", [0.90, 0.91, 0.95], [0.90, 0.90, 0.95])
    worse = cell("sma", [0.90, 0.92, 0.94], [0.87, 0.93, 0.92])
    assert convergence.against(worse) == pytest.approx([-3, 1, -2])
    assert convergence.against(worse, base) == pytest.approx([-3, 2, -3])
    aims = list(convergence.aims([base, worse]))
    assert [aim.holds for aim in aims] == [True, False, False]
    assert "digits, sma: -2.0 points against without revocations (-3.0 .. +1.0)" in aims[1].text


def test_a_point_behind_is_near_enough() -> None:
    base, near = cell("ssgd", [0.937], [0.937]), cell("easgd", [0.927], [0.927])
    assert 100 * (0.927 - 0.937) < -1  # as floats have it
    assert all(aim.holds for aim in convergence.aims([base, near]))


def test_a_seed_that_failed_on_one_side_is_left_out() -> None:
    broken = cell("sma", [0.90, 0.92], [0.87, 0.93])
    del broken["with"]["0"]
    assert convergence.against(broken) == pytest.approx([1])


@pytest.mark.parametrize("shape", [Shape(), Shape(workers=6, lost=3, spares=0)])
def test_three_workers_die_at_three_moments_that_leave_time_to_join(shape: Shape) -> None:
    for seed in range(50):
        drawn = convergence.deaths(200, seed, shape)
        workers, moments = zip(*drawn, strict=True)
        assert len(set(workers)) == 3
        assert set(workers) <= set(range(shape.workers))
        assert list(moments) == sorted(set(moments))
        assert 20 <= moments[0] < moments[-1] < 150
        assert drawn == convergence.deaths(200, seed, shape)


def test_the_usual_deaths_are_those_of_the_results_that_are_kept() -> None:
    kept = Path(__file__).parents[2] / "bench" / "results" / "convergence-digits.json"
    cell = json.loads(kept.read_text(encoding="utf-8"))["cells"][0]
    for run in cell["runs"]:
        drawn = convergence.deaths(cell["steps"], run["seed"], Shape())
        assert [list(one) for one in drawn] == run["deaths"]


def test_a_training_too_short_for_its_deaths_is_not_measured() -> None:
    with pytest.raises(JobFailed, match="3 deaths need more than 8 steps; take more --passes"):
        convergence.deaths(8, 1, Shape())


def test_every_strategy_is_measured_with_options_that_it_has() -> None:
    assert set(convergence.FITTING) <= set(NAMES)
    for name, fitting in convergence.FITTING.items():
        assert str(named(fitting).name).startswith(f"{name}:")


def test_rates_are_chosen_without_the_test_set() -> None:
    for name in tasks.USUAL:
        data = tasks.TASKS[name].data()
        tuning = data.for_tuning()
        test = {row.tobytes() for row in data.test_x}
        # Two of the digits are there twice, all the same.
        common = sum(row.tobytes() in test for row in (*tuning.x, *tuning.test_x))
        assert common <= sum(row.tobytes() in test for row in data.x) <= 2
        assert len(tuning.x) + len(tuning.test_x) == len(data.x)


def test_the_generated_set_is_the_same_each_time_and_what_its_page_says() -> None:
    data, again = tasks.TASKS["teacher"].data(), tasks.TASKS["teacher"].data()
    for one, other in zip(data, again, strict=True):
        np.testing.assert_array_equal(one, other)
    assert data.x.shape == (16_000, 20)
    assert data.test_x.shape == (8_000, 20)
    shares = np.bincount(data.test_y, minlength=10) / len(data.test_y)
    assert 0.05 < shares.min() < shares.max() < 0.15


def test_the_gradient_is_that_of_the_loss() -> None:
    task = tasks.TASKS["digits"]
    rng = np.random.default_rng(0)
    params = {name: p.astype(float) for name, p in tasks.Network.initial(task, 0).items()}
    x, y = rng.normal(size=(6, task.inputs)), rng.integers(0, 10, 6)

    def loss() -> float:
        hidden = np.tanh(x @ params["w1"] + params["b1"])
        logits = hidden @ params["w2"] + params["b2"]
        return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(6), y]).mean())

    assert tasks.Network.loss(params, x, y) == pytest.approx(loss())
    grads = tasks.Network.gradient(params, x, y)
    for name, array in params.items():
        place = tuple(int(rng.integers(n)) for n in array.shape)
        array[place] += 1e-5
        above = loss()
        array[place] -= 2e-5
        below = loss()
        array[place] += 1e-5
        assert grads[name][place] == pytest.approx((above - below) / 2e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--passes", "0"), "--passes is 0"),
        (("--workers", "1"), "--workers is 1, expected 2 or more"),
        (("--lost", "8"), "--lost is 8, expected 1 to 7: one of 8 workers must remain"),
        (("--workers", "3"), "--lost is 3, expected 1 to 2"),
        (("--lost", "0"), "--lost is 0, expected 1 to 7"),
        (("--lost", "1"), "--spares is 2, expected 0 to 1: a spare joins when a worker is lost"),
        (("--spares", "-1"), "--spares is -1, expected 0 to 3"),
        (("--rates", "0"), "more than 0"),
        (("--seeds", "1", "1"), "each once"),
        (("--seeds", "100"), "without 100"),
        (("--strategies", "sgd"), "there is no strategy 'sgd'"),
        (("--json", "/nowhere/x.json"), "no such folder"),
        (("--plot", "/nowhere/x.png"), "no such folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        convergence.main(arguments(*words))
