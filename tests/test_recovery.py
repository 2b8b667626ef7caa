"""The protocol's machine by itself; tests/scenarios tell how several play together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotmpi.errors import InvalidTransition
from spotmpi.membership import Membership
from spotmpi.recovery import (
    STORY_LENGTH,
    Build,
    Built,
    ControlRevoked,
    Interrupted,
    Kind,
    Lost,
    Received,
    Recovery,
    Resume,
    Send,
    Stamp,
    State,
    Survey,
    Token,
)

STAMP = Stamp(progress=5, committed_in=0, dealt=6, dealt_in=0, ending=False)


def machine(me: int, workers: int = 3) -> Recovery:
    """One that is interrupted already."""
    recovery = Recovery(me, Membership.first(["h"] * workers))
    assert recovery.handle(Interrupted(STAMP)) == []
    return recovery


def token(kind: Kind, *lost: int, origin: int = 0, attempt: int = 1) -> Received:
    """One that arrives, stamped by its origin."""
    return Received(Token(kind, attempt, origin, frozenset(lost), Survey.of(origin, STAMP)))


def test_an_interruption_alone_starts_nothing() -> None:
    """Whoever revoked has seen a loss; it is yet to be heard here."""
    assert machine(0).state is State.RECONCILING


def test_only_the_worker_before_the_lost_one_starts_a_token() -> None:
    for me, starts in ((0, True), (2, False)):
        commands = machine(me).handle(Lost(frozenset({1})))
        assert [type(command) for command in commands] == [Send] * starts


def test_a_view_is_started_once() -> None:
    recovery = machine(0)
    assert recovery.handle(Lost(frozenset({1})))
    assert recovery.handle(Lost(frozenset({1}))) == []
    assert recovery.sent == 1


def test_a_token_of_another_attempt_is_absorbed_in_every_state_that_listens() -> None:
    recovery = machine(2)
    for kind in Kind:
        assert recovery.handle(token(kind, 1, attempt=7)) == []
    recovery.handle(token(Kind.RECONCILE, 1))
    recovery.handle(token(Kind.ACCEPT, 1))
    assert recovery.state is State.PREPARED
    for kind in Kind:
        assert recovery.handle(token(kind, 1, attempt=0)) == []
    assert recovery.state is State.PREPARED


def test_a_loss_from_before_the_last_seal_says_nothing_new() -> None:
    recovery = Recovery(0, Membership.first(["h"] * 4).without({2}, 1))
    recovery.handle(Interrupted(STAMP))
    assert recovery.handle(Lost(frozenset({2}))) == []
    assert recovery.view == frozenset()


def test_the_last_one_alive_goes_straight_into_the_build_and_out() -> None:
    recovery = machine(1)
    (build,) = recovery.handle(Lost(frozenset({0, 2})))
    assert isinstance(build, Build)
    assert build.verdict is not None
    (resume,) = recovery.handle(Built(True, frozenset({1})))
    assert isinstance(resume, Resume)
    assert resume.membership.ids == (1,)
    assert resume.membership.generation == 1
    assert recovery.state is State.RUNNING


def test_generations_count_attempts_so_none_is_given_twice() -> None:
    """Those who sealed and those who did not can never have the same number."""
    recovery = machine(1, workers=2)
    recovery.handle(Lost(frozenset({0})))
    recovery.handle(Built(False, frozenset({1})))
    (resume,) = recovery.handle(Built(True, frozenset({1})))
    assert isinstance(resume, Resume)
    assert resume.membership.generation == 2


def test_an_event_that_a_state_does_not_know_tells_the_story() -> None:
    recovery = Recovery(0, Membership.first(["h"] * 2))
    with pytest.raises(InvalidTransition, match=r"state running does not know event ControlRev"):
        recovery.handle(ControlRevoked())
    recovery = machine(0)
    recovery.handle(Lost(frozenset({1})))
    with pytest.raises(
        InvalidTransition, match=r"reconciling <- Lost(.|\n)*reconciling <- Interrup"
    ):
        recovery.handle(Interrupted(STAMP))


def test_the_story_has_an_end() -> None:
    recovery = machine(2, workers=4)
    for _ in range(3 * STORY_LENGTH):
        recovery.handle(Lost(frozenset({1})))
    assert len(recovery.story) == STORY_LENGTH


def test_every_state_knows_what_to_do_with_every_event_that_can_reach_it() -> None:
    """In the build nothing is heard but its end; outside of the door nothing but the way in."""
    heard = {Lost, ControlRevoked, *Kind}
    known: dict[State, set[object]] = {state: set() for state in State}
    for state, event in Recovery.TRANSITIONS:
        known[state].add(event)
    assert known == {
        State.RUNNING: {Interrupted},
        State.RECONCILING: heard,
        State.PREPARED: heard,
        State.BUILDING: {Built},
    }


def test_a_survey_says_the_same_in_whatever_order_the_stamps_came() -> None:
    """But for the source, which is any of those who came furthest."""
    ahead = Stamp(6, 2, 7, 2, True)
    stamps = {0: replace(STAMP, ending=True), 1: ahead, 2: replace(STAMP, dealt=5, ending=True)}
    orders = [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)]
    surveys = set()
    for first, *others in orders:
        survey = Survey.of(first, stamps[first])
        for worker in others:
            survey = survey.add(worker, stamps[worker])
        surveys.add(survey)
    assert surveys == {Survey(5, 6, 1, 2, 7, 2, True)}
    assert not Survey.of(0, ahead).add(1, STAMP).ending
