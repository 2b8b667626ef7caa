"""Memberships: numbered, ordered, immutable."""

from __future__ import annotations

import dataclasses

import pytest

from spotmpi.membership import Membership, Worker


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
