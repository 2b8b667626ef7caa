"""Which call is likely to come next."""

from __future__ import annotations

from spotmpi.protocol import likely_calls
from spotmpi.protocol.boundary import Payload
from spotmpi.protocol.control_word import GATHER, MEAN, ONCE, SUM32, SUM64
from spotmpi.protocol.likely_calls import LikelyCalls

A, B, C = Payload(SUM32, 1), Payload(SUM64, 1), Payload(MEAN, 71)


def known(calls: LikelyCalls, *made: Payload | None) -> list[bool]:
    """Note these calls; return for each of them if it was the likely one."""
    found = []
    for call in made:
        found.append(calls.next == call)
        calls.note(call)
    return found


def test_what_came_after_the_last_two_calls_is_likely() -> None:
    calls = LikelyCalls()
    assert known(calls, A, B, C) == [False] * 3
    assert known(calls, A, B, C) == [False, False, True]
    assert known(calls, A, B, C, A, B, C) == [True] * 6


def test_steps_are_among_them_and_one_call_may_come_several_times() -> None:
    calls = LikelyCalls()
    epoch = (A, A, None, B)
    known(calls, *epoch, *epoch)
    assert known(calls, *epoch) == [True] * 4


def test_the_last_time_counts() -> None:
    calls = LikelyCalls()
    known(calls, A, B, C, A, B, A)
    assert known(calls, A, B) == [False, False]
    assert calls.next == A


def test_the_sizes_of_values_do_not_matter() -> None:
    calls = LikelyCalls()
    for size, kind in enumerate([GATHER, ONCE, GATHER, ONCE]):
        calls.note(Payload(kind, size))
        calls.note(A)
    calls.note(Payload(GATHER, 7, lengths=True))
    assert calls.next == A
    calls.note(A)
    assert calls.next == Payload(ONCE, 0)


def test_nothing_is_likely_once_all_is_forgotten() -> None:
    calls, new = LikelyCalls(), LikelyCalls()
    known(calls, A, B, C, A, B)
    calls.clear()
    for call in (A, B, C, A, B):
        assert calls.next == new.next
        calls.note(call)
        new.note(call)
    assert calls.next == new.next == C


def test_no_more_is_kept_than_that() -> None:
    calls = LikelyCalls()
    for size in range(3 * likely_calls._MOST):
        calls.note(Payload(SUM32, size))
        assert len(calls._next) <= likely_calls._MOST
