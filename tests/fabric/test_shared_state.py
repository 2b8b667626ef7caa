"""One state for all workers of a host: sums go right into the next one, which then counts."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.errors import PeersLost, UsageError
from spotmpi.fabric.neighbours.shared_memory import PAGE, bytes_of
from spotmpi.fabric.planes import shared_memory_plane
from spotmpi.fabric.planes.double_buffer import DoubleBuffer
from tests.fabric.crew import (
    DATA,
    LIMIT,
    WORD,
    Post,
    Worker,
    at_once,
    brought,
    go_on,
    lose,
    meet,
    same,
)


class Mover(Worker):
    """Adds each round's sums to its state, and knows what that must come to."""

    mark = 7

    def furnish(self, form: str | None = None) -> None:
        """With a state of the arrays that are summed, and as many of zeros beside them."""
        self.state = DoubleBuffer([(shape.dtype, shape.size) for shape in DATA] * 2)
        self.data = self.plane.arena(DATA, "data", self.state)
        self.word = self.plane.arena(WORD, "word")
        self.fused = False
        for index, flat in enumerate(self.state.live):
            flat[:] = 1 + index

    def fuse(self, number: int) -> None:
        """As a trainer does before each attempt."""
        self.bring(number)
        self.data.unfuse()
        moves = [partial(self.move, index) for index in range(len(DATA))]
        self.fused = self.data.fuses
        if self.fused:
            self.data.fuse_update(moves, self.mark)

    def move(
        self, index: int, part: slice, inputs: Sequence[Any], weights: Sequence[float]
    ) -> None:
        """next = state + sum"""
        total = inputs[0].copy()
        for one in inputs[1:]:
            total = total + one
        self.state.next[index][part] = self.state.live[index][part] + total
        second = index + len(DATA)
        self.state.next[second][part] = self.state.live[second][part] + 1

    def try_it(self) -> bool:
        """Whether the round came through."""
        try:
            self.plane.wait(self.start())
        except PeersLost:
            self.plane.cancel(self.handles)
            return False
        return True

    def commit(self) -> None:
        """Its sums count."""
        self.data.turn()
        self.word.turn()
        if self.fused:
            self.data.advance()

    def step(self) -> None:
        """All of it."""
        assert self.try_it()
        self.commit()

    def held(self) -> list[Any]:
        """Copies of what counts."""
        return [flat.copy() for flat in self.state.live]


def movers(count: int, hosts: Sequence[int] = ()) -> list[Mover]:
    """Workers that have met."""
    workers = [Mover(me, hosts[me] if hosts else 0) for me in range(count)]
    meet(workers)
    for worker in workers:
        worker.furnish()
    return workers


def after(held: Sequence[Any], ids: Sequence[int], number: int) -> list[Any]:
    """The state, once these have summed in that round."""
    found = []
    for index, flat in enumerate(held[: len(DATA)]):
        total = brought(ids[0], number, index, flat)
        for one in ids[1:]:
            total = total + brought(one, number, index, flat)
        found.append(flat + total)
    return [*found, *(flat + 1 for flat in held[len(DATA) :])]


def rounds(workers: Sequence[Mover], numbers: Sequence[int]) -> None:
    """They must come to what they must come to."""
    for number in numbers:
        held = after(workers[0].held(), [one.me for one in workers], number)
        for worker in workers:
            worker.fuse(number)
            assert worker.fused
        at_once(workers, Mover.step)
        for worker in workers:
            assert same(worker.held(), held)
            assert not worker.by_mpi_instead


def place(worker: Mover) -> tuple[str, str]:
    """In which file its state lies, and where there."""
    address = worker.state.live[0].ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, _, offset, _, inode, *_ = line.split()
        begin, end = (int(one, 16) for one in where.split("-"))
        if begin <= address < end:
            return inode, offset
    raise AssertionError("nowhere")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_all_have_one_state_between_them_at_addresses_that_stay(count: int) -> None:
    workers = movers(count)
    views = [flat.ctypes.data for worker in workers for flat in worker.state.live]
    for number in range(4):
        rounds(workers, [number])
        assert len({place(worker) for worker in workers}) == 1
        assert place(workers[0])[0] != "0"
    assert views == [flat.ctypes.data for worker in workers for flat in worker.state.live]


