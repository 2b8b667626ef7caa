"""Calls among some of the workers, by messages: no other worker needs to know of them.

The first of these workers that lives gets what each of them brings. It combines that, and gives the
answer to the others. If it is lost, the next one does the same. Each keeps an answer until the next
call. If the worker that gave it is lost, the answer goes to the next first one, which gives it to
all: it may have come to some of them only. So all that live get the same answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

from spotmpi.errors import PeersLost
from spotmpi.fabric import Message, Post, Steps, Work
from spotmpi.protocol.membership import WorkerId

__all__ = ["Combine", "Parts", "Receive", "SubsetCalls"]

Parts: TypeAlias = Sequence[memoryview]
"""Bytes in several parts. The first one is copied when they are sent, and the others may be sent
from where they are."""

Combine: TypeAlias = Callable[[Mapping[WorkerId, Parts]], Parts]
"""Makes an answer of what other workers have brought, and of what this one brings. Nobody changes
the answer, and it has no memory of what this worker brings."""

Receive: TypeAlias = Callable[[Collection[WorkerId], bytes, bool], Steps[Message | None]]
"""As `RoundRunner.receive`: takes part in recoveries while it waits for a message."""

_HEAD = struct.Struct("<q?7x")
"""The number of a call, and True before its answer, False before what a worker brings."""

_MOST_CALLS = 1 << 32
"""Of the same workers: their numbers come after all those from before one of them came."""


class _Answer(NamedTuple):
    """The answer to the last call of some workers."""

    number: int
    workers: Sequence[WorkerId]
    content: Parts
    giver: WorkerId
    """The worker that gives it to all, as far as it is known here."""


class SubsetCalls:
    """One worker's calls among some of the workers."""

    def __init__(self, me: WorkerId, members: Callable[[], Collection[WorkerId]]) -> None:
        """``members``: returns the workers that live, as far as it is known here."""
        self._me = me
        self._members = members
        self._answers: dict[bytes, _Answer] = {}

    def call(
        self,
        key: bytes,
        workers: Sequence[WorkerId],
        mine: Parts,
        combine: Combine,
        receive: Receive,
    ) -> Steps[Parts]:
        """Return what ``combine`` makes of what these ``workers`` bring: one of them calls it, and
        all get its answer. It is of all that live; what lost ones have brought may be in it. It
        is kept until the next call, and is not to be changed. ``mine``: what this one brings.

        Collective among them. All give them in the same order, and make the calls of a ``key`` in
        the same order. Those that are lost stay among them, and one that comes is added: it has
        made none of the earlier calls.
        """
        number = len(workers) * _MOST_CALLS
        if key in self._answers:
            number = max(number, self._answers[key].number + 1)
        said: dict[WorkerId, Parts] = {}
        told, answer = self._me, None
        while answer is None:
            first, *_ = living = self._living(workers)
            if first == self._me and said.keys() >= {*living} - {self._me}:
                content = yield Work(partial(combine, said))
                answer = _Answer(number, workers, content, self._me)
                continue
            if first not in (self._me, told):
                # If it has no use for that any more, it reads the number, and no more.
                yield _post(first, key, number, False, mine)
                told = first
            try:
                message = yield from receive([one for one in living if one != self._me], key, True)
            except PeersLost:
                continue
            assert message is not None
            of, is_answer = _HEAD.unpack_from(message.content)
            if of < number or message.sender not in self._members():
                continue
            content = [message.content[_HEAD.size :]]
            if not is_answer:
                said[message.sender] = content
                continue
            # This worker may be the first by now, and have it from one that got it from a lost one.
            first, *_ = self._living(workers)
            giver = self._me if first == self._me else message.sender
            answer = _Answer(number, workers, content, giver)
        self._answers[key] = answer
        if answer.giver == self._me:
            yield from self._give(key, answer)
        return answer.content

    def go_on(self) -> Steps[None]:
        """Give answers again that a lost worker gave: it may have given them to some only. To be
        called after each recovery. Posts, and does not wait."""
        for key, answer in self._answers.items():
            if answer.giver not in self._members():
                first, *_ = self._living(answer.workers)
                self._answers[key] = known = answer._replace(giver=first)
                yield from self._give(key, known)

    def _give(self, key: bytes, answer: _Answer) -> Steps[None]:
        """Give an answer to the worker that gives it to all, or to all if it is this one."""
        to = self._living(answer.workers) if answer.giver == self._me else [answer.giver]
        for one in to:
            if one != self._me:
                yield _post(one, key, answer.number, True, answer.content)

    def _living(self, workers: Sequence[WorkerId]) -> list[WorkerId]:
        members = self._members()
        return [one for one in workers if one in members]


def _post(to: WorkerId, key: bytes, number: int, is_answer: bool, content: Parts) -> Post:
    first, *lent = content
    return Post(to, key, memoryview(_HEAD.pack(number, is_answer) + first), lent)
