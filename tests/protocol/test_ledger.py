"""Rounds open, committed, repaired: numbers only."""

from __future__ import annotations

import pytest

from spotmpi.errors import InvalidTransition
from spotmpi.protocol.ledger import Ledger, Settlement
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.recovery import Stamp, Survey, Verdict

FIRST = Membership.first(["h"] * 3)
SECOND = FIRST.without({1}, 1)
THIRD = SECOND.without({2}, 4)


def ledger(committed: int) -> Ledger:
    """In the midst of the round after so many."""
    book = Ledger(FIRST)
    for _ in range(committed):
        book.begin()
        book.commit()
    book.begin()
    return book


def verdict(low: int, high: int, committed_in: int = 0) -> Verdict:
    """One of rounds ``low`` to ``high``."""
    return Verdict(1, frozenset({1}), Survey(low, high, 0, committed_in, high, 0, False))


def test_a_round_opens_and_closes_once() -> None:
    book = ledger(2)
    assert (book.committed, book.open) == (2, True)
    with pytest.raises(InvalidTransition, match="begin"):
        book.begin()
    book.commit()
    assert (book.committed, book.open, book.contributors) == (3, False, (0, 1, 2))
    with pytest.raises(InvalidTransition, match="commit"):
        book.commit()


def test_nothing_begins_after_the_end() -> None:
    book = ledger(1)
    with pytest.raises(InvalidTransition, match="end"):
        book.end()
    book.commit()
    book.end()
    assert book.stamp(2, 0) == Stamp(2, 0, 2, 0, ending=True)
    with pytest.raises(InvalidTransition, match="ending"):
        book.begin()


def test_all_retry_what_nobody_committed() -> None:
    book = ledger(5)
    assert book.settle(verdict(5, 5)) is Settlement.RETRY
    book.adopt(SECOND)
    book.commit()
    assert (book.contributors, book.generation) == ((0, 2), 1)


def test_who_is_behind_receives_and_counts_the_lost_workers_contribution() -> None:
    book = ledger(5)
    book.adopt(SECOND)
    assert book.settle(verdict(5, 6)) is Settlement.RECEIVE
    book.repair(verdict(5, 6))
    assert (book.committed, book.open, book.contributors) == (6, False, (0, 1, 2))
    assert book.settle(verdict(5, 6)) is Settlement.GIVE
    with pytest.raises(InvalidTransition, match="does not need"):
        book.repair(verdict(5, 6))


def test_a_repaired_round_is_that_of_the_generation_that_reduced_it() -> None:
    """Two recoveries in one round: the second repairs what the first had retried."""
    book = ledger(5)
    book.adopt(SECOND)
    book.adopt(THIRD)
    book.repair(verdict(5, 6, committed_in=1))
    assert book.contributors == (0, 2)


@pytest.mark.parametrize("rounds", [(4, 6), (6, 7), (3, 4)])
def test_a_skew_beyond_one_round_is_a_bug_of_ours(rounds: tuple[int, int]) -> None:
    with pytest.raises(InvalidTransition, match="a verdict of rounds"):
        ledger(5).settle(verdict(*rounds))


def test_memberships_are_remembered_as_long_as_a_verdict_may_name_them() -> None:
    book = ledger(0)
    book.adopt(SECOND)
    assert book.members_of(0) == FIRST
    book.commit()
    assert book.members_of(0) is None
    assert book.members_of(1) == SECOND
