"""The scenarios of the contract in which workers post messages to each other."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from spotmpi.errors import PeersLost
from spotmpi.fabric import KEY, Message, Post, Receive, Revoke, Steps, Work
from spotmpi.protocol.recovery import RevokeControl
from tests.fabric.contract import (
    ALL,
    LEAVE_3,
    Die,
    Go,
    attempt,
    build,
    heard,
    ones,
    scenario,
)

SMALL, LARGE = 5, 1 << 20


def key(number: int = 0) -> bytes:
    """One that can be told from others."""
    return bytes([number]) * KEY


def post(to: int, number: int, size: int = SMALL, what: int = 0) -> Steps[None]:
    """A message that is a number again and again. What is posted is copied."""
    content = np.full(size, number, np.uint8)
    yield Post(to, key(what), content)
    content[...] = 255


def number_of(message: Message) -> int:
    """What it says, all of it."""
    (number,) = {*np.frombuffer(message.content, np.uint8).tolist()}
    return int(number)


def received(*senders: int, what: int = 0) -> Steps[int]:
    """The number of the next message of one of these."""
    message = yield Receive(senders, key(what))
    assert message.sender in senders
    return number_of(message)


def several(times: int, *senders: int) -> Steps[list[int]]:
    """The numbers of so many messages of these."""
    found = []
    for _ in range(times):
        found.append((yield from received(*senders)))
    return found


def interrupted(*senders: int) -> Steps[str]:
    """What comes of a wait for a message that nobody posts."""
    return attempt(received(*senders, what=7))


@scenario(w0=[], w1=[1, 2, 3, 4], w2=[], w3=[])
def messages_arrive_whole_once_and_in_the_order_in_which_they_were_posted(me: int) -> Steps[Any]:
    """Large and small ones."""
    sizes, seen = [SMALL, LARGE, SMALL, LARGE], []
    for number, size in enumerate(sizes, 1):
        if me == 0:
            yield from post(1, number, size)
        if me == 1:
            seen.append((yield from received(0)))
    yield from ones()
    if me == 1:
        assert (yield Receive([0], key(), waits=False)) is None
    return seen


@scenario(w0="lent", w1=[1, 2, 1], w2=[], w3=[])
def what_is_lent_follows_the_content_and_is_not_copied(me: int) -> Steps[Any]:
    """It stays as it is until the receiver says that it has it all, and is changed then."""
    lent = [np.full(size, 1, np.uint8) for size in (LARGE, 0, SMALL, LARGE + 1)]
    if me == 0:
        yield Post(1, key(), np.full(SMALL, 1, np.uint8), lent)
        assert (yield from received(1)) == 3
        for part in lent:
            part[...] = 2
        yield Post(1, key(), np.full(SMALL, 2, np.uint8), lent)
        yield from ones()
        return "lent"
    seen = []
    if me == 1:
        first = yield Receive([0], key())
        yield from post(0, 3)
        second = yield Receive([0], key())
        for message in (first, second, first):  # each in memory of its own
            assert len(message.content) == SMALL + sum(map(len, lent))
            seen.append(number_of(message))
    yield from ones()
    return seen


@scenario(w0="posted", w1=["empty", 2, 3, 1], w2="posted", w3="posted")
def a_message_is_for_its_key_and_one_of_any_sender_is_taken(me: int) -> Steps[Any]:
    """What nobody asks for waits."""
    if me == 1:
        empty = yield Receive([0, 3], key(2))
        seen = ["empty" if not len(empty.content) else "full"]
        found = yield from several(2, 0, 2, 3)
        last = yield from received(0, what=1)
        return [*seen, *sorted(found), last]
    if me == 0:
        yield from post(1, 1, what=1)
        yield from post(1, 0, size=0, what=2)
    else:
        yield from post(1, me)
    return "posted"


@scenario(all=7)
def a_message_may_be_to_oneself(me: int) -> Steps[Any]:
    """And is there at once."""
    yield from post(me, 7)
    return number_of((yield Receive([me], key(), waits=False)))


@scenario(w0="lost", w1="lost", w2="lost", w3="revoked")
def a_revocation_interrupts_those_who_wait_for_a_message(me: int) -> Steps[Any]:
    """Nobody is dead; worker 3 posts nothing."""
    if me == 3:
        yield Revoke()
        return "revoked"
    return (yield from interrupted(3))


@scenario(w0="lost", w1="lost", w2="lost", w3="revoked")
def a_revocation_interrupts_those_who_look_for_a_message(me: int) -> Steps[Any]:
    """They do not wait, and look again and again."""
    if me == 3:
        yield Revoke()
        return "revoked"
    return (yield from attempt(_looked_for()))


def _looked_for() -> Steps[None]:
    """Look for a message that nobody posts."""
    while (yield Receive([3], key(7), waits=False)) is None:
        yield Work(os.sched_yield)


@scenario(all=[[True, [0, 1, 2, 3]], [1, 2]])
def what_is_under_way_arrives_past_a_revocation_and_builds(me: int) -> Steps[Any]:
    """All paths are made anew, the one for messages is not."""
    right, left = (me + 1) % 4, (me - 1) % 4
    for number, size in ((1, LARGE), (2, SMALL)):
        yield from post(right, number, size)
    if me == 0:
        yield RevokeControl()
    yield Revoke()
    yield from build(None)
    yield from build(None)
    built = yield from build(ALL)
    found = yield from several(2, left)
    yield from ones()
    return [built, found]


@scenario(all=["lost", 1, [True, [0, 2, 3]], 2], dead=[1])
def the_others_get_what_they_post_past_a_death_and_after_the_build(me: int) -> Steps[Any]:
    """Who waits for another one learns of the death, and what had come is there."""
    if me == 1:
        raise Die
    before = {0: 3, 2: 0, 3: 2}[me]
    after = {0: 2, 2: 3, 3: 0}[me]
    lost = yield from interrupted(before)
    yield from post(1, 9)  # nobody gets it
    yield from post(after, 1, LARGE)
    yield from heard(1)
    yield Revoke()
    found = yield from _until(before)
    built = yield from build(ALL - {1})
    yield from post(after, 2)
    again = yield from received(before)
    yield from ones()
    return [lost, found, built, again]


def _until(sender: int) -> Steps[int]:
    """The number of a message that must come, though a loss is known."""
    while True:
        try:
            message = yield Receive([sender], key(), waits=False)
        except PeersLost:
            message = None
        if message is not None:
            return number_of(message)
        yield Work(os.sched_yield)


@scenario(all=[[True, [0, 1, 2, 3]], [1, 2]], dead=[3])
def the_others_get_what_they_post_when_one_has_left(me: int) -> Steps[Any]:
    """And what was under way meanwhile."""
    yield from ones()
    right = (me + 1) % 3
    if me != 3:
        yield from post(right, 1, LARGE)
    left = yield from build(ALL, LEAVE_3)
    if me == 3:
        raise Go
    yield from post(right, 2)
    found = yield from several(2, (me - 1) % 3)
    yield from ones()
    return [left, found]
