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
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
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
from spotmpi.fabric.mpi.message_memory import MessageMemory
from spotmpi.fabric.mpi.messenger import Messenger
from spotmpi.fabric.planes.travels import MESSAGE
from spotmpi.fabric.retired import Retired
from spotmpi.protocol.membership import WorkerId

__all__ = ["Mailbox"]

_FIRST, _REST = 1, 2
"""Tags of the first piece of each message, and of the others."""

_SIZES = struct.Struct("<qqq8x")
"""Bytes of the whole message, how many parts of it were lent, and bytes of a piece at most. They
follow the key."""

_LENGTH = struct.Struct("<q")
"""Bytes of a part that was lent. These lengths end the first piece."""

_HEAD = KEY + _SIZES.size

_NEAR = 1 << 30
"""Bytes of a piece of a message within a host, at most: MPI does not count to twice as many."""

_AHEAD = 64
"""Most pieces that are under way to a worker of another host."""

_LARGE = 1 << 14
"""Bytes. A message of this size or more is not copied, as far as it is lent."""

_SOON = 1 << 11
"""Bytes. Within a host a message of less leaves at once. A larger one may leave only while its
sender calls MPI, if processes cannot read each other's memory."""

_SELDOM = 0.02
"""Seconds between two looks for such messages: they take time from the script."""


class _Piece(NamedTuple):
    """A piece of a message that has yet to be sent."""

    content: memoryview
    tag: int
    whole: bool
    """True if there is no other piece of this message."""


@dataclass
class _Outgoing:
    """What has been posted to one worker and has not left."""

    path: Path
    waiting: deque[_Piece] = field(default_factory=deque)
    sending: list[Sent] = field(default_factory=list)


@dataclass
class _Incoming:
    """A message that is on its way into this worker's memory."""

    mail: memoryview
    """The message, with its key and sizes."""
    requests: deque[MPI.Request]
    """Its pieces that are still to come, in this order."""
    has_head: bool = False
    """True if its first piece has come, and the others were asked for."""

    def come(self) -> bool:
        """Return True if all that was asked for has come. Raises MPI.Exception if MPI has ended a
        request with an error."""
        while self.requests and let_go(self.requests[0]):
            self.requests.popleft()
        return not self.requests


