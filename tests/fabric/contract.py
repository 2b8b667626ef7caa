"""What every fabric guarantees, as scenarios that any of them can perform.

A scenario is a generator of requests for one of four workers; it returns what this worker saw.
`Die` raised from it ends the worker as a provider would, `Go` as a script that has come to its end.
`expected` says what each survivor must return. More of them: `model_scenarios`, `sum_scenarios`,
`signal_scenarios`, `mail_scenarios`, `place_scenarios`, `small_scenarios`. Who performs them:
`performing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from spotmpi.bench.measuring.sums import summed as sum_over_all
from spotmpi.errors import PeersLost
from spotmpi.fabric import (
    Arena,
    Cancel,
    Depart,
    Poll,
    Proceed,
    Rebuild,
    Request,
    Revoke,
    Shape,
    Share,
    Start,
    Steps,
    Wait,
)
from spotmpi.protocol.recovery import (
    NO_PLAN,
    Built,
    ControlRevoked,
    Lost,
    PlannedChange,
    Received,
    RevokeControl,
    Send,
    Survey,
    Token,
    TokenKind,
)

WORKERS = 4
ALL = frozenset(range(WORKERS))


class Die(BaseException):
    """This worker is revoked now."""


class Go(BaseException):
    """This worker has left, and its process ends at once."""


def _nobody(layout: Sequence[Shape]) -> Arena:
    raise AssertionError("nobody performs scenarios yet")


arena_of: Callable[[Sequence[Shape]], Arena] = _nobody
"""Makes memory for rounds, of the plane that is looked at; whoever performs scenarios sets it."""

Scenario = Callable[[int], Steps[Any]]
SCENARIOS: dict[str, Scenario] = {}
expected: dict[str, dict[int, Any]] = {}


def scenario(**seen: Any) -> Callable[[Scenario], Scenario]:
    """Register one: ``all`` is what everybody must see, or ``w0`` ... what worker 0 ... must."""

    def register(function: Scenario) -> Scenario:
        name = function.__name__
        SCENARIOS[name] = function
        expected[name] = {
            worker: seen.get(f"w{worker}", seen.get("all"))
            for worker in range(WORKERS)
            if f"w{worker}" in seen or "all" in seen
        }
        for worker in seen.get("dead", ()):
            del expected[name][worker]
        return function

    return register


def arena(*brought: Any) -> Arena:
    """What this worker brings, array by array."""
    made = arena_of([Shape(flat.dtype.name, flat.size) for flat in brought])
    for flat, contribution in zip(brought, made.contributions, strict=True):
        contribution[...] = flat
    return made


def ones() -> Steps[None]:
    """An all-reduce of which only matters whether it comes through."""
    return sum_over_all(arena(np.ones(8)).parts)


def ask(request: Request) -> Steps[Any]:
    """One request."""
    return (yield request)


def attempt(steps: Steps[Any]) -> Steps[str]:
    """Whether a collective came through on this worker."""
    try:
        yield from steps
    except PeersLost:
        return "lost"
    return "done"


def summed(me: int) -> Steps[list[float]]:
    """An all-reduce of 10 ** me, in both of the types that are trained."""
    both = arena(np.full(3, 10.0**me, np.float32), np.full(1_500, 10.0**me, np.float64))
    yield from sum_over_all(both.parts)
    first, second = both.results
    assert (first == first[0]).all()
    assert (second == first[0]).all()
    return float(first[0])


def token(number: int) -> Token:
    """One that can be told from others."""
    survey = Survey(1, 2, 3, 4, 5, 6, False)
    return Token(TokenKind.RECONCILE, number, 0, frozenset({1, number}), survey)


def heard(*losses: int, tokens: int = 0) -> Steps[list[int]]:
    """Wait until these are known to be dead, each told once, and so many tokens are here.

    Returns what numbers the tokens have; only their order among themselves is promised.
    """
    missing, numbers = set(losses), []
    while missing or len(numbers) < tokens:
        event = yield Poll()
        if isinstance(event, Lost):
            assert event.workers <= missing, f"{event.workers} told, {missing} expected"
            missing -= event.workers
        else:
            assert event == Received(token(event.token.attempt))
            numbers.append(event.token.attempt)
    return numbers


def build(members: frozenset[int] | None, change: PlannedChange = NO_PLAN) -> Steps[list[Any]]:
    """What the build says: sealed or not, and who is alive."""
    built = yield Rebuild(members, change)
    assert isinstance(built, Built)
    return [built.sealed, sorted(built.members)]


# Without a death.


@scenario(all=1111.0)
def a_reduce_sums_over_all_members_and_leaves_what_is_sent(me: int) -> Steps[Any]:
    """Array by array."""
    return (yield from summed(me))


@scenario(all="in order")
def what_is_small_is_summed_in_the_order_of_the_members(me: int) -> Steps[Any]:
    """Or host by host: of numbers whose sum depends on it."""
    every = []
    for large in (np.float32(2**25), np.float64(2**54)):
        orders = np.array([*permutations((0, large, -large, 1))], large.dtype).T
        every += [np.tile(orders, times) for times in (1, 4, 20)]
    several = arena(*(one[me] for one in every))
    yield from sum_over_all(several.parts)
    for (a, b, c, d), result in zip(every, several.results, strict=True):
        orders = ((a + b) + c) + d, (a + (b + c)) + d
        assert any((result == one).all() for one in orders), result
    return "in order"


@scenario(all=[1111.0, 2222.0, "as it was"])
def parts_are_started_one_after_the_other_and_waited_for_together(me: int) -> Steps[Any]:
    """In any order; a contribution is left alone, unless the sum arrives where it was."""
    both = arena(np.full(3, 10.0**me), np.full(70_000, 2 * 10.0**me, np.float32))
    handles = []
    for part in both.parts:
        handles.append((yield Start(part)))
    yield Wait(handles[::-1])
    first, second = both.results
    assert (second == second[0]).all()
    left = both.in_place or (both.contributions[0] == 10.0**me).all()
    return [float(first[0]), float(second[0]), "as it was" if left else "changed"]


def begin(both: Arena, me: int, handles: list[int]) -> Steps[None]:
    """A round whose parts go on while their worker does something else."""
    for number, part in enumerate(both.parts):
        part.contribution[...] = (number + 1) * 10.0**me
        handles.append((yield Start(part)))
        yield Proceed()


@scenario(all=[[True, [0, 1, 2, 3]], 1111.0, [5.0, 5.0]])
def parts_that_go_on_touch_their_memory_no_more_once_given_up(me: int) -> Steps[Any]:
    """Worker 3 has been through two rounds, and so the others through one: some may still read what
    came of the second, which only some come through. So it is left alone until the build."""
    both = arena(np.zeros(3), np.zeros(70_000, np.float32))
    handles: list[int] = []
    try:
        for _ in range(2 if me == 3 else 3):
            yield from begin(both, me, handles)
            yield Wait(handles)
            assert [set(one.tolist()) for one in both.results] == [{1111}, {2222}]
            both.turn()
            handles = []
    except PeersLost:
        assert me != 3
    yield Revoke()
    yield Cancel(handles)
    built = yield from build(ALL)
    for result in both.results:
        result[...] = 5
    total = yield from summed(me)
    assert all((result == 5).all() for result in both.results)
    return [built, total, [float(result[0]) for result in both.results]]


@scenario(all=[[True, [0, 1, 2, 3]], 1111.0, 5.0])
def what_is_given_up_touches_its_memory_no_more(me: int) -> Steps[Any]:
    """Worker 3 never starts it; the others give it up, and go on."""
    one = arena(np.ones(9))
    if me == 3:
        yield Revoke()
    else:
        handles = []
        try:
            handles.append((yield Start(one.parts[0])))
            yield Wait(handles)
        except PeersLost:
            yield Revoke()
        yield Cancel(handles)
    one.results[0][...] = 5
    built = yield from build(ALL)
    total = yield from summed(me)
    assert (one.results[0] == 5).all()
    return [built, total, float(one.results[0][0])]


@scenario(all=[[True, [0, 1, 2, 3]], 1111.0, [5.0, 5.0]])
def parts_that_are_given_up_half_way_touch_their_memory_no_more(me: int) -> Steps[Any]:
    """Worker 3 enters none of them, and revokes; the others may wait for any of the two."""
    both = arena(np.ones(70_000, np.float32), np.ones(9))
    if me == 3:
        yield Revoke()
    else:
        handles = []
        try:
            for part in both.parts:
                handles.append((yield Start(part)))
            yield Wait(handles)
        except PeersLost:
            yield Revoke()
        yield Cancel(handles)
    for result in both.results:
        result[...] = 5
    built = yield from build(ALL)
    total = yield from summed(me)
    assert all((result == 5).all() for result in both.results)
    return [built, total, [float(result[0]) for result in both.results]]


@scenario(all=[2.0, 12.0])
def a_share_copies_the_buffers_of_its_source(me: int) -> Steps[Any]:
    """To all others."""
    buffers = [np.full(4, me, np.float32), np.full(2, 10.0 + me)]
    yield Share(2, buffers)
    assert len({*buffers[0].tolist()}) == len({*buffers[1].tolist()}) == 1
    return [float(buffers[0][0]), float(buffers[1][0])]


@scenario(w0=[], w1=[3, 1, 2, 9], w2=[], w3=[])
def tokens_arrive_whole_once_and_in_the_order_in_which_they_were_sent(me: int) -> Steps[Any]:
    """Between one sender and one receiver."""
    sent, seen = [3, 1, 2, 9], []
    for number in sent:
        if me == 0:
            yield Send(1, token(number))
        if me == 1:
            event = yield Poll()
            assert event == Received(token(event.token.attempt))
            seen.append(event.token.attempt)
    return seen


@scenario(all=[7])
def a_token_goes_round_the_ring(me: int) -> Steps[Any]:
    """Everybody sends and receives."""
    if me == 0:
        yield Send(1, token(7))
    event = yield Poll()
    if me != 0:
        yield Send((me + 1) % WORKERS, event.token)
    return [event.token.attempt]


@scenario(w0="lost", w1="lost", w2="lost", w3="revoked")
def a_revocation_interrupts_those_who_wait_in_a_collective(me: int) -> Steps[Any]:
    """Nobody is dead; worker 3 will never enter."""
    if me == 3:
        yield Revoke()
        return "revoked"
    return (yield from attempt(ones()))


@scenario(w0=[False, [0, 1, 2, 3]], w1="told", w2="told", w3="told")
def the_revocation_of_the_control_path_is_told_once_to_all_others(me: int) -> Steps[Any]:
    """And a build that fails makes the control path anew."""
    if me == 0:
        yield RevokeControl()
    else:
        event = yield Poll()
        assert event == ControlRevoked()
    built = yield from build(None)
    round_trip = yield from a_token_goes_round_the_ring(me)
    assert round_trip == [7]
    return built if me == 0 else "told"


@scenario(all=[False, [0, 1, 2, 3]])
def a_build_whose_members_differ_fails_for_all(me: int) -> Steps[Any]:
    """One worker of four has another verdict."""
    return (yield from build(ALL if me else ALL - {2}))


@scenario(all=[False, [0, 1, 2, 3]])
def a_build_without_a_verdict_fails_for_all(me: int) -> Steps[Any]:
    """One worker of four has none."""
    return (yield from build(ALL if me != 2 else None))


@scenario(all=[[True, [0, 1, 2, 3]], 1111.0])
def a_sealed_build_has_a_new_data_path(me: int) -> Steps[Any]:
    """The old one was revoked."""
    if me == 1:
        yield Revoke()
    built = yield from build(ALL)
    return [built, (yield from summed(me))]


@scenario(all=[[True, [0, 1, 2, 3]], 1111.0])
def whoever_departs_waits_until_all_are_out_of_the_build(me: int) -> Steps[Any]:
    """Once more there is nothing to wait for; and nothing is over for who stays."""
    built = yield from build(ALL)
    yield Depart()
    yield Depart()
    return [built, (yield from summed(me))]


# With deaths.


@scenario(all=[True, [0, 1, 2, 3]], dead=[1, 2])
def whoever_departs_does_not_wait_for_the_dead(me: int) -> Steps[Any]:
    """They die before they are out, or before they have said so."""
    built = yield from build(ALL)
    if me in (1, 2):
        raise Die
    yield Depart()
    return built


@scenario(w0="lost", w2="lost", w3="lost")
def a_reduce_that_a_dead_worker_never_entered_fails_on_all(me: int) -> Steps[Any]:
    """Whoever is told revokes, so that nobody waits for ever."""
    if me == 1:
        raise Die
    said = yield from attempt(ones())
    yield Revoke()
    return said


@scenario(all=[[True, [0, 1, 3]], 1011.0, 5.0], dead=[2])
def who_dies_with_a_part_under_way_leaves_the_others_memory_in_peace(me: int) -> Steps[Any]:
    """It has said that its contribution is there, and others may have begun to sum."""
    one = arena(np.full(70_000, 10.0**me, np.float32))
    handles = []
    try:
        if me != 2 or not one.in_place:  # then it is summed where it is started
            handles.append((yield Start(one.parts[0])))
        if me == 2:
            raise Die
        yield Wait(handles)
    except PeersLost:
        yield Revoke()
    yield Cancel(handles)
    built = yield from build(ALL - {2})
    while not built[0]:
        built = yield from build(ALL - {2})
    one.results[0][...] = 5  # not before: others may read it, where this worker has come through
    total = yield from summed(me)
    assert (one.results[0] == 5).all()
    return [built, total, float(one.results[0][0])]


@scenario(w0="lost", w2="lost", w3="lost")
def a_share_whose_source_is_dead_fails_on_all(me: int) -> Steps[Any]:
    """It had nothing sent."""
    if me == 1:
        raise Die
    said = yield from attempt(ask(Share(1, [np.ones(1 << 16)])))
    yield Revoke()
    return said


@scenario(w0="lost", w1="lost", w2="lost")
def a_revocation_reaches_all_although_its_sender_dies_at_once(me: int) -> Steps[Any]:
    """Who waits is interrupted by the one or by the other."""
    if me == 3:
        yield Revoke()
        raise Die
    return (yield from attempt(ones()))


@scenario(w0="heard", w3="heard")
def each_loss_is_told_once_to_everybody_alive(me: int) -> Steps[Any]:
    """What comes after the losses is a token, and no loss again."""
    if me in (1, 2):
        raise Die
    early = yield from heard(1, 2)
    yield Send(3 - me, token(8))
    assert early + (yield from heard(tokens=1 - len(early))) == [8]
    return "heard"


@scenario(w0="sent", w2="received", w3="heard")
def a_token_to_a_dead_worker_is_no_error(me: int) -> Steps[Any]:
    """And keeps no other from arriving."""
    if me == 1:
        raise Die
    if me == 2:
        assert (yield from heard(1, tokens=3)) == [5, 6, 7]
        return "received"
    yield from heard(1)
    if me == 3:
        return "heard"
    for number in (5, 6, 7):
        yield Send(1, token(4))
        yield Send(2, token(number))
    return "sent"


@scenario(all=[[True, [0, 2, 3]], 1101.0, [7]], dead=[1])
def a_build_is_sealed_when_all_alive_come_with_just_those_alive(me: int) -> Steps[Any]:
    """Then the data path and the control path work among them."""
    if me == 1:
        raise Die
    yield from heard(1)
    yield Revoke()
    built = yield from build(ALL - {1})
    total = yield from summed(me)
    following = {0: 2, 2: 3, 3: 0}
    if me == 0:
        yield Send(2, token(7))
    numbers = yield from heard(tokens=1)
    if me != 0:
        yield Send(following[me], token(7))
    return [built, total, numbers]


@scenario(all=[[False, [0, 1, 2]], [True, [0, 1, 2]], 111.0], dead=[3])
def a_build_notices_a_death_that_nobody_has_heard_of(me: int) -> Steps[Any]:
    """It fails for all alike, and the next one is sealed."""
    if me == 3:
        raise Die
    first = yield from build(ALL)
    second = yield from build(ALL - {3})
    return [first, second, (yield from summed(me))]


@scenario(all=[[True, [0, 2, 3]], [True, [0, 2]], 101.0], dead=[1, 3])
def one_loss_after_the_other_goes_through_the_same_door(me: int) -> Steps[Any]:
    """The second build shrinks what the first has made."""
    if me == 1:
        raise Die
    yield from heard(1)
    yield Revoke()
    first = yield from build(ALL - {1})
    if me == 3:
        raise Die
    assert (yield from attempt(ones())) == "lost"
    yield Revoke()
    second = yield from build(frozenset({0, 2}))
    return [first, second, (yield from summed(me))]


# With workers that leave.


def ring(me: int, members: list[int], number: int) -> Steps[None]:
    """A token goes round those who are left; that others are gone may be told, or not."""
    following = members[(members.index(me) + 1) % len(members)]
    if me == members[0]:
        yield Send(following, token(number))
    while isinstance(event := (yield Poll()), Lost):
        assert event.workers.isdisjoint(members)
    assert event == Received(token(number))
    if me != members[0]:
        yield Send(following, token(number))


def sums(me: int) -> Steps[list[float]]:
    """Many all-reduces, and what they came to."""
    found = set()
    for _ in range(30):
        found.add((yield from summed(me)))
    return sorted(found)


LEAVE_3 = PlannedChange(leaving=frozenset({3}))


@scenario(all=[[True, [0, 1, 2, 3]], [111.0], [True, [0, 1, 2]], [111.0]], dead=[3])
def who_leaves_ends_at_once_and_the_others_go_on_for_long(me: int) -> Steps[Any]:
    """In collectives, in token rounds, and through another build."""
    left = yield from build(ALL, LEAVE_3)
    if me == 3:
        yield Depart()
        raise Go
    first = yield from sums(me)
    for number in range(5, 25):
        yield from ring(me, [0, 1, 2], number)
    yield Revoke()
    again = yield from build(ALL - {3})
    then = yield from sums(me)
    yield from ring(me, [0, 1, 2], 30)
    return [left, first, again, then]


@scenario(w1=[[True, [0, 1, 2, 3]], 1010.0, [True, [1, 3]], 10.0])
def workers_leave_one_after_the_other_until_one_is_left(me: int) -> Steps[Any]:
    """Also the first one, and two at once."""
    first = yield from build(ALL, PlannedChange(leaving=frozenset({0, 2})))
    if me in (0, 2):
        raise Go
    total = yield from summed(me)
    second = yield from build(frozenset({1, 3}), LEAVE_3)
    if me == 3:
        raise Go
    return [first, total, second, (yield from summed(me))]


@scenario(all=[[True, [0, 1, 2, 3]], "lost", [True, [0, 2]], 101.0], dead=[1, 3])
def a_death_after_a_leave_goes_through_the_same_door(me: int) -> Steps[Any]:
    """The loss is told, whatever is told of the one that has left."""
    first = yield from build(ALL, LEAVE_3)
    if me == 3:
        raise Go
    if me == 1:
        raise Die
    said = yield from attempt(ones())
    yield Revoke()
    missing = {1}
    while missing:
        event = yield Poll()
        assert isinstance(event, Lost)
        missing -= event.workers
    second = yield from build(frozenset({0, 2}))
    return [first, said, second, (yield from summed(me))]


@scenario(all=[[False, [0, 1, 2, 3]], [True, [0, 1, 2, 3]], 111.0], dead=[3])
def who_is_to_leave_stays_while_the_build_fails(me: int) -> Steps[Any]:
    """And leaves with the next one."""
    first = yield from build(ALL if me != 1 else None, LEAVE_3 if me != 1 else NO_PLAN)
    second = yield from build(ALL, LEAVE_3)
    if me == 3:
        raise Go
    return [first, second, (yield from summed(me))]


@scenario(all=[[False, [0, 1, 2]], [True, [0, 1, 2]], 11.0], dead=[2, 3])
def a_death_that_nobody_has_heard_of_fails_the_build_in_which_one_leaves(me: int) -> Steps[Any]:
    """It is told to all alike."""
    if me == 3:
        raise Die
    first = yield from build(ALL, PlannedChange(leaving=frozenset({2})))
    second = yield from build(ALL - {3}, PlannedChange(leaving=frozenset({2})))
    if me == 2:
        raise Go
    return [first, second, (yield from summed(me))]


def deadly(name: str) -> bool:
    """Whether somebody dies or leaves in this scenario."""
    return len(expected[name]) < WORKERS