def test_a_state_does_not_change_its_place_while_scripts_run() -> None:
    """All find it in the first round. In that they wait, and what follows may be begun ahead."""
    workers = movers(2)
    places = [place(worker) for worker in workers]
    for worker in workers:
        worker.fuse(0)
        worker.ahead = True
    at_once(workers, Mover.start)
    for worker in workers:
        worker.plane._thread._thread.join(LIMIT)
        assert not worker.plane._thread._thread.is_alive()
    assert [place(worker) for worker in workers] == places
    at_once(workers, lambda worker: worker.plane.wait(worker.handles))
    for worker in workers:
        worker.commit()
    rounds(workers, [1])


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_after_a_loss_the_state_is_as_it_was_and_the_same_round_counts_once(
    which: int, before: int
) -> None:
    """Also if it was the one in whose memory the state lies, and if nobody had found it yet."""
    workers = movers(3)
    rounds(workers, range(before))
    held = workers[0].held()
    for worker in workers:
        worker.fuse(5)
    others = [one for one in workers if one is not workers[which]]
    for one in others:
        one.broken.set()
    assert at_once(others, Mover.try_it) == [False, False]
    lose(workers, which)
    go_on(workers)
    assert all(same(one.held(), held) for one in workers)
    rounds(workers, [5, 6])


@pytest.mark.parametrize("through", [0, 1])
def test_who_has_committed_and_dies_takes_nothing_with_it(through: int) -> None:
    """It has moved on to the next state, and the others have not: they try again without it, or,
    if one of them is through as well, all count what there is."""
    workers = movers(4)
    rounds(workers, [0])
    held = workers[0].held()
    for worker in workers:
        worker.fuse(1)
    assert all(at_once(workers, Mover.try_it))
    workers[3].commit()
    for worker in workers[:through]:
        worker.commit()
    lose(workers, 3)
    go_on(workers)
    if through:
        for worker in workers[through:]:
            worker.commit()  # a repair, for which nothing is to be copied
        assert all(same(one.held(), after(held, [0, 1, 2, 3], 1)) for one in workers)
    else:
        assert all(same(one.held(), held) for one in workers)
        rounds(workers, [1])
    rounds(workers, [2, 3])