class Mailbox:
    """One worker's side of its messages with the others.

    Between hosts a large message moves only while its sender calls MPI. So a thread does that while
    the script computes. Within a host it looks seldom, in case that one process cannot read another
    one's memory. `furnish`, `enter` and `forget` are for builds, in which it rests (`resting`).
    """

    def __init__(self, me: WorkerId, is_near: Callable[[WorkerId], bool]) -> None:
        """``is_near`` returns True for workers that share memory with this one."""
        self._me = me
        self._is_near = is_near
        self._turn = threading.RLock()
        """Guards all fields, and MPI for them."""
        self._messenger = Messenger("spotmpi messages", self._look_for_messages, _SELDOM)
        self._paths: dict[WorkerId, Path] = {}
        """The first path that was made with both this worker and that one."""
        self._comms: list[MPI.Comm] = []
        """Communicators of all paths, those of workers that are gone, too, until they are free."""
        self._outgoing: dict[WorkerId, _Outgoing] = {}
        self._incoming: dict[WorkerId, _Incoming] = {}
        self._stale = GivenUp()
        """Messages from and to workers that are gone: MPI may still use their memory."""
        self._come: dict[tuple[WorkerId, bytes], deque[memoryview]] = {}
        """What nobody has asked for yet, by sender and key."""
        self._left: Counter[WorkerId] = Counter()
        """Pieces that have left so far, by receiver."""
        self._seen: dict[WorkerId, int] = {}
        """The same for neighbours to which pieces were under way at the thread's last look."""
        self._memory = MessageMemory()
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

    def post(self, to: WorkerId, key: bytes, content: Buffer, lent: Sequence[Buffer] = ()) -> None:
        """Perform `Post`."""
        self._messenger.check()
        parts = [memoryview(part) for part in (content, *lent)]
        size = sum(part.nbytes for part in parts)
        with self._turn:
            self._post(to, key, parts, size)
            under_way = bool(self._outgoing)
        if under_way and threads() and (size >= _SOON or not self._is_near(to)):
            self._messenger.start()
            if not self._is_near(to):
                self._messenger.wake()

    def _post(self, to: WorkerId, key: bytes, parts: Sequence[memoryview], size: int) -> None:
        self._clear()
        content, *lent = parts
        in_place = _HEAD + content.nbytes + _LENGTH.size * len(lent) <= MESSAGE
        if to == self._me or size < _LARGE or not in_place:
            first, lent = parts, []
        else:
            lengths = b"".join(_LENGTH.pack(part.nbytes) for part in lent)
            first = [content, memoryview(lengths)]
        mail = self._memory.take(_HEAD + sum(part.nbytes for part in first))
        mail[:KEY] = key
        length = _NEAR if self._is_near(to) else MESSAGE
        _SIZES.pack_into(mail, KEY, _HEAD + size, len(lent), length)
        start = _HEAD
        for part in first:
            mail[start : start + part.nbytes] = part
            start += part.nbytes
        if to == self._me:
            self._keep(to, mail)
        elif to in self._paths:
            outgoing = self._outgoing.setdefault(to, _Outgoing(self._paths[to]))
            pieces = [one for part in (mail, *lent) for one in _cut(part, length)]
            tags = [_FIRST, *[_REST] * (len(pieces) - 1)]
            for piece, tag in zip(pieces, tags, strict=True):
                outgoing.waiting.append(_Piece(piece, tag, len(pieces) == 1))
            self._send(to, outgoing)

    def _send(self, to: WorkerId, outgoing: _Outgoing) -> None:
        """Send pieces that wait for this worker, if it has taken enough of those before."""
        (comm, workers), waiting, sending = outgoing.path, outgoing.waiting, outgoing.sending
        # Without threads pieces that wait could be sent only when the script posts again.
        at_once = self._is_near(to) or not threads()
        try:
            while waiting and (at_once or len(sending) < _AHEAD):
                content, tag, whole = waiting[0]
                # What Issend sends counts as under way until its receiver has asked for it.
                send = comm.Isend if whole or at_once else comm.Issend
                request = send([content, MPI.BYTE], workers.index(to), tag)
                sending.append((request, content, comm))
                waiting.popleft()
        except MPI.Exception as error:
            waiting.clear()
            peers_lost(error, comm)  # it is lost, and needs no message

    def take(self, senders: Sequence[WorkerId], key: bytes) -> Message | None:
        """Return the next message of this key from one of these, if one has come."""
        with self._turn:
            return self._take(senders, key)

    def _take(self, senders: Sequence[WorkerId], key: bytes) -> Message | None:
        for sender in senders:
            self._fetch(sender)
            if come := self._come.get((sender, key)):
                mail = come.popleft()
                if not come:
                    del self._come[sender, key]
                return Message(sender, mail[_HEAD:])
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
            mail = self._memory.take(self._status.Get_count(MPI.BYTE))
            request = message.Irecv([mail, MPI.BYTE])
            incoming = self._incoming[sender] = _Incoming(mail, deque([request]))
        return incoming

    def _receive(self, incoming: _Incoming, comm: MPI.Comm, rank: int) -> bool:
        """Take what has come of a message, and ask for its other pieces after the first. Returns
        True if all of it has come."""
        if not incoming.come():
            return False
        if incoming.has_head:
            return True
        first, incoming.has_head = incoming.mail, True
        size, many, longest = _SIZES.unpack_from(first, KEY)
        start = len(first) - _LENGTH.size * many
        lengths = [length for (length,) in _LENGTH.iter_unpack(first[start:])]
        if start == size:
            incoming.mail = first[:size]
        else:
            mail = incoming.mail = self._memory.take(size)
            mail[:start] = first[:start]
            for length in lengths or [size - start]:
                for piece in _cut(mail[start : start + length], longest):
                    incoming.requests.append(comm.Irecv([piece, MPI.BYTE], rank, _REST))
                start += length
        return incoming.come()

    def _give_up(self, sender: WorkerId) -> None:
        """Forget what is on its way from this worker, and keep its memory: MPI may write there."""
        if sender in self._incoming:
            incoming = self._incoming.pop(sender)
            for request in incoming.requests:
                self._stale.add(request, incoming.mail)

    def _keep(self, sender: WorkerId, mail: memoryview) -> None:
        self._come.setdefault((sender, bytes(mail[:KEY])), deque()).append(mail)

    def _clear(self) -> None:
        """Let go of what has left, and of what will not come any more."""
        self._stale.free()
        for to, outgoing in [*self._outgoing.items()]:
            sending, outgoing.sending = outgoing.sending, []
            outgoing.sending += (sent for sent in sending if not done(sent))
            left = len(sending) - len(outgoing.sending)
            self._left[to] += left
            if not left:
                self._give_up_lost(to, outgoing)
            self._send(to, outgoing)
            if not outgoing.sending:
                del self._outgoing[to]

    def _give_up_lost(self, to: WorkerId, outgoing: _Outgoing) -> None:
        """Give up what is for this worker if it is lost: MPI would wait for its answer for ever."""
        comm, workers = outgoing.path
        if is_lost(workers.index(to), comm):
            for request, content, _ in outgoing.sending:
                self._stale.add(request, content)
            outgoing.sending = []
            outgoing.waiting.clear()

    def _look_for_messages(self) -> tuple[bool, bool]:
        """Return True if slow ones have moved, and True if any are under way: those to other hosts,
        and to neighbours that have taken nothing since the last look. Mostly a neighbour reads at
        once what it is sent, in this process's memory, and more looks take time from both."""
        with self._turn:
            far = [one for to, one in self._outgoing.items() if not self._is_near(to)]
            before = sum(len(one.waiting) + len(one.sending) for one in far)
            self._clear()
            after = sum(len(one.waiting) + len(one.sending) for one in far)
            seen = {to: self._left[to] for to in self._outgoing if self._is_near(to)}
            waits = bool(seen.items() & self._seen.items())
            self._seen = seen
            return after < before, waits or after > 0


def _cut(content: memoryview, length: int) -> Iterator[memoryview]:
    """Yield the pieces of this length that make up this, in order."""
    for start in range(0, len(content), length):
        yield content[start : start + length]
