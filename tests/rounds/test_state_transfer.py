"""Pages that go with the rounds, until a newcomer's state is the others', to the bit."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.word_view import WordView
from spotmpi.fabric import Arena, DoubleBuffer, Shape
from spotmpi.fabric.planes.plane import private_arena
from spotmpi.fabric.solo import SoloFabric
from spotmpi.protocol.state_pages import read
from spotmpi.rounds import state_transfer
from spotmpi.rounds.state_transfer import HEAD, StateTransfer

PAGES: weakref.WeakSet[Arena] = weakref.WeakSet()
"""The memory of all pages that anybody has."""


class Rooms(SoloFabric):
    """Gives arenas as planes do: one without a name sums in place, one with a name weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[Arena] = []

    def arena(
        self, layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None
    ) -> Arena:
        """Return an arena, and keep it if it has a name."""
        PAGES.add(made := private_arena(layout, in_place=not name))
        if name:
            made.weighs = True
            self.named.append(made)
        return made

    def release(self, arena: Arena) -> None:
        """Keep an arena with a name no longer."""
        self.named = [one for one in self.named if one is not arena]


class Class:
    """Some workers' schools, and what they register: counters that each round moves."""

    def __init__(self, workers: int, sizes: tuple[int, ...] = (50, 33, 7)) -> None:
        self.sizes = sizes
        self.state: dict[int, list[np.ndarray]] = {}
        self.schools: dict[int, StateTransfer] = {}
        for worker in range(workers):
            self.add(worker)
        for worker in range(1, workers):
            for mine, first in zip(self.state[worker], self.state[0], strict=True):
                mine[...] = first

    def add(self, worker: int) -> None:
        """With numbers of its own, of which every bit counts: also NaNs and infinities."""
        chance = np.random.default_rng(worker)
        words = [chance.integers(0, 2**32, size, np.uint32) for size in self.sizes]
        self.state[worker] = [flat.view(np.float32) for flat in words]
        self.schools[worker] = StateTransfer(worker, WordView(self.state[worker]), Rooms())

    def come(self, worker: int) -> None:
        """A newcomer is admitted, and enrols with what another one says."""
        state = next(one for one in self.schools.values() if not one.learns).state()
        self.add(worker)
        for one in self.schools.values():
            if one.me != worker:
                one.admit(worker)
        self.schools[worker].enrol(state)
        self.schools[worker].admit(worker)

    def round(self, seed: int, rest: bool = True) -> tuple[int, ...]:
        """One round of all; returns who has learnt in it."""
        schools = list(self.schools.values())
        for one in schools:
            one.open()
        full = schools[0].full(self.schools)
        for one in schools:
            if one.teaching and one.learns:
                one.bring_nothing()
            elif one.teaching:
                one.bring_page(seed, full)
                first = one.me == full[0]
                due: dict[str, Any] = {"where": seed} if first and rest and one.rest_due else {}
                one.bring_head(seed, {"seed": seed} if first else {}, due)
        arenas = [arena for one in schools for arena in one.arena]
        brought = [arena.contributions for arena in arenas if arena.weight]
        totals = [sum(flats) for flats in zip(*brought, strict=True)]
        for arena in arenas:
            for result, whole in zip(arena.results, totals, strict=True):
                result[...] = whole
            arena.turn()
        values = [one.turn() for one in schools]
        assert all(value == values[0] for value in values)
        for one in schools:  # what a step does with every word, whoever knows it
            for flat in self.state[one.me]:
                flat.view(np.uint32)[...] += np.uint32(seed)
        done = {one.given(value) for one, value in zip(schools, values, strict=True)}
        assert len(done) == 1
        return done.pop()

    def equal(self) -> bool:
        """Whether all of those who know have the same bits."""
        return (
            len(
                {
                    b"".join(flat.tobytes() for flat in self.state[one.me])
                    for one in self.schools.values()
                    if not one.learns
                }
            )
            == 1
        )


