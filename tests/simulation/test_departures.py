"""Workers die while others are through with a build, and want to go."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from spotmpi.fabric.sim.builds import Builds
from spotmpi.fabric.sim.faults import Kill, LeaveNotice
from spotmpi.simulation.schedules import Schedule
from spotmpi.simulation.search import execute, outcome_of

WORKERS = 8


def ends(seeds: range) -> Iterator[Schedule]:
    """Some die in the last events of a training."""
    for seed in seeds:
        whole, chance = Schedule(WORKERS, seed, passes=1), random.Random(seed)
        last = execute(whole).events
        for _ in range(10):
            dead = chance.sample(range(WORKERS), chance.randint(1, WORKERS - 1))
            yield killed(whole, [Kill(worker, last - chance.randint(0, 45)) for worker in dead])


def departures(seeds: range) -> Iterator[Schedule]:
    """Some die while the first of all leaves, whom the others would ask."""
    for seed in seeds:
        told = LeaveNotice(0, 200)
        whole, chance = Schedule(6, seed, passes=1, notices=(told,)), random.Random(seed)
        transcript: list[str] = []
        execute(whole, transcript)
        (left,) = [line for line in transcript if line.endswith("worker 0: returns")]
        for _ in range(10):
            dead = chance.sample(range(1, 6), chance.randint(1, 4))
            at = int(left.split()[0])
            yield killed(whole, [Kill(worker, at + chance.randint(-6, 20)) for worker in dead])


def killed(whole: Schedule, kills: list[Kill]) -> Schedule:
    """With these deaths."""
    return replace(whole, kills=tuple(sorted(kills, key=lambda kill: kill.at)))


@pytest.mark.parametrize("which", [ends, departures])
@pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 12), marks=pytest.mark.matrix)], ids=str
)
def test_whoever_dies_the_others_come_to_their_end(which, seeds: range) -> None:
    for schedule in which(seeds):
        execute(schedule)


@pytest.mark.parametrize("which", [ends, departures])
def test_if_nobody_waited_for_the_others_some_would_hang(which, monkeypatch) -> None:
    monkeypatch.setattr(Builds, "depart", lambda self, *request: None)
    said = map(outcome_of, which(range(20)))
    first = next(one for one in said if isinstance(one, str))
    assert first.startswith("Hang: nothing can happen any more")
    assert "on Rebuild" in first


@pytest.mark.campaign
@pytest.mark.parametrize("which", [ends, departures])
def test_thousands_of_ends(which) -> None:
    for schedule in which(range(1000)):
        execute(schedule)
