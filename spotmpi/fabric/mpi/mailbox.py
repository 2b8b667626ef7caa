"""Messages between two workers, over MPI, which outlast the loss of any other.

The two paths are replaced when workers are lost, and what is under way on them is lost then. So
messages have communicators of their own, which nobody revokes: one is made with the first members,
and one with each newcomer. What two workers post to each other is on the first one that has both.

Between hosts a large message travels in pieces, each in a message that MPI sends at once
(docs/adr/0033 tells why). A few are under way at a time: what the receiver has not asked for waits
at the sender, and a token of a recovery waits for little of it.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from spotmpi.arrays.backend import Buffer
from spotmpi.fabric import KEY, Message
from spotmpi.fabric.mpi.calls import (
    MPI,
    Path,
    Sent,
    done,
    duplicate,
    is_lost,
    let_go,
    peers_lost,
    threads,
)
from spotmpi.fabric.mpi.given_up import GivenUp
from spotmpi.fabric.mpi.messenger import Messenger
from spotmpi.fabric.planes.travels import MESSAGE
from spotmpi.fabric.retired import Retired
from spotmpi.protocol.membership import WorkerId

__all__ = ["Mailbox"]

_FIRST, _REST = 1, 2
"""Tags of the first piece of each message, and of the others."""

_SIZE = struct.Struct("<q")
"""The size of the whole message, in bytes. It follows the key."""

_HEAD = KEY + _SIZE.size

_AHEAD = 64
"""Most pieces that are under way to a worker of another host."""

_LARGE = 1 << 16
"""Bytes. Memory of this size or more is used again, as new memory costs more than a copy."""

_HUGE = 1 << 22
"""Bytes. Within a host a message of this size or more may take as long as one between hosts."""

_SPARES = 2
"""Most rooms that are kept for that: one to send from, and one to receive in."""


@dataclass(eq=False)
class _Mail:
    """A message: its memory, and the bytes of it that are used."""

    room: bytearray
    size: int
    unsent: int = 0
    """Pieces that have not left."""

    @property
    def all(self) -> memoryview:
        """The message, with its key and size."""
        return memoryview(self.room)[: self.size]


class _Piece(NamedTuple):
    """A piece of a message that has yet to be sent."""

    mail: _Mail
    start: int
    """Its first byte."""
    stop: int
    """The byte after its last one."""


@dataclass
class _Outgoing:
    """What has been posted to one worker and has not left."""

    path: Path
    waiting: deque[_Piece] = field(default_factory=deque)
    sending: list[tuple[Sent, _Mail]] = field(default_factory=list)


@dataclass
class _Incoming:
    """A message that is on its way into this worker's memory."""

    mail: _Mail
    requests: deque[MPI.Request]
    """Its pieces that are still to come, in this order."""

    def come(self) -> bool:
        """Return True if all that was asked for has come. Raises MPI.Exception if MPI has ended a
        request with an error."""
        while self.requests and let_go(self.requests[0]):
            self.requests.popleft()
        return not self.requests


