"""Only who keeps others waiting and does nothing is to blame, and only after the limit."""

from __future__ import annotations

import pytest

from spotmpi.launch.head.stalls import Apart, Awaited, Stalls, Standing, waited_for
from spotmpi.launcher_channel import AT_MESSAGES, IN_ROUND, IN_SCRIPT

LIMIT = 60.0


def script(since: float, rounds: int = 7, quiet: float = 1e6, busy: str = "") -> Standing:
    """One that does nothing, unless told otherwise."""
    return Standing(rounds, rounds, IN_SCRIPT, since, quiet, busy)


def waiting(since: float, rounds: int = 7) -> Standing:
    return Standing(rounds, rounds, IN_ROUND, since)


def looked(progress: dict[int, Standing], now: float) -> list[int]:
    """Who is found at two looks in a row."""
    stalls = Stalls(LIMIT)
    assert stalls.look(progress, {}, now) == []
    return [one.worker for one in stalls.look(progress, {}, now)]


@pytest.mark.parametrize(
    ("progress", "found"),
    [
        # One has frozen, the others wait.
        ({0: waiting(101), 1: script(100), 2: waiting(102)}, [1]),
        # Two have.
        ({0: waiting(101), 1: script(100), 2: script(100)}, [1, 2]),
        # One waits for it in a recovery from the loss of a third, and lacks a round that it has.
        ({0: waiting(101), 1: script(100, rounds=8)}, [1]),
        # All evaluate, and one of them was ready only lately.
        ({0: waiting(150), 1: script(10), 2: script(10)}, []),
        # All evaluate.
        ({0: script(10), 1: script(10)}, []),
        # All are in a round: a long all-reduce, or a recovery.
        ({0: waiting(10), 1: waiting(10)}, []),
        # It has only just come back to its script, though the others have waited for long.
        ({0: waiting(10), 1: script(130)}, []),
        # It works, or did until lately.
        ({0: waiting(101), 1: script(100, quiet=0.0)}, []),
        ({0: waiting(101), 1: script(100, quiet=59.0), 2: script(100, quiet=61.0)}, [2]),
        ({0: waiting(10)}, []),
        ({}, []),
    ],
)
def test_who_is_to_blame(progress: dict[int, Standing], found: list[int]) -> None:
    assert looked(progress, 170.0) == found


def test_nobody_is_blamed_before_the_limit() -> None:
    progress = {0: waiting(100.0), 1: script(50.0)}
    assert looked(progress, 159.9) == []
    assert looked(progress, 160.1) == [1]


def test_a_launcher_that_was_stopped_looks_again_before_it_blames_anybody() -> None:
    stalls = Stalls(LIMIT)
    old = {0: waiting(101), 1: script(100)}
    assert stalls.look(old, {}, 500) == []
    moved = {0: waiting(501), 1: script(500)}
    assert stalls.look(moved, {}, 501) == []
    assert stalls.look(old, {}, 502) == []  # whatever it was: not twice in a row
    assert [one.worker for one in stalls.look(old, {}, 503)] == [1]


def test_half_way_to_the_limit_there_is_one_warning() -> None:
    stalls = Stalls(LIMIT)
    progress = {0: waiting(100), 1: script(100)}
    assert stalls.slow(progress, {}, 129) == []
    assert [one.worker for one in stalls.slow(progress, {}, 131)] == [1]
    assert stalls.slow(progress, {}, 132) == []
    assert stalls.slow({0: waiting(133), 1: script(133)}, {}, 134) == []
    again = {0: waiting(140), 1: script(140)}
    assert [one.worker for one in stalls.slow(again, {}, 171)] == [1]


def test_who_works_is_named_once_and_once_more_when_it_does_nothing() -> None:
    stalls = Stalls(LIMIT)
    for now, quiet, said in [(131, 0.0, 1), (132, 2.0, 0), (165, 31.0, 1), (166, 32.0, 0)]:
        found = stalls.slow({0: waiting(100), 1: script(100, quiet=quiet)}, {}, now)
        assert [one.worker for one in found] == [1] * said


