"""A worker alone: all of the port, with nobody to talk to."""

from __future__ import annotations

import numpy as np
import pytest

from spotmpi.bench.measuring.sums import summed
from spotmpi.fabric import (
    Fetch,
    Poll,
    Publish,
    Rebuild,
    Revoke,
    Shape,
    Share,
    Signal,
    Signals,
    Start,
    Wait,
)
from spotmpi.fabric.solo import SoloFabric
from spotmpi.protocol.recovery import Built


def test_the_sum_over_one_is_what_it_brings() -> None:
    fabric = SoloFabric()
    arena = fabric.arena([Shape("float64", 3), Shape("float32", 1)])
    arena.contributions[0][...] = [0, 1, 2]
    arena.contributions[1][...] = 1
    fabric.run(summed(arena.parts[:1]))
    fabric.perform(Wait([fabric.perform(Start(arena.parts[1]))]))
    np.testing.assert_array_equal(arena.results[0], [0, 1, 2])
    assert arena.results[1][0] == 1


def test_a_build_is_sealed_at_once_but_never_without_a_verdict() -> None:
    alone = frozenset({0})
    assert SoloFabric().perform(Rebuild(alone)) == Built(True, alone)
    assert SoloFabric().perform(Rebuild(None)) == Built(False, alone)


def test_what_concerns_others_does_nothing_and_waiting_for_them_is_a_bug() -> None:
    fabric = SoloFabric()
    assert fabric.perform(Share(0, [np.ones(1)])) is None
    assert fabric.perform(Revoke()) is None
    assert fabric.perform(Publish([np.ones(1)])) is None
    assert fabric.perform(Fetch(0)) is fabric.perform(Fetch(1)) is None
    assert fabric.perform(Signal(b"here")) is None
    assert fabric.perform(Signals()) == {}
    with pytest.raises(RuntimeError, match="a worker alone was asked to"):
        fabric.perform(Poll())


def test_it_has_a_membership_of_one_and_a_clock_that_goes_forward() -> None:
    fabric = SoloFabric()
    assert fabric.membership.ids == (fabric.me,) == (0,)
    assert fabric.clock() <= fabric.clock()
