"""Memberships: numbered, ordered, immutable."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest

from spotmpi.protocol.membership import Membership, Worker


def test_the_first_one_has_a_worker_for_each_host_in_ring_order() -> None:
    first = Membership.first(["a", "a", "b"])
    assert first.generation == 0
    assert first.ids == (0, 1, 2)
    assert [worker.host for worker in first] == ["a", "a", "b"]


def test_ids_stay_and_ranks_move_when_workers_are_lost() -> None:
    left = Membership.first(["h"] * 4).without({0, 2}, 3)
    assert (left.generation, left.ids, len(left)) == (3, (1, 3), 2)
    assert [left.rank(worker) for worker in left.ids] == [0, 1]
    assert 2 not in left
    with pytest.raises(KeyError):
        left.rank(2)


@pytest.mark.parametrize("generation", [-1, 0])
def test_a_generation_never_repeats(generation: int) -> None:
    with pytest.raises(ValueError, match="does not come after 0"):
        Membership.first(["h"]).without((), generation)


def test_a_worker_has_one_place() -> None:
    with pytest.raises(ValueError, match="twice"):
        Membership(0, (Worker(1), Worker(1)))


def test_it_cannot_be_changed_and_is_equal_by_value() -> None:
    first = Membership.first(["h", "h"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.generation = 1  # type: ignore[misc]
    assert first == Membership.first(["h", "h"])
    assert first != first.without((), 1)


def test_the_same_change_gives_the_same_object_as_long_as_somebody_holds_it() -> None:
    """A simulation of thousands would else need as many copies of thousands of workers."""
    first, newcomer = Membership.first(["h"] * 4), Worker(9, "far")
    after = first.without({0, 2}, 3, newcomer)
    assert first.without([2, 0], 3, Worker(9, "far")) is after
    assert first.without({0, 2}, 4, newcomer) != after
    assert first.without({0}, 3, newcomer).ids == (1, 2, 3, 9)
    rest = first.all_but(frozenset({1}))
    assert rest == {0, 2, 3}
    assert first.all_but(frozenset({1})) is rest
    held = weakref.ref(after)
    del after
    gc.collect()
    assert held() is None