def test_half_of_a_lost_attempt_is_never_seen() -> None:
    """Whoever has done its slice when another is lost does all of it anew."""
    workers = movers(3)
    rounds(workers, [0, 1])
    held = workers[0].held()
    for worker in workers:
        worker.fuse(2)
        for flat in worker.state.next:
            flat[: len(flat) // 2] = 99
    lose(workers, 1)
    for worker in workers:
        worker.plane.cancel(worker.handles)
    go_on(workers)
    assert all(same(one.held(), held) for one in workers)
    rounds(workers, [2, 3])


def test_who_leaves_keeps_what_it_has_while_others_go_on() -> None:
    workers = movers(3)
    rounds(workers, [0, 1])
    leaver = workers[1]
    leaver.data.leave()
    held = leaver.held()
    remaining = [workers[0], workers[2]]
    go_on(remaining)
    rounds(remaining, [2, 3, 4])
    assert same(leaver.held(), held)


def test_who_has_a_state_of_its_own_finds_the_others_again() -> None:
    """A leave that did not come about, or a newcomer that has learnt."""
    workers = movers(3)
    rounds(workers, [0, 1, 2])
    workers[0].data.leave()
    rounds(workers, [3])
    assert len({place(worker) for worker in workers}) == 1
    newcomer = Mover(9)
    for worker in workers:
        worker.data.leave()
    everybody = [*workers, newcomer]
    meet(everybody)
    newcomer.furnish()
    for mine, its in zip(newcomer.state.live, workers[0].state.live, strict=True):
        mine[:] = its
    rounds(everybody, [4, 5])
    assert len({place(worker) for worker in everybody}) == 1


def test_rounds_that_are_not_fused_leave_the_state_where_it_is() -> None:
    workers = movers(2)
    rounds(workers, [0])
    held = workers[0].held()
    for _ in range(3):
        for worker in workers:
            worker.bring(1)
            worker.data.unfuse()
            worker.fused = False
        at_once(workers, Mover.step)
        assert all(same(one.held(), held) for one in workers)
        totals = [
            sum(brought(me, 1, i, flat) for me in range(2))
            for i, flat in enumerate(workers[0].data.record)
        ]
        assert same(workers[1].data.record, totals)
    rounds(workers, [2])


def test_workers_that_would_update_differently_are_told_so() -> None:
    workers = movers(2)
    rounds(workers, [0])
    workers[1].mark = 8
    for worker in workers:
        worker.fuse(1)

    def told(worker: Mover) -> bool:
        with pytest.raises(UsageError, match="the same learning rate on all workers"):
            worker.try_it()
        return True

    assert all(at_once(workers, told))


def test_if_some_are_in_no_step_nothing_comes_of_it() -> None:
    """Their control words say what they are in; the state is as it was."""
    workers = movers(3)
    rounds(workers, [0])
    held = workers[0].held()
    for worker in workers:
        worker.fuse(1)
    workers[2].data.unfuse()
    assert all(at_once(workers, Mover.try_it))
    for worker in workers:
        worker.data.unfuse()
        worker.fused = False
        worker.commit()
        assert same(worker.held(), held)
    rounds(workers, [2, 3])


def test_on_several_hosts_each_worker_has_its_own() -> None:
    workers = movers(2, [0, 1])
    for worker in workers:
        worker.fuse(0)
        assert not worker.fused


def test_whoever_remains_on_one_host_of_several_shares_a_state_and_parts_when_one_comes() -> None:
    post = Post(2)
    workers = [Mover(me, 0, post) for me in range(2)]
    meet(workers)
    for worker in workers:
        worker.furnish()
    rounds(workers, [0, 1])
    meet([*workers, Mover(7, 1, post)])
    for worker in workers:
        worker.fuse(2)
        assert not worker.fused
        worker.data.leave()
        assert place(worker)[0] == "0"
    go_on(workers)
    rounds(workers, [2, 3])
    assert len({place(worker) for worker in workers}) == 1


def test_where_memory_cannot_change_its_place_each_worker_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_memory_plane, "possible", lambda: False)
    workers = movers(2)
    for worker in workers:
        worker.fuse(0)
        assert not worker.fused
    assert all(np.all(flat == 1 + i) for i, flat in enumerate(workers[0].state.live))


def test_if_only_one_can_do_it_all_sums_go_by_mpi_and_nobody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = [Mover(me) for me in range(2)]
    meet(workers)
    workers[0].furnish()
    monkeypatch.setattr(shared_memory_plane, "possible", lambda: False)
    workers[1].furnish()
    for worker in workers:
        worker.fuse(0)
    assert [worker.fused for worker in workers] == [True, False]
    assert all(at_once(workers, Mover.try_it))
    assert all(worker.by_mpi_instead for worker in workers)
    held = [worker.held() for worker in workers]
    for worker in workers:
        worker.commit()
        worker.fuse(1)
        assert not worker.fused
    # By MPI each has the sum, here -1, and moves by itself.
    assert all(same(workers[1].held(), one) for one in held[1:])
    assert (workers[0].state.live[0] == held[0][0] - 1).all()


def test_a_host_has_two_states_and_what_each_worker_brings_and_nothing_more() -> None:
    workers = movers(4)
    rounds(workers, range(4))
    gc.collect()
    found = {
        os.stat(descriptor).st_ino: 512 * os.stat(descriptor).st_blocks
        for worker in workers
        for descriptor in [worker.data._segment.descriptor]
    }
    brings = sum(PAGE + bytes_of(shape.dtype, shape.size) for shape in DATA)
    assert sum(found.values()) <= 4 * brings + 2 * workers[0].state.bytes
