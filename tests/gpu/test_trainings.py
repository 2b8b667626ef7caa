"""Trainings on a GPU in which workers die, also in the middle of what their devices do together."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotmpi.trace import records
from spotmpi.trace.replay import check_replicas
from tests.chaos.on_devices import CASES, Case, check

LARGE = Path(__file__).with_name("large.py")


@pytest.mark.parametrize("name", CASES)
def test_whoever_dies_the_others_train_on(
    name: str, run_spotmpi: Callable[..., Any], tmp_path: Path
) -> None:
    check(CASES[name], "cupy", run_spotmpi, tmp_path / "trace.jsonl")


def test_seven_of_eight_die(run_spotmpi: Callable[..., Any], tmp_path: Path) -> None:
    case = Case(8, ["0,3@5", "1@9", "2,4,5,6@14"])
    check(case, "cupy", run_spotmpi, tmp_path / "trace.jsonl")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_who_dies_in_the_middle_of_a_sum_on_the_device_takes_nobody_along(
    workers: int, seed: int, run_spotmpi: Callable[..., Any], tmp_path: Path
) -> None:
    """At any moment of it: others may be reading its memory."""
    chance = random.Random(f"{workers} {seed}")
    dying = chance.sample(range(workers), max(1, workers // 2))
    deaths = [f"{one}@{chance.randint(2, 12)}:{chance.uniform(0, 12):.2f}" for one in dying]
    large(run_spotmpi, tmp_path, workers, "cupy", 25_600_000, 20, deaths)


def large(
    run_spotmpi: Callable[..., Any],
    folder: Path,
    workers: int,
    library: str,
    floats: int,
    steps: int,
    deaths: list[str],
) -> None:
    """One such training; nobody dies but who is to, and replicas are equal to the bit."""
    path = folder / "trace.jsonl"
    program = [LARGE, library, str(floats), str(steps), *deaths]
    done = run_spotmpi(["run", "-n", str(workers), "--trace", path, *program], timeout=240)
    shown = f"{deaths}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, shown
    told = [line.partition("FINAL ") for line in done.stdout.splitlines()]
    finals = [said.split() for _, final, said in told if final]
    dead = {int(death.split("@")[0]) for death in deaths}
    assert {int(worker) for worker, *_ in finals} >= set(range(workers)) - dead, shown
    assert len({tuple(rest) for _, *rest in finals}) == 1, shown
    check_replicas(list(records.read(path)))
