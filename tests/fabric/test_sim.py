"""The simulator itself: as bad as MPI may be, repeatable, and never silent about a hang."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spotmpi.bench.measuring.sums import summed
from spotmpi.errors import PeersLost
from spotmpi.fabric import (
    Cancel,
    Fetch,
    Part,
    Poll,
    Publish,
    Rebuild,
    Revoke,
    Shape,
    Share,
    Start,
    Steps,
    Wait,
)
from spotmpi.fabric.planes.plane import private_arena
from spotmpi.fabric.sim.collectives import RUBBISH, Misuse
from spotmpi.fabric.sim.faults import Kill
from spotmpi.fabric.sim.simulation import Hang, Simulation
from spotmpi.protocol.membership import Membership


def simulate(
    worker: Callable[[int], Steps[Any]], workers: int, seed: int, *kills: Kill
) -> Simulation:
    """Run the same generator as every worker."""
    simulation = Simulation(Membership.first(["h"] * workers), seed, kills)
    simulation.workers.transcript = []
    for me in range(workers):
        simulation.start(me, worker(me))
    simulation.run()
    return simulation


def part(value: float, in_place: bool = False) -> Part:
    """One number."""
    (one,) = private_arena([Shape("float64", 1)], in_place).parts
    one.contribution[0] = value
    return one


def reducing(me: int) -> Steps[str]:
    """One all-reduce; whoever fails revokes."""
    try:
        yield from summed([part(me)])
    except PeersLost:
        yield Revoke()
        return "lost"
    return "done"


def outcomes(workers: int, *kills: Kill) -> set[tuple[str, ...]]:
    """What the survivors saw, over many seeds."""
    found = (simulate(reducing, workers, seed, *kills).workers.returned for seed in range(200))
    return {tuple(sorted(set(returned.values()))) for returned in found}


def test_a_failure_may_hit_some_members_and_not_others() -> None:
    """Or all, or none: as ULFM is allowed to."""
    seen: set[tuple[str, ...]] = set()
    for moment in range(5, 16):
        seen |= outcomes(4, Kill(1, moment))
    assert seen == {("done",), ("lost",), ("done", "lost")}


def test_a_share_may_be_over_at_its_source_although_another_never_enters() -> None:
    """A small broadcast leaves at once."""

    def sharing(_me: int) -> Steps[str]:
        try:
            yield Share(0, [np.ones(1)])
        except PeersLost:
            return "lost"
        return "done"

    seen = {simulate(sharing, 2, seed, Kill(1, 2)).workers.returned[0] for seed in range(50)}
    assert seen == {"done", "lost"}


def test_sums_are_taken_in_ring_order() -> None:
    """The order that a replay can repeat to the bit."""
    values = [1e16, 1.0, -1e16, 1.0]
    sums: set[float] = set()

    def worker(me: int) -> Steps[None]:
        mine = part(values[me])
        yield from summed([mine])
        sums.add(float(mine.result[0]))

    for seed in range(20):
        simulate(worker, 4, seed)
    assert sums == {((values[0] + values[1]) + values[2]) + values[3]}


def test_whoever_changes_what_it_has_given_is_found_out() -> None:
    def worker(me: int) -> Steps[None]:
        mine = part(me)
        handle = yield Start(mine)
        mine.contribution[0] += me
        yield Wait([handle])

    with pytest.raises(Misuse, match="worker 1 has changed what it had given"):
        simulate(worker, 2, 0)


def test_whoever_builds_with_parts_under_way_is_found_out() -> None:
    def worker(me: int) -> Steps[None]:
        yield Start(part(me))
        yield Rebuild(None)

    with pytest.raises(Misuse, match="builds with collectives under way"):
        simulate(worker, 2, 0)


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_failed_writes_on_until_it_is_given_up(gives_up: bool) -> None:
    """So whoever forgets to give it up finds rubbish in its next round, at times."""
    kept: set[float] = set()
    mine = part(0)

    def worker(me: int) -> Steps[None]:
        handles = []
        try:
            handles.append((yield Start(mine if me == 0 else part(me))))
            yield Wait(handles)
        except PeersLost:
            if gives_up:
                yield Cancel(handles)
            mine.result[0] = 5
            while True:  # until nothing more can happen
                yield Poll()

    for seed in range(50):
        mine.result[0] = 5
        with contextlib.suppress(Hang):
            simulate(worker, 2, seed, Kill(1, 1))
        kept.add(float(mine.result[0]))
    assert kept == ({5.0} if gives_up else {5.0, RUBBISH})


def test_a_seed_and_its_kills_decide_everything() -> None:
    first = simulate(reducing, 5, 7, Kill(2, 9)).workers.transcript
    assert first == simulate(reducing, 5, 7, Kill(2, 9)).workers.transcript
    assert first != simulate(reducing, 5, 8, Kill(2, 9)).workers.transcript


def test_the_dead_take_no_part_any_more() -> None:
    simulation = simulate(reducing, 3, 0, Kill(0, 1), Kill(2, 1))
    assert set(simulation.deaths) == {0, 2}
    assert set(simulation.workers.returned) == {1}


def test_workers_that_wait_for_nothing_are_a_hang_that_names_them() -> None:
    def worker(_me: int) -> Steps[None]:
        yield Poll()

    with pytest.raises(Hang, match=r"nothing can happen any more; waiting: 0 on Poll\(\); 1 on"):
        simulate(worker, 2, 0)


def test_a_run_without_end_is_a_hang() -> None:
    def worker(_me: int) -> Steps[None]:
        while True:
            yield Revoke()

    simulation = Simulation(Membership.first(["h"]), 0)
    simulation.start(0, worker(0))
    with pytest.raises(Hang, match="no end after 500 events"):
        simulation.run(limit=500)


def test_the_transcript_has_all_that_workers_do() -> None:
    transcript = simulate(reducing, 2, 3, Kill(1, 2)).workers.transcript
    assert transcript is not None
    said = {line.split(": ")[1] for line in transcript}
    assert said == {"start", "wait", "cancel", "dies", "revoke", "returns"}


def test_a_model_is_fetched_at_once_or_comes_later_as_it_was_after_it_was_asked_for() -> None:
    """And what was fetched before is rubbish then."""
    behind: set[bool] = set()
    none: set[bool] = set()

    def worker(me: int) -> Steps[None]:
        kept: Any = np.full(2, RUBBISH)
        for number in range(40):
            yield Publish([np.full(2, float(number))])
            published[me] = number
            before = kept.copy()
            found = yield Fetch(1 - me)
            none.add(found is None)
            if found is None:
                assert (kept == RUBBISH).all(), before
                continue
            (kept,) = found.model
            assert (kept == found.number).all()
            behind.add(found.number < published[1 - me])

    for seed in range(30):
        published = [0, 0]
        simulate(worker, 2, seed)
    assert behind == none == {False, True}


def test_nothing_is_fetched_of_an_earlier_training() -> None:
    found: list[object] = []

    def worker(me: int) -> Steps[None]:
        yield Publish([np.ones(1)])
        for _ in range(5):
            yield Fetch(1 - me)
        yield Rebuild(None)
        simulation.models.move_on(me)
        yield Rebuild(None)
        yield Publish([np.ones(1)]) if me else Revoke()
        for _ in range(5):
            found.append((yield Fetch(1 - me)))

    for seed in range(30):
        simulation = Simulation(Membership.first(["h"] * 2), seed)
        for me in range(2):
            simulation.start(me, worker(me))
        simulation.run()
    assert set(found) == {None}


def test_who_is_known_to_be_dead_shows_nothing() -> None:
    """But the last of it can be fetched until then."""
    seen = set()

    def worker(me: int) -> Steps[None]:
        yield Publish([np.ones(1)])
        if me:
            yield Poll()
        while 1 not in simulation.workers.processes[0].dead_known:
            if (yield Fetch(1)) is not None:
                seen.add(1 in simulation.workers.processes)
        for _ in range(5):
            assert (yield Fetch(1)) is None

    for seed in range(30):
        simulation = Simulation(Membership.first(["h"] * 2), seed, [Kill(1, 30)])
        for me in range(2):
            simulation.start(me, worker(me))
        simulation.run()
    assert seen == {True, False}
