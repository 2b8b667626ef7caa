"""The ring: neighbours among the living, and the one worker that starts a token."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spotmpi.protocol.membership import Membership
from spotmpi.protocol.ring import predecessor, starter, successor


@st.composite
def rings(draw: st.DrawFn) -> tuple[Membership, frozenset[int]]:
    """A ring with gaps in its ids, and some of its workers lost, but not all."""
    size = draw(st.integers(1, 30))
    gone = draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    ring = Membership.first(["h"] * size).without(gone, 1)
    return ring, frozenset(draw(st.sets(st.sampled_from(ring.ids), max_size=len(ring) - 1)))


@given(rings())
def test_the_living_form_one_ring(given_ring: tuple[Membership, frozenset[int]]) -> None:
    ring, lost = given_ring
    alive = [worker for worker in ring.ids if worker not in lost]
    walk = [alive[0]]
    while len(walk) < len(alive):
        walk.append(successor(ring, walk[-1], lost))
    assert walk == alive
    assert successor(ring, walk[-1], lost) == alive[0]
    for worker in alive:
        assert predecessor(ring, successor(ring, worker, lost), lost) == worker


@given(rings())
def test_the_starter_lives_and_its_neighbour_is_the_first_of_the_lost(
    given_ring: tuple[Membership, frozenset[int]],
) -> None:
    ring, lost = given_ring
    one = starter(ring, lost)
    assert one in ring
    assert one not in lost
    if lost:
        first = min(lost, key=ring.rank)
        assert predecessor(ring, first, lost) == one
    else:
        assert one == ring.ids[0]


def test_nobody_is_left() -> None:
    with pytest.raises(ValueError, match="nobody is left of generation 0"):
        successor(Membership.first(["h"] * 2), 0, {0, 1})
