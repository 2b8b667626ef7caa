"""Calls in groups of some workers that die at any time: simulated with newcomers, and real jobs."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.exit_codes import EXIT_BUG  # noqa: E402
from spotmpi.fabric.sim.faults import Arrival, LeaveNotice  # noqa: E402
from spotmpi.torch.newcomers import Entrance  # noqa: E402
from spotmpi.torch.part import Part  # noqa: E402
from tests import running as running_jobs  # noqa: E402
from tests import simulated  # noqa: E402
from tests.launch.conftest import start  # noqa: E402, F401
from tests.simulated import deaths  # noqa: E402
from tests.torch.dealt_job import Passes  # noqa: E402
from tests.torch.test_newcomers import agree, installed  # noqa: E402

SCRIPT = Path(__file__).parent / "grouped.py"
SPLIT = {"trio": {1, 2, 3}, "pair": {2, 3}}


@dataclass(frozen=True)
class Together(Passes):
    """A script in which some workers make a call of their own with each batch."""

    def goes_on_with(self, number: int, batches: int, entrance: Entrance) -> bool:
        """Ask for the pass of those of a group: it is the same."""
        for ranks in ((1, 2), (2, 0)):
            calls = entrance.calls
            if calls.rank in ranks:
                part = Part(calls, ranks)
                found = part.exchange(number, "passes")
                assert found.keys() >= {*part.alive}
                assert {*found.values()} == {number}
        return True


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 100), marks=pytest.mark.matrix)], ids=str
)
def test_newcomers_take_the_place_of_a_lost_worker_in_its_group(
    tmp_path: Path, seeds: range
) -> None:
    """Where a pass begins, or within one. Others die, or leave."""
    results = simulated.campaign(
        Together(tmp_path / "calm", 3),
        seeds,
        lambda events, seed: {
            "kills": deaths(3, events // 2, seed, at_most=1 + seed % 2),
            "arrivals": [Arrival(3, 50 + 11 * seed), Arrival(4, 50 + 29 * seed % events)],
            "notices": [LeaveNotice(seed % 3, 1 + 53 * seed % events)][: seed % 3 // 2],
        },
        agree,
    )
    assert sum(one > 2 for result in results for one in result.finals) > len(seeds) / 3


def drawn(seed: int) -> list[str]:
    """One death or two, at any time of the calls; mostly of a group's first worker."""
    chance = random.Random(seed)
    victims = chance.choice([[1], [2], [3], [0], [1, 2], [1, 3], [2, 3], [0, 1]])
    first = chance.uniform(0.0, 0.6)
    return [
        f"{one}@{first + (place and chance.choice([0.0, 0.001, 0.1])):.4f}"
        for place, one in enumerate(victims)
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.first("0")
@pytest.mark.promise("a group of some workers that loses one in a call")
def test_those_of_a_group_that_live_see_the_same(start: Any, seed: int) -> None:  # noqa: F811
    check_groups(start, drawn(seed))


def check_groups(start: Any, deaths: list[str]) -> None:  # noqa: F811
    """Have workers die. Those that live see the same in each call of their group."""
    installed()
    running = start("run", "-n", 4, SCRIPT, "calls", 60, *deaths)
    assert running.wait() == 0, running.output
    seen = re.findall(r"FINAL (\w+) (\d) (\d+)", running.output)
    dead = {int(death[0]) for death in deaths}
    for name, ranks in SPLIT.items():
        said = {int(rank): digest for there, rank, digest in seen if there == name}
        # One that was to die may have come to the end before.
        assert said.keys() >= ranks - dead, running.output
        assert len({said[one] for one in ranks - dead}) <= 1, running.output


@pytest.mark.matrix  # it takes more than a minute
def test_workers_that_wait_for_each_other_end_the_job(
    start: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed()
    monkeypatch.setattr(running_jobs, "LIMIT", 120.0)
    running = start("run", "-n", 2, "--stall-timeout", 1, SCRIPT, "wait")
    assert running.wait() == EXIT_BUG, running.output
    assert "workers 0, 1 waited for messages, or in calls of some workers" in running.output


def test_a_worker_that_its_group_waits_for_is_revoked(start: Any) -> None:  # noqa: F811
    """All others wait for that group."""
    installed()
    running = start("run", "-n", 3, "--stall-timeout", 1, SCRIPT, "hang")
    assert running.wait() == 0, running.output
    assert "worker 2 on" in running.output
    assert "it did nothing in its script" in running.output
    assert re.findall(r"FINAL (\d) \(0, 1\)", running.output), running.output
