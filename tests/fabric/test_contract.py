"""One suite for all fabrics: what the port promises holds in the simulator and over MPI."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotmpi.fabric import Poll, Steps
from spotmpi.fabric.sim.simulation import Simulation
from spotmpi.launch.start import installation, mpirun
from spotmpi.protocol.membership import Membership
from spotmpi.settings import Settings
from tests.fabric import contract, performing
from tests.fabric.contract import SCENARIOS, WORKERS, Die, Go, deadly, expected
from tests.fabric.performing import performed
from tests.fabric.planes import PLANES

TIMEOUT = 120
CALM = [name for name in SCENARIOS if not deadly(name)]
FIRST = [
    ("a_reduce_that_a_dead_worker_never_entered_fails_on_all", "Apart"),
    ("a_share_whose_source_is_dead_fails_on_all", "Plain"),
    ("one_loss_after_the_other_goes_through_the_same_door", "Hosts"),
    ("a_death_after_a_leave_goes_through_the_same_door", "Node"),
    ("who_is_to_leave_stays_while_the_build_fails", "Plain"),
    ("the_others_go_on_fetching_past_a_death_and_after_the_build", "Hosts"),
    ("what_a_dead_worker_has_added_is_there_until_the_round", "Node"),
    ("the_others_get_what_they_post_past_a_death_and_after_the_build", "Hosts"),
]
"""Each plane with what tells it from the others; the simulator has all scenarios."""
DEADLY = [name for name in SCENARIOS if deadly(name)]
SUMS_BETWEEN_HOSTS = (
    "who_dies_with_a_part_under_way_leaves_the_others_memory_in_peace",
    "one_loss_after_the_other_goes_through_the_same_door",
    "a_death_after_a_leave_goes_through_the_same_door",
)
BETWEEN_HOSTS = (
    *SUMS_BETWEEN_HOSTS,
    "the_others_go_on_fetching_past_a_death_and_after_the_build",
    "of_who_has_left_nothing_is_fetched_any_more",
    "what_a_dead_worker_has_added_is_there_until_the_round",
    "the_others_hear_each_other_past_a_death_and_after_the_build",
    "the_others_get_what_they_post_past_a_death_and_after_the_build",
)
"""Deaths in what goes between hosts; what else may happen knows nothing of hosts."""
IN_SUMS = (
    *SUMS_BETWEEN_HOSTS,
    "a_reduce_that_a_dead_worker_never_entered_fails_on_all",
    "a_share_whose_source_is_dead_fails_on_all",
    "a_build_is_sealed_when_all_alive_come_with_just_those_alive",
)
"""Deaths in sums, or with sums after them. `Apart` differs from `InPlacePlane` in nothing else."""


def simulated(name: str, seed: int, in_place: bool) -> dict[int, Any]:
    """What the survivors of a scenario saw in the simulator."""
    simulation = Simulation(Membership.first(["sim"] * WORKERS), seed, in_place=in_place)
    contract.arena_of = simulation.data_path.arena
    gone: set[int] = set()

    def worker(me: int) -> Steps[Any]:
        try:
            return (yield from performed(name, me))
        except Die:
            simulation.faults.doom(me)
            yield Poll()
            raise AssertionError("a dead worker was answered") from None
        except Go:
            gone.add(me)

    for me in range(WORKERS):
        simulation.start(me, worker(me))
    simulation.run()
    return {me: seen for me, seen in simulation.workers.returned.items() if me not in gone}


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 60), marks=pytest.mark.matrix)], ids=str
)
def test_the_simulator_keeps_the_contract(name: str, in_place: bool, seeds: range) -> None:
    for seed in seeds:
        assert simulated(name, seed, in_place) == expected[name], f"seed {seed}"


@functools.cache
def mpi() -> installation.Installation:
    """The one that a run would use; asking for it starts processes."""
    found = installation.search(os.environ).found
    assert found is not None, installation.NO_MPI
    return found


def over_mpi(folder: Path, plane: str, *names: str) -> Iterator[tuple[str, dict[int, Any]]]:
    """What the survivors of scenarios saw under a real mpirun, which is given so much time."""
    program = [sys.executable, performing.__file__, str(folder), plane, *names]
    transport = "tcp" if plane == "Hosts" else "sm"
    environ = {**os.environ, "OMPI_MCA_btl_tcp_if_include": "lo"}
    with subprocess.Popen(
        mpirun.command(mpi(), WORKERS, program),
        env=mpirun.environment(mpi(), WORKERS, Settings(job_dir=folder), environ, 1, transport),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            pytest.fail(f"{names}: no end after {TIMEOUT} s\n{said}")
    seen = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
    for name in names:
        assert set(expected[name]) == set(seen), said
        yield name, {worker: results[name] for worker, results in seen.items()}


@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.first("Node")
def test_mpi_keeps_the_contract_while_nobody_dies(plane: str, tmp_path: Path) -> None:
    for name, seen in over_mpi(tmp_path, plane, *CALM):
        assert seen == expected[name], name


@pytest.mark.parametrize(
    ("name", "plane"),
    [
        pytest.param(name, plane, marks=() if (name, plane) in FIRST else pytest.mark.matrix)
        for name in DEADLY
        for plane in PLANES
        if name in {"Hosts": BETWEEN_HOSTS, "Apart": IN_SUMS}.get(plane, DEADLY)
    ],
)
def test_mpi_keeps_the_contract_when_workers_die(name: str, plane: str, tmp_path: Path) -> None:
    for _, seen in over_mpi(tmp_path, plane, name):
        assert seen == expected[name]