@pytest.mark.parametrize(
    ("quiet", "busy", "said"),
    [
        (0.0, "", "which is at work in its script"),
        (0.0, "evaluating", "which is busy: evaluating"),
        (31.0, "", "which has done nothing in its script for 31.0 s; after 60 s it is revoked"),
        (31.0, "evaluating", "which has done nothing in its script for 31.0 s"),  # no beat came
    ],
)
def test_it_is_said_what_the_others_wait_for(quiet: float, busy: str, said: str) -> None:
    sentence = Awaited(1, 45.0, quiet, busy).sentence(LIMIT)
    assert sentence.startswith(f"the others have waited 45.0 s for worker 1, {said}")


def test_it_is_known_how_long_it_was() -> None:
    one = script(100, quiet=3.0, busy="evaluating")
    found = waited_for({0: waiting(110), 1: one, 2: waiting(105)}, 117)
    assert found == [Awaited(1, waited=12, quiet=3.0, busy="evaluating")]


def test_a_newcomer_that_does_nothing_is_found_though_nobody_waits_for_it() -> None:
    stalls = Stalls(LIMIT)
    for quiet, slow, found in [(29, 0, 0), (31, 1, 0), (61, 0, 0), (62, 0, 1)]:
        apart = {2: script(10, rounds=0, quiet=quiet), 3: waiting(0, rounds=0)}
        joint = {0: script(100), 1: waiting(169)}
        assert [one.worker for one in stalls.slow(joint, apart, 170)] == [2] * slow
        assert [one.worker for one in stalls.look(joint, apart, 170)] == [2] * found


def test_it_is_said_that_a_newcomer_does_nothing() -> None:
    sentence = Apart(3, 31.0).sentence(LIMIT)
    assert sentence.startswith("worker 3 has not joined yet, and has done nothing in its script")
    assert "after 60 s it is given up" in sentence


def at_messages(since: float) -> Standing:
    return Standing(7, 7, AT_MESSAGES, since)


@pytest.mark.parametrize(
    ("progress", "found"),
    [
        # Each waits for what the other has to send.
        ({0: at_messages(100), 1: at_messages(101)}, True),
        # One is in a call of some, and the others, which it waits for, in a round.
        ({0: waiting(100), 1: at_messages(101), 2: waiting(102)}, True),
        # A round that all are in, and that does not end.
        ({0: waiting(100), 1: waiting(100)}, True),
        # One of them can go on, if it is not revoked.
        ({0: waiting(100), 1: at_messages(101), 2: script(102)}, False),
        # One has waited for a short time only.
        ({0: waiting(100), 1: waiting(165)}, False),
        ({0: waiting(100), 1: at_messages(165)}, False),
        ({}, False),
    ],
)
def test_nobody_goes_on_if_all_wait(progress: dict[int, Standing], found: bool) -> None:
    stalls = Stalls(LIMIT)
    assert not stalls.stuck(progress, 105.0)
    assert not stalls.stuck(progress, 170.0)
    assert stalls.stuck(progress, 170.1) == found
    assert not stalls.stuck({**progress, 0: waiting(105.0)}, 170.2), "not the same twice"
    assert not stalls.stuck(progress, 170.3)


def test_a_round_begins_again_when_a_worker_is_lost() -> None:
    stalls = Stalls(LIMIT)
    three = {worker: waiting(100) for worker in range(3)}
    two = {worker: waiting(100) for worker in range(2)}
    assert not stalls.stuck(three, 105.0)
    assert not stalls.stuck(three, 159.0)
    for now, found in [(160.5, False), (220.0, False), (220.6, False), (221.0, True)]:
        assert stalls.stuck(two, now) == found


def test_who_waits_for_messages_is_not_to_blame_and_its_sender_is() -> None:
    assert looked({0: at_messages(100), 1: script(100), 2: at_messages(100)}, 170.0) == [1]
