"""`spotmpi.bench.accuracy`: what is said of curves, and a small run on real hosts. Never a time."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from spotmpi.bench import accuracy
from spotmpi.bench.measuring import drawing, tasks
from spotmpi.bench.measuring.network import missing
from spotmpi.bench.scripts.reaching import Race
from spotmpi.errors import UsageError

BEST, BELOW = "best/ssgd/localsgd", "throughputbelow:settle=1/localsgd"


def test_a_bar_is_reached_when_it_is_for_good() -> None:
    curve = [(1.0, 0.5), (2.0, 0.94), (3.0, 0.93), (4.0, 0.95), (5.0, 0.94)]
    assert accuracy.reached(curve, 0.94) == 4.0
    assert accuracy.reached(curve, 0.93) == 2.0
    assert accuracy.reached(curve, 0.5) == 1.0
    assert accuracy.reached(curve, 0.951) is None
    assert accuracy.reached([*curve, (6.0, 0.9)], 0.94) is None


def test_models_count_that_were_copied_next_after_a_round() -> None:
    steps = [
        {"event": "step", "step": step, "committed": committed}
        for step, committed in enumerate([2.1, 2.1, 4.1, 4.1, 6.1, 6.1])
    ]
    records = [{"event": "start"}, *steps, {"event": "end"}]
    assert accuracy.agreed(records, [0.0, 1.0, 2.2, 3.0, 4.2, 5.0, 6.2]) == [2, 4, 6]
    assert accuracy.agreed(records, [0.0, 1.0, 2.2, 3.0, 4.2, 5.0]) == [2, 4]


def test_the_same_die_with_the_same_seed_and_never_the_one_that_keeps_the_models() -> None:
    for seed in range(50):
        some = accuracy.victims(8, [6.0, 3.0, 9.0], seed)
        assert some == accuracy.victims(8, [6.0, 3.0, 9.0], seed)
        workers, moments = zip(*some, strict=True)
        assert set(workers) <= set(range(1, 8))
        assert len(set(workers)) == 3
        assert moments == (3.0, 6.0, 9.0)
    assert len({accuracy.victims(8, [1.0], seed) for seed in range(50)}) == 7


def test_ways_are_what_two_options_take() -> None:
    policies = [way for way in accuracy.WAYS if accuracy.is_policy(way)]
    assert policies == list(accuracy.WAYS[-2:])
    assert [way.partition(":")[0] for way in policies] == ["best", "throughputbelow"]
    # best decides among all those that it is compared with.
    assert policies[0].split("/")[1:] == list(accuracy.WAYS[:-2])


def test_a_race_trains_a_set_with_a_network_of_its_own() -> None:
    for name, course in accuracy.COURSES.items():
        race = Race(name, *course[:4], seed=1, workers=8, ms=50.0, deaths=((3, 1.5),))
        task = race.task
        assert (task.hidden, task.passes) == (course.hidden, course.passes)
        assert task.data is tasks.TASKS[name].data
        plain = json.loads(race.to_json())
        assert plain.pop("deaths") == [[3, 1.5]]
        assert Race(**plain, deaths=((3, 1.5),)) == race


def cell(way: str, seed: int, seconds: float | None) -> dict[str, Any]:
    curve = [(1.0, 0.9), (20.0, 0.95 if seconds else 0.9)]
    return {"set": "digits", "seed": seed, "way": way, "seconds": seconds, "curve": curve}


def cells(**ways: list[float | None]) -> list[dict[str, Any]]:
    names = {"best": BEST, "below": BELOW}
    return [
        cell(names.get(way, way), seed, one)
        for way, some in ways.items()
        for seed, one in enumerate(some)
    ]


def held(some: list[dict[str, Any]]) -> list[bool]:
    return [one.holds for one in accuracy.aims("digits", accuracy.by_way(some, "digits"))]


def test_a_policy_is_held_against_the_slowest_of_each_seed_and_the_fastest_of_all() -> None:
    fixed: dict[str, list[float | None]] = {"ssgd": [20.0, 30.0, 40.0], "localsgd": [10, 10, 50]}
    assert held(cells(**fixed, best=[11.0, 11.0, 45.0])) == [True, True]
    # Slower than both with the last seed; hardly slower than the fastest in the median.
    assert held(cells(**fixed, best=[11.0, 11.0, 51.0])) == [False, True]
    assert held(cells(**fixed, best=[12.0, 12.0, 12.0])) == [True, False]
    assert held(cells(**fixed, best=[10.0, 10.0, None])) == [False, True]
    assert held(cells(**fixed, best=[10.0, None, None])) == [False, False]
    assert held(cells(best=[10.0])) == [], "there is nothing to compare with"
    slow: dict[str, list[float | None]] = {"ssgd": [None], "localsgd": [10.0]}
    assert held(cells(**slow, best=[10.5], below=[None])) == [True, True, False, False]


def test_the_page_says_for_whom_the_bar_is_not_reached() -> None:
    some = cells(ssgd=[20.0, 40.0, 30.0], localsgd=[None, 10.0, None], best=[11.0, 12.0, 13.0])
    lines = accuracy.page(some)
    assert "stays at 92 % or above" in lines[0]
    best, ssgd, localsgd = lines[3:6]
    assert ssgd.split() == ["30.0", "(20.0", "..", "40.0)", "2.50", "95.0", "ssgd"]
    assert localsgd.startswith("never (10.0 .. never)")
    assert localsgd.endswith("localsgd  (not reached in 2 of 3)")
    assert best.split()[-3:] == ["1.00", "95.0", BEST]
    aim = "best takes at most 1.1 times as long as the fastest, ssgd: 0.40"
    assert any(f"holds   digits: {aim}" in line for line in lines)


def test_ways_of_one_kind_are_told_apart() -> None:
    one, other = "localsgd:h=8", "localsgd:h=16"
    some = cells(ssgd=[20.0], **{one: [10.0], other: [15.0]}, best=[11.0])
    lines = accuracy.page(some)
    assert any("as long as the fastest, localsgd:h=8: 1.10" in line for line in lines)
    assert any("digits: best is never the slowest: it is in 0 of 1 seeds" in line for line in lines)


def test_the_plot_has_those_that_never_got_there(tmp_path: Path) -> None:
    some = cells(ssgd=[20.0, 40.0, 30.0], localsgd=[None, 10.0, None])
    file = tmp_path / "races.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # words, and not their outlines
        drawing.draw_races(some, {"ssgd": "A", "localsgd": "B"}, {"digits": 0.94}, [3.0], file)
    words = file.read_text(encoding="utf-8")
    assert words.count(" never<") == 1
    assert ">2 of 3 never<" in words


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.matrix
def test_a_policy_and_a_strategy_race_while_a_worker_dies(run_spotmpi, tmp_path: Path) -> None:
    file, plot = tmp_path / "found.json", tmp_path / "found.png"
    given = ["--sets", "digits", "--seeds", "1", "--hosts", "2", "--workers", "4", "--ms", "5"]
    more = ["--rate", "100mbit", "--deaths", "0.5", "--passes", "2", "--json", file]
    ways = ["--ways", "localsgd:h=8", "throughputbelow:least=0.99,settle=0/localsgd:h=8"]
    done = run_spotmpi(["bench", "accuracy", *given, *more, *ways, "--plot", plot], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert found["failures"] == []
    cells = {one["way"]: one for one in found["cells"]}
    assert cells.keys() == set(ways[1:])
    fixed, policy = (cells[way] for way in ways[1:])
    for one in (fixed, policy):
        ((victim, _),) = one["deaths"]
        assert [lost for lost, _ in one["lost"]] == [[victim]]
        times = [at for at, _ in one["curve"]]
        assert 0 < times[0] < times[-1] <= one["ended"]
        assert one["curve"][-1][1] > 0.5, "it has learnt"
        assert one["seconds"] == accuracy.reached(one["curve"], accuracy.COURSES["digits"].bar)
    assert len(fixed["curve"]) < fixed["steps"] / 4, "there is a round in 8 steps"
    assert fixed["changes"] == []
    assert policy["changes"][0][2] == "localsgd:h=8"
    assert "throughputbelow is never the slowest" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    accuracy.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ways", "sgd"), "there is no strategy 'sgd'"),
        (("--ways", "best/sgd"), "there is no strategy 'sgd'"),
        (("--ways", "ssgd", "ssgd"), "each there once"),
        (("--seeds", "1", "1"), "each there once"),
        (("--hosts", "3"), "as many on each"),
        (("--workers", "2", "--hosts", "2", "--deaths", "1", "2"), "fewer than there are workers"),
        (("--deaths", "-1"), "moments from 0 on"),
        (("--passes", "0"), "--passes is 0, expected 1 or more"),
        (("--ms", "-1"), "--ms is -1, expected 0 or more"),
        (("--rate", "slow"), "slow is no rate"),
        (("--plot", "/nowhere/x.png"), "no such folder"),
    ],
)
def test_what_measures_nothing_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        accuracy.main(arguments(*words))
