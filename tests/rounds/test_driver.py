"""What a round asks of a fabric, request by request, when peers are lost in it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spotmpi.errors import Left, PeersLost
from spotmpi.fabric import (
    Cancel,
    Depart,
    Poll,
    Proceed,
    Rebuild,
    Revoke,
    Shape,
    Share,
    Start,
    Steps,
    Wait,
    Welcome,
)
from spotmpi.fabric.planes.plane import private_arena
from spotmpi.fabric.solo import SoloFabric
from spotmpi.protocol.ledger import Ledger, Settlement
from spotmpi.protocol.membership import Membership, Worker
from spotmpi.protocol.recovery import (
    Built,
    Lost,
    PlannedChange,
    Received,
    Send,
    Survey,
    Token,
    TokenKind,
    Verdict,
)
from spotmpi.rounds.driver import Driver
from spotmpi.rounds.recovered import Recovered


class Memory:
    """A part of one number, and a word of one."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        data, word = (private_arena([Shape("float64", 1)], in_place) for _ in range(2))
        self.parts, self.word = data.parts, word.parts[0]
        self.results = [*data.results, *word.results]
        self.record = [*data.record, *word.record]
        self.room = self.results


class Exchange:
    """Rounds of one number, and a diary."""

    def __init__(self, in_place: bool = True) -> None:
        self.memory = Memory(in_place)
        self.plan: PlannedChange | None = None
        self.diary: list[Any] = []
        self.losses: list[int] = []
        """As the last recovery has them."""
        self.words = 0
        """Times that it has spoken."""

    def due(self) -> PlannedChange | None:
        """What the test says."""
        return self.plan

    def open(self) -> None:
        """A round begins."""

    def admission(self) -> bytes:
        """For a newcomer."""
        return b"admission"

    def confirm(self, lost: Collection[int]) -> None:
        """They are dead."""
        self.diary.append(("confirm", tuple(sorted(lost))))

    def last_words(self, remaining: Collection[int]) -> None:
        """The end is about to be sealed."""
        self.diary.append(("last words", tuple(sorted(remaining))))

    def bring(self) -> None:
        """Fill the buffers."""
        self.diary.append("bring")

    def prepare(self, membership: Membership) -> None:
        """About to reduce."""
        self.diary.append(("prepare", membership.ids))

    def speak(self, membership: Membership) -> None:
        """The word."""
        self.words += 1

    def commit(self, contributors: Sequence[int]) -> None:
        """It is there."""
        self.diary.append(("commit", tuple(contributors)))

    def dealt(self) -> tuple[int, int]:
        """Nothing is dealt."""
        return 0, 0

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """Through the door."""
        self.losses = recovered.losses
        self.diary.append(("resume", recovered.after.ids, recovered.settlement))


def started(steps: Steps[None], exchange: Exchange, first: Any) -> None:
    """From the first request of a round to the last: its data, its word, and the wait for both."""
    memory = exchange.memory
    assert first == Start(memory.parts[0])
    assert steps.send(11) == Start(memory.word)
    assert steps.send(12) == Wait([11, 12])


def begin(me: int, workers: int, in_place: bool = True) -> tuple[Driver, Exchange, Steps[None]]:
    """A worker in the midst of its first all-reduce."""
    exchange = Exchange(in_place)
    driver = Driver(me, Membership.first(["h"] * workers), exchange, lambda: 0.0)
    steps = driver.round()
    started(steps, exchange, next(steps))
    return driver, exchange, steps


def interrupt(steps: Steps[None]) -> None:
    """The wait is over because a peer is lost; all is given up before anything else is done."""
    assert steps.throw(PeersLost()) == Revoke()
    assert steps.send(None) == Cancel([11, 12])
    assert steps.send(None) == Poll()


def over(steps: Steps[None], reply: Any = None) -> None:
    """The last reply ends it, if it asks for anything."""
    with pytest.raises(StopIteration):
        steps.send(reply)


def test_a_round_that_nothing_disturbs_is_one_all_reduce() -> None:
    driver, exchange, steps = begin(0, 2)
    over(steps)
    assert exchange.diary == ["bring", ("prepare", (0, 1)), ("commit", (0, 1))]
    assert driver.ledger.committed == 1