class Mailbox:
    """One worker's side of its messages with the others.

    Between hosts a large message moves only while its sender calls MPI. So a thread does that while
    the script computes. Within a host it does so for the largest ones, in case that one process
    cannot read another one's memory. `furnish`, `enter` and `forget` are for builds, in which it
    rests (`resting`).
    """

    def __init__(self, me: WorkerId, is_near: Callable[[WorkerId], bool]) -> None:
        """``is_near`` returns True for workers that share memory with this one."""
        self._me = me
        self._is_near = is_near
        self._turn = threading.RLock()
        """Guards all fields, and MPI for them."""
        self._messenger = Messenger("spotmpi messages", self._look_for_messages)
        self._paths: dict[WorkerId, Path] = {}
        """The first path that was made with both this worker and that one."""
        self._comms: list[MPI.Comm] = []
        """Communicators of all paths, those of workers that are gone, too, until they are free."""
        self._outgoing: dict[WorkerId, _Outgoing] = {}
        self._incoming: dict[WorkerId, _Incoming] = {}
        self._stale = GivenUp()
        """Messages from and to workers that are gone: MPI may still use their memory."""
        self._come: dict[tuple[WorkerId, bytes], deque[_Mail]] = {}
        """What nobody has asked for yet, by sender and key."""
        self._given: _Mail | None = None
        """What was asked for last. Its memory is free with the next request."""
        self._spare: list[bytearray] = []
        self._status = MPI.Status()

    def furnish(self, comm: MPI.Intracomm, workers: Sequence[WorkerId]) -> Path | None:
        """Return a path for these members of ``comm``, by rank; None if none of them is new.
        Collective."""
        known = self._paths.keys() >= set(workers)
        return None if known else Path(duplicate(comm), workers)

    def enter(self, path: Path | None) -> None:
        """Use this path with those of its members that were met there first."""
        if path is not None:
            self._paths = dict.fromkeys(path.workers, path) | self._paths
            self._comms.append(path.comm)

    def forget(self, members: Collection[WorkerId], retired: Retired[MPI.Comm]) -> None:
        """Retire the paths of workers that are not among these ``members`` any more."""
        self._messenger.check()
        self._paths = {one: path for one, path in self._paths.items() if one in members}
        self._come = {key: come for key, come in self._come.items() if key[0] in members}
        for one in self._incoming.keys() - set(members):
            self._give_up(one)
        for one in self._outgoing.keys() - set(members):
            self._outgoing[one].waiting.clear()
        self._clear()
        used: list[MPI.Comm] = [comm for comm, _ in self._paths.values()]
        used += [outgoing.path.comm for outgoing in self._outgoing.values()]
        retired.add(*(comm for comm in self._comms if comm not in used))
        self._comms = [comm for comm in self._comms if comm in used]

    def move_on(self) -> None:
        """Forget what has come that nobody has asked for: another training begins."""
        with self._turn:
            self._come.clear()

    def resting(self) -> AbstractContextManager[object]:
        """Return a block in which no other thread uses MPI for messages."""
        return self._turn

    def post(self, to: WorkerId, key: bytes, content: Buffer) -> None:
        """Perform `Post`."""
        self._messenger.check()
        with self._turn:
            self._post(to, key, content)
            under_way = bool(self._outgoing)
        slow = content.nbytes >= _HUGE or not self._is_near(to)
        if under_way and slow and threads():
            self._messenger.start()
            self._messenger.wake()

    def _post(self, to: WorkerId, key: bytes, content: Buffer) -> None:
        self._clear()
        said = memoryview(content)
        mail = self._room(_HEAD + said.nbytes)
        mail.all[:KEY], mail.all[_HEAD:] = key, said
        _SIZE.pack_into(mail.room, KEY, mail.size)
        if to == self._me:
            self._keep(to, mail)
        elif to in self._paths:
            outgoing = self._outgoing.setdefault(to, _Outgoing(self._paths[to]))
            length = mail.size if self._is_near(to) else MESSAGE
            for start in range(0, mail.size, length):
                outgoing.waiting.append(_Piece(mail, start, min(start + length, mail.size)))
                mail.unsent += 1
            self._send(to, outgoing)

    def _send(self, to: WorkerId, outgoing: _Outgoing) -> None:
        """Send pieces that wait for this worker, if it has taken enough of those before."""
        (comm, workers), waiting, sending = outgoing.path, outgoing.waiting, outgoing.sending
        # Without threads pieces that wait could be sent only when the script posts again.
        at_once = self._is_near(to) or not threads()
        try:
            while waiting and (at_once or len(sending) < _AHEAD):
                mail, start, stop = waiting[0]
                piece = mail.all[start:stop]
                # What Issend sends counts as under way until its receiver has asked for it.
                send = comm.Isend if mail.size == len(piece) else comm.Issend
                request = send([piece, MPI.BYTE], workers.index(to), _REST if start else _FIRST)
                sending.append(((request, piece, comm), mail))
                waiting.popleft()
        except MPI.Exception as error:
            waiting.clear()
            peers_lost(error, comm)  # it is lost, and needs no message

    def take(self, senders: Sequence[WorkerId], key: bytes) -> Message | None:
        """Return the next message of this key from one of these, if one has come."""
        with self._turn:
            return self._take(senders, key)

    def _take(self, senders: Sequence[WorkerId], key: bytes) -> Message | None:
        if self._given is not None:
            self._spare_room(self._given)
            self._given = None
        for sender in senders:
            self._fetch(sender)
            if come := self._come.get((sender, key)):
                self._given = come.popleft()
                if not come:
                    del self._come[sender, key]
                return Message(sender, self._given.all[_HEAD:])
        return None

    def _fetch(self, sender: WorkerId) -> None:
        """Keep all that has come from this worker."""
        if sender == self._me or sender not in self._paths:
            return
        comm, workers = self._paths[sender]
        rank = workers.index(sender)
        try:
            while (incoming := self._next(sender, comm, rank)) is not None:
                if not self._receive(incoming, comm, rank):
                    return
                del self._incoming[sender]
                self._keep(sender, incoming.mail)
        except MPI.Exception as error:
            self._give_up(sender)  # else it would count as whole: MPI has ended it
            peers_lost(error, comm)  # the sender is lost, which the other paths tell

    def _next(self, sender: WorkerId, comm: MPI.Comm, rank: int) -> _Incoming | None:
        """Return what is on its way from this worker, or has come; None if nothing is."""
        incoming = self._incoming.get(sender)
        if incoming is None:
            # The first probe makes MPI fetch what has come, the second one finds it.
            message = comm.Improbe(rank, _FIRST, self._status)
            message = message or comm.Improbe(rank, _FIRST, self._status)
            if message is None:
                return None
            mail = self._room(self._status.Get_count(MPI.BYTE))
            request = message.Irecv([mail.all, MPI.BYTE])
            incoming = self._incoming[sender] = _Incoming(mail, deque([request]))
        return incoming

    def _receive(self, incoming: _Incoming, comm: MPI.Comm, rank: int) -> bool:
        """Take what has come of a message, and ask for its other pieces after the first. Returns
        True if all of it has come."""
        if not incoming.come():
            return False
        first = incoming.mail
        (size,) = _SIZE.unpack_from(first.room, KEY)
        if first.size < size:
            mail = incoming.mail = self._room(size)
            mail.all[: first.size] = first.all
            for start in range(first.size, size, MESSAGE):
                piece = mail.all[start : start + MESSAGE]
                incoming.requests.append(comm.Irecv([piece, MPI.BYTE], rank, _REST))
        return not incoming.requests

    def _give_up(self, sender: WorkerId) -> None:
        """Forget what is on its way from this worker, and keep its memory: MPI may write there."""
        if sender in self._incoming:
            incoming = self._incoming.pop(sender)
            for request in incoming.requests:
                self._stale.add(request, incoming.mail)

    def _keep(self, sender: WorkerId, mail: _Mail) -> None:
        self._come.setdefault((sender, bytes(mail.all[:KEY])), deque()).append(mail)

    def _clear(self) -> None:
        """Let go of what has left, and of what will not come any more."""
        self._stale.free()
        for to, outgoing in [*self._outgoing.items()]:
            sending, outgoing.sending = outgoing.sending, []
            for sent, mail in sending:
                if not done(sent):
                    outgoing.sending.append((sent, mail))
                    continue
                mail.unsent -= 1
                if not mail.unsent:
                    self._spare_room(mail)
            if len(outgoing.sending) == len(sending):
                self._give_up_lost(to, outgoing)
            self._send(to, outgoing)
            if not outgoing.sending:
                del self._outgoing[to]

    def _give_up_lost(self, to: WorkerId, outgoing: _Outgoing) -> None:
        """Give up what is for this worker if it is lost: MPI would wait for its answer for ever."""
        comm, workers = outgoing.path
        if is_lost(workers.index(to), comm):
            for (request, _, _), mail in outgoing.sending:
                self._stale.add(request, mail)
            outgoing.sending = []
            outgoing.waiting.clear()

    def _look_for_messages(self) -> tuple[bool, bool]:
        """Return True if any have left, and True if any are under way."""
        with self._turn:
            before = self._under_way()
            self._clear()
            return self._under_way() < before, bool(self._outgoing)

    def _under_way(self) -> int:
        return sum(len(one.waiting) + len(one.sending) for one in self._outgoing.values())

    def _room(self, size: int) -> _Mail:
        """Return memory for a message."""
        for place, room in enumerate(self._spare):
            if _LARGE <= size <= len(room):
                return _Mail(self._spare.pop(place), size)
        return _Mail(bytearray(size), size)

    def _spare_room(self, mail: _Mail) -> None:
        """Keep memory that is not needed any more, if it is worth it."""
        if len(mail.room) >= _LARGE:
            self._spare = sorted([*self._spare, mail.room], key=len)[-_SPARES:]
