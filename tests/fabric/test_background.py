"""Work in the background: in a thread of a real worker, at one moment of a simulated one."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spotmpi.fabric import Background, Poll, Steps
from spotmpi.fabric.background import InThread
from spotmpi.fabric.sim.errands import Errand
from spotmpi.fabric.sim.faults import Kill
from spotmpi.fabric.sim.simulated_fabric import SimulatedFabric
from spotmpi.fabric.sim.simulation import Hang, Simulation
from spotmpi.fabric.solo import SoloFabric
from spotmpi.protocol.membership import Membership


def fails() -> int:
    raise ValueError("a full disk")


def test_a_thread_goes_on_by_itself_until_it_is_waited_for() -> None:
    go_on = threading.Event()
    work = SoloFabric().background(lambda: go_on.wait(60), "some work")
    assert not work.through
    assert "some work" in [thread.name for thread in threading.enumerate()]
    go_on.set()
    assert work.wait() is True
    assert work.through


@pytest.mark.parametrize("begin", [lambda work: InThread(work, "some work"), Errand])
def test_what_goes_wrong_is_raised_where_it_is_waited_for(
    begin: Callable[[Callable[[], int]], Background[int]],
) -> None:
    work = begin(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="a full disk"):
            work.wait()
    assert work.through


def test_an_errand_is_done_once() -> None:
    done: list[int] = []
    errand = Errand(lambda: done.append(1))
    assert not errand.through
    errand.do()
    assert errand.through
    errand.wait()
    assert done == [1]


def done_of(kills: list[Kill], seed: int = 1) -> list[int]:
    """Which of two workers' errands are done, while they wait for what never comes."""
    simulation = Simulation(Membership.first(["sim"] * 2), seed, kills)
    done: list[int] = []

    def script(worker: int) -> Steps[None]:
        SimulatedFabric(worker, simulation).background(lambda: done.append(worker), "some work")
        while True:
            yield Poll()

    for worker in range(2):
        simulation.start(worker, script(worker))
    with pytest.raises(Hang):
        simulation.run()
    return sorted(done)


def test_in_a_simulation_it_is_done_some_time_later_if_its_worker_lives() -> None:
    assert done_of([]) == [0, 1]
    seen = {tuple(done_of([Kill(0, 3)], seed)) for seed in range(20)}
    assert seen == {(1,), (0, 1)}