@pytest.mark.parametrize(("in_place", "again"), [(True, ["bring"]), (False, [])])
def test_the_same_is_reduced_again_when_nobody_has_committed(
    in_place: bool, again: list[str]
) -> None:
    """And made again only where the sum came in its place."""
    driver, exchange, steps = begin(1, 2, in_place)
    interrupt(steps)
    assert steps.send(Lost(frozenset({0}))) == Rebuild(frozenset({1}))
    started(steps, exchange, steps.send(Built(True, frozenset({1}))))
    over(steps)
    assert exchange.diary == [
        "bring",
        ("prepare", (0, 1)),
        *again,
        ("confirm", (0,)),
        ("resume", (1,), Settlement.RETRY),
        ("prepare", (1,)),
        ("commit", (1,)),
    ]
    assert driver.membership.ids == (1,)


def test_what_was_begun_early_is_finished_by_the_round() -> None:
    exchange = Exchange(in_place=False)
    driver = Driver(0, Membership.first(["h"] * 2), exchange, lambda: 0.0)
    over(driver.open())
    early = driver.start(1)
    assert next(early) == Start(exchange.memory.parts[0])
    assert early.send(11) == Proceed()
    over(early)
    over(driver.start(1))  # it is under way
    steps = driver.round()
    assert next(steps) == Start(exchange.memory.word)
    assert steps.send(12) == Wait([11, 12])
    over(steps)
    assert exchange.diary == [("prepare", (0, 1)), ("commit", (0, 1))]


def all_begun(me: int, workers: int) -> tuple[Driver, Exchange, Steps[None]]:
    """A worker in its first round, of which nothing is left to be said: it waits."""
    exchange = Exchange(in_place=False)
    driver = Driver(me, Membership.first(["h"] * workers), exchange, lambda: 0.0)
    over(driver.open())
    early = driver.start(None)
    assert next(early) == Start(exchange.memory.parts[0])
    assert early.send(11) == Start(exchange.memory.word)
    assert early.send(12) == Proceed()
    over(early)
    steps = driver.round()
    assert next(steps) == Wait([11, 12])
    return driver, exchange, steps


def test_a_round_of_which_all_was_begun_early_is_only_waited_for() -> None:
    _, exchange, steps = all_begun(0, 2)
    over(steps)
    assert exchange.words == 1
    assert exchange.diary == [("prepare", (0, 1)), ("commit", (0, 1))]


def test_after_a_loss_it_is_begun_again_with_a_word_for_those_who_are_left() -> None:
    driver, exchange, steps = all_begun(1, 2)
    interrupt(steps)
    assert steps.send(Lost(frozenset({0}))) == Rebuild(frozenset({1}))
    started(steps, exchange, steps.send(Built(True, frozenset({1}))))
    over(steps)
    assert exchange.words == 2
    assert driver.ledger.contributors == (1,)


def test_if_others_have_committed_it_meanwhile_their_record_counts() -> None:
    """The one that is lost had a part in it."""
    _, exchange, steps = all_begun(2, 3)
    assert through_the_door(steps, COMMITTED) == Share(0, exchange.memory.results)
    over(steps)
    assert exchange.words == 1
    assert ("commit", (0, 1, 2)) in exchange.diary


@pytest.mark.parametrize("in_place", [True, False])
def test_a_loss_that_is_met_early_is_told_at_once_and_recovered_from_by_the_round(
    in_place: bool,
) -> None:
    exchange = Exchange(in_place)
    driver = Driver(1, Membership.first(["h"] * 2), exchange, lambda: 0.0)
    over(driver.open())
    early = driver.start(1)
    next(early)
    assert early.send(11) == Proceed()
    assert early.throw(PeersLost()) == Revoke()
    over(early)
    over(driver.start(1))
    assert not exchange.diary
    steps = driver.round()
    assert next(steps) == Revoke()
    assert steps.send(None) == Cancel([11])
    assert steps.send(None) == Poll()
    assert steps.send(Lost(frozenset({0}))) == Rebuild(frozenset({1}))
    started(steps, exchange, steps.send(Built(True, frozenset({1}))))
    over(steps)
    assert exchange.diary == [
        ("prepare", (0, 1)),
        *["bring"] * in_place,
        ("confirm", (0,)),
        ("resume", (1,), Settlement.RETRY),
        ("prepare", (1,)),
        ("commit", (1,)),
    ]


