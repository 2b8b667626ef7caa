"""`spotmpi.protocol.drawn_ring`: one ring of all, another one in each round."""

from __future__ import annotations

import pytest

from spotmpi.protocol.drawn_ring import before
from spotmpi.protocol.membership import Membership

SIX = Membership.first(["h"] * 6).without({2}, 1)


@pytest.mark.parametrize("number", range(20))
def test_it_goes_through_all_of_them_once(number: int) -> None:
    seen, worker = [], SIX.ids[0]
    for _ in SIX.ids:
        found = before(worker, SIX, 7, number)
        assert found is not None
        worker = found
        seen.append(worker)
    assert sorted(seen) == sorted(SIX.ids)


def test_it_is_another_one_in_another_round_and_the_same_in_the_same() -> None:
    rings = [tuple(before(one, SIX, 7, number) for one in SIX.ids) for number in range(40)]
    assert len(set(rings)) > 15  # of 24 that there are
    again = [tuple(before(one, SIX, 7, number) for one in SIX.ids) for number in range(40)]
    assert rings == again


def test_who_is_alone_or_no_member_has_nobody_before_it() -> None:
    assert before(0, Membership.first(["h"]), 7, 3) is None
    assert before(2, SIX, 7, 3) is None