@pytest.fixture(autouse=True, params=["small", "shared"])
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices so small that there are several."""
    monkeypatch.setattr(state_transfer, "_LEAST", 1)
    if request.param == "shared":
        monkeypatch.setattr(state_transfer, "_SHARED", 1)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("sizes", [(50, 33, 7), (1,), (8, 8), (97,)])
def test_a_newcomer_has_every_bit_when_it_has_learnt(workers: int, sizes: tuple[int, ...]) -> None:
    there = Class(workers, sizes)
    for step in range(3):
        assert there.round(step) == ()
    there.come(9)
    for step in range(3, 40):
        if there.round(step):
            break
    assert not there.schools[9].learns
    assert there.equal()
    there.round(50)
    assert there.equal()


def test_pages_go_only_while_somebody_learns() -> None:
    there = Class(2)
    there.round(1)
    assert not any(one.teaching for one in there.schools.values())
    there.come(5)
    rounds = 0
    while there.schools[5].learns:
        for one in there.schools.values():
            one.open()
        assert [len(one.arena) for one in there.schools.values()] == [1] * 3
        there.round(rounds)
        rounds += 1
    assert rounds >= 8
    there.round(60)
    gc.collect()
    assert not PAGES
    for one in there.schools.values():
        one.open()
        assert not one.arena


def test_who_may_not_have_the_rest_yet_learns_on_and_ends_right() -> None:
    there = Class(2)
    there.come(5)
    for step in range(30):
        assert there.round(step, rest=False) == ()
    assert there.round(31) == (5,)
    assert there.equal()


@pytest.mark.parametrize("seed", range(20))
def test_newcomers_come_at_any_round_and_teachers_are_lost_at_any(seed: int) -> None:
    chance = random.Random(seed)
    there, learnt = Class(3), set()
    for step in range(60):
        if step < 40 and chance.random() < 0.15:
            there.come(10 + step)
        full = there.schools[0].full(there.schools)
        if len(full) > 1 and chance.random() < 0.05:
            gone = chance.choice([worker for worker in there.schools if worker != 0])
            del there.schools[gone]
            for one in there.schools.values():
                one.forget([gone])
        learnt.update(there.round(chance.randrange(1000)))
        assert there.equal()
    assert learnt
    assert not any(one.learns for one in there.schools.values())


def test_a_rest_that_finds_no_room_is_left_out_and_the_other_values_are_not() -> None:
    there = Class(1)
    one = there.schools[0]
    one.admit(5)
    one.open()
    one.bring_page(0, (0,))
    one.bring_head(0, {"a": 1}, {"long": np.random.default_rng(0).bytes(HEAD * 4).hex()})
    (arena,) = one.arena
    arena.results[1][...] = arena.contributions[1]
    arena.turn()
    assert one.turn() == {"a": 1}


def test_a_page_that_may_be_under_way_is_brought_again_only_among_other_members() -> None:
    there = Class(2)
    one = there.schools[0]
    one.admit(5)
    one.open()
    one.bring_page(3, (0, 1))
    (arena,) = one.arena
    page = arena.contributions[0].view(np.uint32)
    piece = page.copy()
    assert piece.any()
    page[...] = 7
    one.bring_page(3, (0, 1))
    assert (page == 7).all()
    one.bring_page(4, (0,))
    assert (page[: len(piece) // 2] == piece[: len(piece) // 2]).all()
    assert not (page == 7).any()
    one.open()
    one.bring_page(4, (0, 1))
    assert (page == piece).all()


def test_so_is_its_head() -> None:
    there = Class(1)
    one = there.schools[0]
    one.admit(5)
    one.open()
    (arena,) = one.arena
    for generation, seed in ((3, 1), (3, 2), (4, 3)):
        one.bring_head(generation, {"seed": seed}, {})
        arena.results[1][...] = arena.contributions[1]
        assert read(arena.results[1]) == {"seed": 3 if generation == 4 else 1}


def test_a_page_goes_with_a_round_that_some_have_begun_before_its_only_learner_was_lost() -> None:
    """Others hear of the loss first and begin it then; the buffers of all must be the same."""
    there = Class(2)
    there.come(9)
    there.round(1)
    del there.schools[9]
    early, late = there.schools.values()
    early.open()
    for one in (early, late):
        one.forget([9])
    late.open()
    assert early.teaching
    assert late.teaching
    for step in (2, 3):
        there.round(step)
    assert there.equal()
    assert not early.teaching
    early.open()
    assert not early.arena