def test_a_worker_whose_script_fails_gives_up_what_it_has_begun() -> None:
    exchange = Exchange(in_place=False)
    driver = Driver(1, Membership.first(["h"] * 2), exchange, lambda: 0.0)
    over(driver.open())
    early = driver.start(1)
    next(early)
    early.send(11)
    over(early)
    steps = driver.abandon()
    assert next(steps) == Cancel([11])
    over(steps)


def test_a_failed_build_is_tried_again_from_the_same_progress() -> None:
    driver, exchange, steps = begin(2, 3)
    interrupt(steps)
    assert isinstance(steps.send(Lost(frozenset({0}))), Send)
    assert steps.send(None) == Poll()
    # Worker 1 dies in the door: the token that it was to pass on is lost with it.
    assert steps.send(Lost(frozenset({1}))) == Rebuild(frozenset({2}))
    assert steps.send(Built(False, frozenset({2}))) == Rebuild(frozenset({2}))
    started(steps, exchange, steps.send(Built(True, frozenset({2}))))
    over(steps)
    assert driver.membership.generation == 2


def through_the_door(steps: Steps[None], survey: Survey) -> Any:
    """Worker 2 of three, with worker 1 lost and worker 0 the starter; what it asks for then."""
    lost = frozenset({1})
    interrupt(steps)
    request = steps.send(Received(Token(TokenKind.RECONCILE, 1, 0, lost, survey)))
    assert isinstance(request, Send)
    assert request.token.survey.low == 0
    steps.send(None)
    steps.send(Received(Token(TokenKind.ACCEPT, 1, 0, lost, request.token.survey)))
    steps.send(None)
    request = steps.send(Received(Token(TokenKind.RESTART, 1, 0, lost, request.token.survey)))
    assert request == Rebuild(frozenset({0, 2}))
    return steps.send(Built(True, frozenset({0, 2})))


COMMITTED = Survey(1, 1, 0, 0, 0, 0, False)


def test_a_record_that_a_survivor_has_is_taken_over_and_nothing_is_reduced_again() -> None:
    driver, exchange, steps = begin(2, 3)
    assert through_the_door(steps, COMMITTED) == Share(0, exchange.memory.results)
    over(steps)
    assert exchange.diary[2:] == [
        "bring",
        ("confirm", (1,)),
        ("commit", (0, 1, 2)),
        ("resume", (0, 2), Settlement.RECEIVE),
    ]
    assert driver.ledger.committed == 1


def test_the_round_is_reduced_again_when_the_record_dies_with_its_only_holder() -> None:
    _, exchange, steps = begin(2, 3)
    through_the_door(steps, COMMITTED)
    assert steps.throw(PeersLost()) == Revoke()
    assert steps.send(None) == Cancel(())  # of a share nothing is left under way
    assert steps.send(None) == Poll()
    assert steps.send(Lost(frozenset({0}))) == Rebuild(frozenset({2}))
    started(steps, exchange, steps.send(Built(True, frozenset({2}))))
    over(steps)
    assert exchange.diary[2:] == [
        "bring",
        ("confirm", (1,)),
        "bring",  # what was to be received has spoilt it again
        ("confirm", (0,)),
        ("resume", (2,), Settlement.RETRY),
        ("prepare", (2,)),
        ("commit", (2,)),
    ]
    assert exchange.losses == [0, 1]


def test_a_record_that_a_worker_has_does_not_stay_where_its_next_contribution_was() -> None:
    driver, exchange, steps = begin(2, 3)
    over(steps)
    steps = driver.round()
    started(steps, exchange, next(steps))
    # Others lack round 0, and worker 0 is the one that gives it to them.
    survey = Survey(0, 1, 0, 0, 0, 0, False)
    assert through_the_door(steps, survey) == Share(0, exchange.memory.results)
    exchange.diary.clear()
    started(steps, exchange, steps.send(None))
    assert exchange.diary == ["bring", ("resume", (0, 2), Settlement.GIVE), ("prepare", (0, 2))]


def test_a_worker_alone_ends_through_the_same_door() -> None:
    fabric = SoloFabric()
    driver = Driver(0, fabric.membership, Exchange(), fabric.clock)
    for _ in range(3):
        fabric.run(driver.round())
    fabric.run(driver.finish())
    assert driver.ledger.committed == 3
    assert driver.ledger.ending


