"""`spotmpi.fabric.planes.named_arena`: which way an array goes between hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from spotmpi.fabric import Part, Shape
from spotmpi.fabric.planes.named_arena import TRIED, NamedArena
from spotmpi.fabric.planes.plane import private_arena
from spotmpi.fabric.planes.rings import Rings
from spotmpi.protocol.host_ring import FIRST, RING, STRAIGHT

BOTH = STRAIGHT, RING
RINGS = Rings([[0], [1]], 0, cast(Any, None))


def arena() -> NamedArena:
    """Of one array."""
    return NamedArena(private_arena([Shape("float32", 5000)], in_place=True), large=True)


def as_fast(parts: Sequence[Part]) -> None:
    """The other worker's times are this one's."""
    (part,) = parts
    part.result[1::2] = part.contribution[::2]


def test_all_ways_are_tried_equally_often_and_then_the_fastest_is_taken() -> None:
    named, went = arena(), []
    for _ in range(TRIED):
        went.append(named.start(0, BOTH, RINGS))
        named.choose(RINGS, as_fast)
        assert named.last(0) == (went[-1], None)
        named.took(0, {STRAIGHT: 2.0, RING: 1.0}[went[-1]])
    assert went.count(STRAIGHT) == went.count(RING)
    named.choose(RINGS, as_fast)
    assert named.start(0, BOTH, RINGS) == RING
    way, choice = named.last(0)
    assert choice is not None
    assert (way, choice.way, choice.seconds) == (RING, RING, {STRAIGHT: 2.0, RING: 1.0})
    named.begin_again()
    assert named.last(0) == (RING, None)


def test_one_way_is_not_tried() -> None:
    named = arena()
    assert [named.start(0, (FIRST,), RINGS) for _ in range(TRIED + 1)] == [FIRST] * (TRIED + 1)
    assert named.last(0) == (FIRST, None)


def test_what_stays_on_a_host_or_is_not_shared_by_all_takes_no_way() -> None:
    named = arena()
    assert named.start(0, (), None) == ""
    assert named.start(0, BOTH, RINGS) == STRAIGHT
    named.agreed = False
    named.note_unshared(0)
    assert named.last(0) == ("", None)
    assert named.start(0, BOTH, RINGS) == ""
