"""`spotmpi.bench.memory`: its simulated workers do what real ones do, and its figures are right."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi import optimizers
from spotmpi.bench import memory
from spotmpi.bench.measuring.workers_in_one_process import RISE, WAYS, Workers
from spotmpi.errors import UsageError
from spotmpi.operators import Apply, Broadcast, Every
from spotmpi.optimizers import Adam, Momentum, Optimizer
from spotmpi.replay import replay
from spotmpi.strategies import Strategy, named

MANY, SIZE = 3, 2


def start() -> dict[str, Any]:
    return {"w": np.linspace(-1, 1, 7, dtype=np.float32), "b": np.ones((2, 3), np.float32)}


def gradient(params: Any, samples: Any) -> Any:
    """A different one for each batch."""
    draw = np.random.default_rng(int(samples[0]))
    return {
        name: 0.3 * array + draw.normal(size=array.shape).astype(np.float32)
        for name, array in params.items()
    }


def workers(optimizer: Optimizer, strategy: str = "localsgd:h=4") -> Workers:
    return Workers(start(), optimizer, named(strategy), gradient, MANY)


def batches(step: int) -> Any:
    return np.arange(step * MANY * SIZE, (step + 1) * MANY * SIZE).reshape(MANY, SIZE)


def walk(some: Workers, steps: int) -> Workers:
    for _ in range(steps):
        some.step(batches(some.steps), 0.1)
    return some


def followed(optimizer: Optimizer, way: str, strategy: str = "localsgd:h=4") -> Workers:
    """Workers that have changed to ssgd after eight steps."""
    found = walk(workers(optimizer, strategy), 8)
    found.follow(named("ssgd"), way)
    return found


def trace(names: Sequence[tuple[int, str]], rates: Sequence[float]) -> list[dict[str, Any]]:
    """Of a run with these strategies, each from a step on, and these rates."""
    found: list[dict[str, Any]] = [{"event": "start", "strategy": names[0][1]}]
    of_round = 0
    for step, rate in enumerate(rates):
        since, name = [one for one in names if one[0] <= step][-1]
        if step == since and step:
            found.append({"event": "strategy", "step": step, "strategy": str(named(name))})
        told = [
            {"worker": one, "step": step, "weight": SIZE, "samples": batches(step)[one].tolist()}
            for one in range(MANY)
        ]
        last = (step - since + 1) % named(name).every == 0
        known = {"event": "step", "step": step, "workers": [*range(MANY)], "rate": rate}
        found.append({**known, "round": of_round, "contributions": told})
        of_round += last
    return found


@pytest.mark.parametrize("strategy", ["localsgd:h=4", "diloco:h=4", "easgd:every=4"])
@pytest.mark.parametrize(("optimizer", "way"), [(Momentum, "zero"), (Adam, "rising")])
def test_simulated_workers_come_to_what_a_replay_comes_to(
    optimizer: Any, way: str, strategy: str
) -> None:
    """And a replay comes to what real workers come to, to the bit: see tests/test_switching.py."""
    some = walk(followed(optimizer(lr=0.1), way, strategy), 8)
    some.follow(named(strategy), way)
    walk(some, 4)
    names = [(0, strategy), (8, "ssgd"), (16, strategy)]
    records = trace(names, some.rates)
    model = replay(records, start(), gradient, optimizer(lr=0.1), named(strategy), [named("ssgd")])
    for name, array in model.items():
        assert array.tobytes() == some.model[name].tobytes()


def test_the_rate_rises_as_the_trainers_does() -> None:
    assert Adam.rises == RISE
    risen = walk(followed(Adam(lr=0.1), "rising"), RISE + 1).rates[8:]
    assert risen == [0.1 * (step / RISE) for step in range(1, RISE)] + [0.1, 0.1]
    assert walk(followed(Adam(lr=0.1), "zero"), 2).rates == [0.1] * 10


def test_each_way_does_to_the_memory_what_it_says() -> None:
    known = [one.memory["velocity"][0].copy() for one in walk(workers(Momentum(lr=0.1)), 8)._all]
    for way, expected in (
        ("zero", [0 * known[0]] * MANY),
        ("rising", [0 * known[0]] * MANY),
        ("mean", [sum(known) / np.float32(MANY)] * MANY),
        ("leader", [known[0]] * MANY),
        ("own", known),
    ):
        found = [one.memory["velocity"][0] for one in followed(Momentum(lr=0.1), way)._all]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(UsageError, match="none of zero, rising, mean, leader, own"):
        followed(Momentum(lr=0.1), "sum")


def test_models_drift_apart_only_where_each_keeps_its_own() -> None:
    for way in WAYS:
        some = walk(followed(Momentum(lr=0.1), way), 2)
        assert (len({one.params[0].tobytes() for one in some._all}) == 1) == (way != "own")


def test_a_copy_goes_on_where_the_other_is_and_leaves_it_alone() -> None:
    for strategy in ("localsgd:h=4", "adpsgd:control=4", "gossip:control=4", "easgd:every=4"):
        one = walk(workers(Adam(lr=0.1), strategy), 8)
        other, before = one.copied(), one.model["w"].tobytes()
        walk(other, 4)
        assert one.model["w"].tobytes() == before
        assert walk(one, 4).model["w"].tobytes() == other.model["w"].tobytes() != before


def test_what_is_not_simulated_is_refused() -> None:
    for strategy in ("diloco:h=4,fragments=2", "localsgd:h=4,narrow=bf16"):
        with pytest.raises(UsageError, match="not simulated"):
            workers(Momentum(lr=0.1), strategy)
    first = Strategy(Apply() >> Every(4, Broadcast()))
    with pytest.raises(UsageError, match="not simulated"):
        Workers(start(), Momentum(lr=0.1), first, gradient, MANY)
    with pytest.raises(UsageError, match="not simulated"):
        walk(workers(Momentum(lr=0.1), "hogwild:control=4"), 1)
    with pytest.raises(UsageError, match="step 3 is in the middle of a round"):
        walk(workers(Momentum(lr=0.1)), 3).follow(named("ssgd"), "zero")


def test_it_is_about_all_optimizers_with_a_memory() -> None:
    known = [getattr(optimizers, name) for name in optimizers.__all__]
    remember = {one for one in known if issubclass(one, Optimizer) and getattr(one, "slots", None)}
    assert {one for one, _ in memory.OPTIMIZERS.values()} == remember


def test_ways_are_compared_seed_by_seed() -> None:
    zero = {"1": {"10": 0.5, "accuracy": 0.9}, "2": {"10": 0.7, "accuracy": 0.8}}
    mean = {"1": {"10": 0.4, "accuracy": 0.91}, "2": {"10": 0.6, "accuracy": 0.81}}
    cell = {"once": {"zero": zero, "mean": mean}}
    assert memory.beside_zero(cell, "once", "mean", "10").middle == pytest.approx(-0.1)
    assert memory.beside_zero(cell, "once", "mean", "accuracy") == pytest.approx((1, 1, 1))


def test_it_measures_all_ways_and_writes_all_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    file = tmp_path / "memory.json"
    parser = argparse.ArgumentParser()
    memory.add_arguments(parser)
    small = "--sets digits --optimizers momentum --strategies localsgd:h=8 --seeds 1 2 --passes 3"
    assert memory.main(parser.parse_args([*small.split(), "--json", str(file)])) == 0
    found = json.loads(file.read_text())
    (cell,) = found["cells"]
    assert (found["workers"], cell["steps"]) == (8, 3 * (1437 // 96))
    for way in WAYS:
        for run in cell["once"][way].values():
            assert set(run) == {"1", "10", "loss", "accuracy"}
        assert set(cell["often"][way]) == {"1", "2"}
    assert "digits, localsgd:h=8, momentum, rate" in capsys.readouterr().out
    for bad, why in (
        ("--seeds 100", "chosen with that one"),
        ("--passes 0", "1 or more"),
        ("--strategies ssgd", "a memory of its own"),
        ("--strategies localsgd:h=3", "whole rounds"),
    ):
        with pytest.raises(UsageError, match=why):
            memory.main(parser.parse_args(bad.split()))