def test_last_words_are_written_before_the_end_can_be_sealed() -> None:
    driver, exchange, _ = begin(0, 2)
    driver.ledger.commit()
    steps = driver.finish()
    next(steps)  # it begins the round of the door
    exchange.diary.clear()
    assert steps.send(None) == Poll()
    assert steps.send(Lost(frozenset({1}))) == Rebuild(frozenset({0}))
    assert exchange.diary == [("confirm", (1,)), ("last words", (0,))]


def test_what_is_no_loss_of_a_peer_is_not_taken_for_one() -> None:
    _, _, steps = begin(0, 2)
    with pytest.raises(MemoryError):
        steps.throw(MemoryError())


# Changes that no death asks for.


def planning(
    me: int, workers: int, plan: PlannedChange
) -> tuple[Driver, Exchange, Steps[None], Any]:
    """A worker before whose next round a plan is due; and its first request."""
    exchange = Exchange()
    exchange.plan = plan
    driver = Driver(me, Membership.first(["h"] * workers), exchange, lambda: 0.0)
    steps = driver.round()
    return driver, exchange, steps, next(steps)


def test_who_is_to_leave_has_left_once_that_is_sealed_and_brings_nothing_more() -> None:
    plan = PlannedChange(leaving=frozenset({1}))
    driver, exchange, steps, request = planning(1, 2, plan)
    assert request == Poll()
    token = Token(TokenKind.RECONCILE, 1, 0, frozenset(), Survey(0, 0, 0, 0, 0, 0, False))
    request = steps.send(Received(token))
    assert isinstance(request, Send)
    assert request.token.survey.plan == plan
    assert steps.send(None) == Poll()
    request = steps.send(Received(replace(request.token, kind=TokenKind.ACCEPT)))
    assert isinstance(request, Send)
    assert steps.send(None) == Poll()
    request = steps.send(Received(replace(request.token, kind=TokenKind.RESTART)))
    assert request == Rebuild(frozenset({0, 1}), plan)
    assert steps.send(Built(True, frozenset({0, 1}))) == Depart()
    with pytest.raises(Left, match="worker 1 left on request"):
        steps.send(None)
    assert exchange.diary == []
    assert driver.membership.ids == (0,)
    assert driver.ledger.committed == 0


def test_a_sponsor_welcomes_its_newcomer_before_the_round_that_both_take_part_in() -> None:
    plan = PlannedChange(newcomer=7, sponsor=0)
    driver, exchange, steps, request = planning(0, 1, plan)
    assert request == Rebuild(frozenset({0}), plan)
    built = Built(True, frozenset({0}), Worker(7, "far"))
    assert steps.send(built) == Welcome(7, b"admission")
    assert exchange.diary == [("resume", (0, 7), Settlement.RETRY)]
    started(steps, exchange, steps.send(None))
    over(steps)
    assert exchange.diary[1:] == ["bring", ("prepare", (0, 7)), ("commit", (0, 7))]
    assert driver.membership.generation == 1


def test_a_newcomer_that_cannot_be_brought_in_costs_a_second_build_and_no_round() -> None:
    plan = PlannedChange(newcomer=7, sponsor=0)
    driver, exchange, steps, _ = planning(0, 1, plan)
    assert steps.send(Built(False, frozenset({0}))) == Rebuild(frozenset({0}))
    started(steps, exchange, steps.send(Built(True, frozenset({0}))))
    assert exchange.diary[0] == ("resume", (0,), Settlement.RETRY)
    over(steps)
    assert driver.ledger.committed == 1


def test_a_newcomer_takes_up_the_count_of_rounds_where_the_others_are() -> None:
    exchange = Exchange()
    before = Membership.first(["h"] * 2)
    after = before.without((), 3, Worker(7, "far"))
    driver = Driver(7, after, exchange, lambda: 0.0, Ledger(after, 12, before))
    assert driver.ledger.contributors == (0, 1)
    steps = driver.round()
    started(steps, exchange, next(steps))
    over(steps)
    assert driver.ledger.committed == 13
    assert driver.ledger.contributors == (0, 1, 7)


def test_who_left_as_it_was_told_is_not_among_the_losses() -> None:
    recovered = Recovered(Membership.first(["h"] * 3))
    recovered.after = recovered.before.without({1}, 1)
    survey = Survey(0, 0, 0, 0, 0, 0, False, PlannedChange(leaving=frozenset({1})))
    recovered.verdict = Verdict(1, frozenset(), survey)
    assert recovered.losses == []
    recovered.verdict = Verdict(1, frozenset({1}), survey)
    assert recovered.losses == [1]
