"""The protocol's machine by itself; tests/scenarios tell how several play together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spotmpi.errors import InvalidTransition
from spotmpi.protocol.membership import Membership, Worker
from spotmpi.protocol.recovery import (
    NO_PLAN,
    STORY_LENGTH,
    Build,
    Built,
    ControlRevoked,
    DoorState,
    Interrupted,
    Lost,
    PlannedChange,
    Received,
    Recovery,
    Resume,
    Send,
    Stamp,
    Survey,
    Token,
    TokenKind,
    Verdict,
    most_messages,
)
from spotmpi.protocol.ring import starter

STAMP = Stamp(progress=5, committed_in=0, dealt=6, dealt_in=0, ending=False)


def machine(me: int, workers: int = 3) -> Recovery:
    """One that is interrupted already."""
    recovery = Recovery(me, Membership.first(["h"] * workers))
    assert recovery.handle(Interrupted(STAMP)) == []
    return recovery


def token(kind: TokenKind, *lost: int, origin: int = 0, attempt: int = 1) -> Received:
    """One that arrives, stamped by its origin."""
    return Received(Token(kind, attempt, origin, frozenset(lost), Survey.of(origin, STAMP)))


def test_an_interruption_alone_starts_nothing() -> None:
    """Whoever revoked has seen a loss; it is yet to be heard here."""
    assert machine(0).state is DoorState.RECONCILING


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
    for kind in TokenKind:
        assert recovery.handle(token(kind, 1, attempt=7)) == []
    recovery.handle(token(TokenKind.RECONCILE, 1))
    recovery.handle(token(TokenKind.ACCEPT, 1))
    assert recovery.state is DoorState.PREPARED
    for kind in TokenKind:
        assert recovery.handle(token(kind, 1, attempt=0)) == []
    assert recovery.state is DoorState.PREPARED


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
    assert recovery.state is DoorState.RUNNING


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
    heard = {Lost, ControlRevoked, *TokenKind}
    known: dict[DoorState, set[object]] = {state: set() for state in DoorState}
    for state, event in Recovery.TRANSITIONS:
        known[state].add(event)
    assert known == {
        DoorState.RUNNING: {Interrupted},
        DoorState.RECONCILING: heard,
        DoorState.PREPARED: heard,
        DoorState.BUILDING: {Built},
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


# Changes that no death asks for.

LEAVING = PlannedChange(leaving=frozenset({1}))
JOINING = PlannedChange(newcomer=9, sponsor=0)


def planned(
    me: int, plan: PlannedChange | None, workers: int = 3, stamp: Stamp = STAMP
) -> Recovery:
    """One that has come to a plan; what it asked for is left out."""
    recovery = Recovery(me, Membership.first(["h"] * workers))
    recovery.handle(Interrupted(replace(stamp, plan=plan)))
    return recovery


def sealed(recovery: Recovery, survey: Survey, lost: frozenset[int] = frozenset()) -> Build:
    """Worker 2 of three is shown all three tokens of a pass that worker 0 began."""
    (first,) = recovery.handle(Received(Token(TokenKind.RECONCILE, 1, 0, lost, survey)))
    assert isinstance(first, Send)
    for kind in (TokenKind.ACCEPT, TokenKind.RESTART):
        *_, last = recovery.handle(Received(Token(kind, 1, 0, lost, first.token.survey)))
    assert isinstance(last, Build)
    return last


def test_a_plan_is_reason_enough_for_the_starter_and_for_nobody_else() -> None:
    """Also the plan of one that has nothing to add."""
    for me, plan in ((0, NO_PLAN), (1, LEAVING), (2, JOINING)):
        recovery = Recovery(me, Membership.first(["h"] * 3))
        commands = recovery.handle(Interrupted(replace(STAMP, plan=plan)))
        starts = me == starter(recovery.membership, frozenset())
        assert [type(command) for command in commands] == [Send] * starts


def test_plans_add_up_with_one_newcomer_at_a_time() -> None:
    other = PlannedChange(newcomer=8, sponsor=2)
    both = LEAVING.add(JOINING).add(other).add(PlannedChange(leaving=frozenset({2})))
    assert both == PlannedChange(frozenset({1, 2}), 9, 0)
    assert other.add(JOINING) == other
    assert NO_PLAN.add(other) == other
    assert not NO_PLAN
    assert LEAVING
    assert JOINING


@pytest.mark.parametrize("ending", [False, True])
@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("lost", [frozenset[int](), frozenset({1})])
def test_a_plan_is_carried_out_in_a_pass_without_loss_repair_or_end_and_in_no_other(
    lost: frozenset[int], behind: int, ending: bool
) -> None:
    survey = replace(Survey.of(0, STAMP), high=5 + behind, ending=ending, plan=JOINING)
    change = Verdict(1, lost, survey).change
    assert change == (NO_PLAN if lost or behind or ending else JOINING)


@pytest.mark.parametrize("behind", [0, 1])
@pytest.mark.parametrize("lost", [frozenset[int](), frozenset({1})])
def test_whoever_leaves_at_the_end_is_no_member_after_it(lost: frozenset[int], behind: int) -> None:
    survey = replace(Survey.of(0, STAMP), high=5 + behind, ending=True, plan=LEAVING.add(JOINING))
    verdict = Verdict(1, lost, survey)
    assert verdict.change == (NO_PLAN if lost or behind else LEAVING)
    assert verdict.ended is not bool(lost or behind), "it would be a member of the next training"


def test_who_leaves_goes_first_as_it_may_be_the_sponsor() -> None:
    survey = replace(Survey.of(0, STAMP), plan=LEAVING.add(JOINING))
    assert Verdict(1, frozenset(), survey).change == LEAVING


def test_who_leaves_is_no_member_after_the_seal() -> None:
    recovery = planned(2, NO_PLAN)
    build = sealed(recovery, replace(Survey.of(0, STAMP), plan=LEAVING))
    assert build.verdict is not None
    assert build.verdict.change == LEAVING
    (resume,) = recovery.handle(Built(True, frozenset({0, 1, 2})))
    assert isinstance(resume, Resume)
    assert resume.membership.ids == (0, 2)
    assert recovery.state is DoorState.RUNNING
    # That it is gone is heard of later, and says nothing new.
    recovery.handle(Interrupted(STAMP))
    assert recovery.handle(Lost(frozenset({1}))) == []
    assert recovery.view == frozenset()


def test_a_newcomer_that_is_sealed_in_is_the_last_of_the_ring() -> None:
    recovery = planned(2, NO_PLAN)
    sealed(recovery, replace(Survey.of(0, STAMP), plan=JOINING))
    (resume,) = recovery.handle(Built(True, frozenset({0, 1, 2}), Worker(9, "far")))
    assert isinstance(resume, Resume)
    assert resume.membership.ids == (0, 1, 2, 9)
    assert resume.membership.generation == 1
    assert [worker.host for worker in resume.membership][-1] == "far"


def test_a_build_that_fails_turns_the_newcomer_away_and_still_lets_go_who_leaves() -> None:
    recovery = planned(0, LEAVING.add(JOINING), workers=1)
    assert recovery.state is DoorState.BUILDING
    (again,) = recovery.handle(Built(False, frozenset({0})))
    assert isinstance(again, Build)
    assert again.verdict is not None
    assert again.verdict.survey.plan == LEAVING


def test_a_plan_beside_a_loss_is_left_for_another_pass() -> None:
    recovery = planned(2, JOINING)
    build = sealed(recovery, replace(Survey.of(0, STAMP), plan=JOINING), lost=frozenset({1}))
    assert build.verdict is not None
    assert not build.verdict.change
    (resume,) = recovery.handle(Built(True, frozenset({0, 2})))
    assert isinstance(resume, Resume)
    assert resume.membership.ids == (0, 2)


def test_messages_are_bounded_also_in_a_pass_that_no_loss_asked_for() -> None:
    assert most_messages(0, unasked=True) == 3
    assert most_messages(2, unasked=False) == 6
    recovery = planned(2, JOINING)
    sealed(recovery, Survey.of(0, STAMP))
    assert 0 < recovery.sent <= most_messages(0, unasked=True)
