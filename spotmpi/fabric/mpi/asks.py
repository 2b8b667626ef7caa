"""Models of workers of other hosts, over MPI: one worker asks, the other one answers.

A model travels in pieces, each in a message that MPI sends at once (docs/adr/0033 tells why). The
asking worker asks for a few pieces at a time, and for the next ones when some have come. So the
answering worker never sends more than the other one waits for, and notices at once that nobody asks
any more. Each piece that was asked for gets one reply, in the order of the asks. A reply may say
that there is no model. A number tells asks that still count from those that do not.

All messages are sent by Issend. If a connection breaks, Open MPI can abort the process because of a
message that it reported as sent but still has in its own buffer. With Issend it keeps none there.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.errors import PeersLost, SpotmpiError
from spotmpi.fabric import Fetch
from spotmpi.fabric.mpi.calls import MPI, PAUSE, is_failure, is_lost, let_go, peers_lost
from spotmpi.fabric.mpi.given_up import GivenUp
from spotmpi.fabric.neighbours.published_model import ModelForm, PublishedModel
from spotmpi.fabric.planes.travels import MESSAGE
from spotmpi.protocol.membership import WorkerId

__all__ = ["Answering", "Asking", "Came"]

_ASK, _REPLY = 2, 3
"""Tags of asks and of replies. All other messages on that communicator have larger tags."""

_RUN = 4
"""Pieces that one ask names."""

_AHEAD = 4 * _RUN
"""Pieces on their way, at most, when one more ask is sent."""

PATIENCE = 2.0
"""Seconds without a piece, or without an ask for one, after which another worker has its turn."""

_SOON = 10 * PAUSE
"""Seconds without a piece, after which a worker looks if MPI knows that the other one is lost."""

_MOST = 64
"""Most asks that are taken at a time."""

_WANTED = struct.Struct("<qqq?")
"""Layout of an ask: its number, the index of its first piece, how many, and `Fetch.unread`."""
_HEAD = struct.Struct("<qqqq")
"""Head of a reply: the ask's number, the index of the piece, the publication's number (-1: none),
and its form's digest."""
PIECE = MESSAGE - _HEAD.size
"""Bytes of a model in one message."""
_NONE = -1


@dataclass
class _Message:
    """A message under way. MPI reads or writes its buffer until the request is through."""

    comm: MPI.Intracomm
    request: MPI.Request
    buffer: Any

    def through(self) -> bool:
        """True if the request is through. Raises PeersLost if MPI has ended it with an error; that
        the other worker is lost is no reason for MPI to do so."""
        try:
            return let_go(self.request)
        except MPI.Exception as error:
            raise peers_lost(error, self.comm) from error


class Came(NamedTuple):
    """A model that has come whole, and lies in the room that its ask named."""

    worker: WorkerId
    number: int


@dataclass(eq=False)
class _Ask:
    """A model that was asked for."""

    number: int
    wanted: Fetch
    rank: int
    form: ModelForm
    room: Buffer | None
    """Where the model goes. None: the ask does not count any more, but its messages still come."""
    pieces: int
    asked: int = 0
    came: int = 0
    publication: int | None = None
    replies: deque[_Message] = field(default_factory=deque)
    """Replies to come, in this order."""
    asks: list[_Message] = field(default_factory=list)


class Asking:
    """Asks of one worker for the models of others. One ask counts at a time."""

    def __init__(self, given_up: GivenUp) -> None:
        self._given_up = given_up
        self._asks: dict[WorkerId, _Ask] = {}
        self._current: _Ask | None = None
        self._last = 0
        self._moved = 0.0
        """Time of the last reply, or of the last new ask."""
        self._buffers: list[Buffer] = []

    @property
    def under_way(self) -> WorkerId | None:
        """The worker whose model is to come, or None."""
        return None if self._current is None else self._current.wanted.worker

    @property
    def silent(self) -> bool:
        """True if nothing has come for `PATIENCE` seconds."""
        return time.monotonic() > self._moved + PATIENCE

    @property
    def busy(self) -> bool:
        """True if anything is under way."""
        return bool(self._asks)

    def begin(
        self, comm: MPI.Intracomm, wanted: Fetch, rank: int, form: ModelForm, room: Buffer
    ) -> None:
        """Ask the worker, unless an earlier ask to it is still without a reply."""
        if wanted.worker in self._asks:
            return
        self._last += 1
        pieces = max(1, -(-form.bytes // PIECE))
        ask = self._asks[wanted.worker] = _Ask(self._last, wanted, rank, form, room, pieces)
        self._current, self._moved = ask, time.monotonic()
        self._go_on(comm, ask)

    def proceed(self, comm: MPI.Intracomm) -> Came | None:
        """Take what has come. Returns a model if all of it has come."""
        for ask in [*self._asks.values()]:
            try:
                self._take(comm, ask)
            except PeersLost:
                self._drop(ask)
        ask_of_now = self._current
        if ask_of_now is None:
            return None
        if ask_of_now.came < ask_of_now.pieces:
            if time.monotonic() > self._moved + _SOON and is_lost(ask_of_now.rank, comm):
                self.leave()
            return None
        self._current, ask_of_now.room = None, None
        assert ask_of_now.publication is not None
        return Came(ask_of_now.wanted.worker, ask_of_now.publication)

    def leave(self) -> None:
        """Let the ask that is under way not count any more."""
        if self._current is not None:
            self._current.room = None
            self._current = None

    def give_up(self) -> None:
        """Give up all asks: nobody will reply."""
        for ask in [*self._asks.values()]:
            self._drop(ask)

    def _go_on(self, comm: MPI.Intracomm, ask: _Ask) -> None:
        try:
            while ask.room is not None and ask.asked < min(ask.pieces, ask.came + _AHEAD):
                many = min(_RUN, ask.pieces - ask.asked)
                for _ in range(many):
                    room = self._buffers.pop() if self._buffers else _message()
                    request = comm.Irecv([room, MPI.BYTE], ask.rank, _REPLY)
                    ask.replies.append(_Message(comm, request, room))
                words = _WANTED.pack(ask.number, ask.asked, many, ask.wanted.unread)
                request = comm.Issend([words, MPI.BYTE], ask.rank, _ASK)
                ask.asks.append(_Message(comm, request, words))
                ask.asked += many
        except MPI.Exception as error:
            peers_lost(error, comm)
            self._drop(ask)

    def _take(self, comm: MPI.Intracomm, ask: _Ask) -> None:
        ask.asks = [message for message in ask.asks if not message.through()]
        while ask.replies and ask.replies[0].through():
            reply = ask.replies.popleft()
            self._moved = time.monotonic()
            self._read(ask, reply.buffer)
            self._buffers.append(reply.buffer)
        if ask.room is not None:
            self._go_on(comm, ask)
        elif not ask.replies and not ask.asks:
            self._asks.pop(ask.wanted.worker, None)

    def _read(self, ask: _Ask, reply: Buffer) -> None:
        number, piece, publication, form = _HEAD.unpack_from(reply)
        if number != ask.number:
            raise SpotmpiError(
                f"worker {ask.wanted.worker} replied to request {number} for its model, and "
                f"{ask.number} was next: this is a bug"
            )
        if ask.room is None:
            return
        others = ask.publication is not None and publication != ask.publication
        if publication == _NONE or form != _digest(ask.form) or others:
            self.leave()  # nothing is to be had, or not in this form, or another publication came
            return
        ask.publication = publication
        here = ask.room[piece * PIECE : (piece + 1) * PIECE]
        here[...] = reply[_HEAD.size : _HEAD.size + len(here)]
        ask.came += 1

    def _drop(self, ask: _Ask) -> None:
        if ask is self._current:
            self._current = None
        ask.room = None
        self._asks.pop(ask.wanted.worker, None)
        for message in (*ask.replies, *ask.asks):
            self._given_up.add(message.request, message.buffer)


class Answering:
    """Answers of one worker. It serves one other worker at a time, with one publication from its
    beginning to its end."""

    def __init__(self, given_up: GivenUp) -> None:
        self._given_up = given_up
        self._status = MPI.Status()
        self._asked: deque[tuple[int, int, int, int, bool]] = deque()
        """Asks in the order in which they came: rank, and what the ask says."""
        self._serves: tuple[int, int] | None = None
        """Rank that is served now, and the number of its ask."""
        self._moved = 0.0
        """When the served rank last asked for, or received, something."""
        self._copy = HOST.zeros("uint8", 0)
        self._publication = _NONE
        self._form = 0
        self._sent: dict[int, deque[_Message]] = {}
        """Replies under way, by rank. They leave in this order, so only the first one is looked
        at."""
        self._buffers: list[Buffer] = []

    @property
    def busy(self) -> bool:
        """True if anything is under way."""
        return bool(self._asked or self._sent or self._serves)

    def proceed(self, comm: MPI.Intracomm, published: Callable[[], PublishedModel | None]) -> bool:
        """Take asks, and reply where that is possible. Returns True if anything was done."""
        asked = self._hear(comm)
        left = self._see_off()
        replied = self._reply(comm, published)
        return asked or left or replied

    def forget(self) -> None:
        """Stop serving the present ask, because the form or the training is another one."""
        self._serves = None

    def give_up(self) -> None:
        """Give up all asks and replies: nobody waits for an answer any more."""
        self.forget()
        self._asked.clear()
        for message in chain.from_iterable(self._sent.values()):
            self._given_up.add(message.request, message.buffer)
        self._sent = {}

    def _hear(self, comm: MPI.Intracomm) -> bool:
        count = 0
        try:
            while count < _MOST:
                # The first probe makes MPI fetch what has come, the second one finds it.
                message = comm.Improbe(MPI.ANY_SOURCE, _ASK, self._status)
                message = message or comm.Improbe(MPI.ANY_SOURCE, _ASK, self._status)
                if message is None:
                    break
                rank = self._status.Get_source()
                words = bytearray(_WANTED.size)
                message.Recv([words, MPI.BYTE])
                self._asked.append((rank, *_WANTED.unpack(words)))
                if self._serves == self._asked[-1][:2]:
                    self._moved = time.monotonic()
                count += 1
        except MPI.Exception as error:
            if not is_failure(error):
                peers_lost(error, comm)
            elif not comm.Is_revoked():
                comm.Ack_failed()  # else a probe for any source fails for ever
        return count > 0

    def _see_off(self) -> bool:
        left = False
        for rank, sent in [*self._sent.items()]:
            while sent and self._has_left(sent[0]):
                sent.popleft()
                left = True
            if not sent:
                del self._sent[rank]
        if left:
            self._moved = time.monotonic()
        return left

    def _has_left(self, message: _Message) -> bool:
        try:
            left = message.through()
        except PeersLost:
            return True  # the worker that asked is lost
        if left:
            self._buffers.append(message.buffer)
        return left

    def _reply(self, comm: MPI.Intracomm, published: Callable[[], PublishedModel | None]) -> bool:
        replied = False
        while (one := self._next()) is not None:
            rank, ask, first, many, unread = one
            if self._serves is None and first == 0 and self._look(published(), unread):
                self._serves, self._moved = (rank, ask), time.monotonic()
            publication = _NONE if self._serves is None else self._publication
            for piece in range(first, first + many):
                self._send(comm, rank, ask, piece, publication)
            if (first + many) * PIECE >= len(self._copy):
                self._serves = None
            replied = True
        if self._asked and time.monotonic() > self._moved + PATIENCE:
            self._serves = None  # the served worker is silent, and others wait
        return replied

    def _next(self) -> tuple[int, int, int, int, bool] | None:
        """Take the next ask whose turn it is, or return None."""
        for index, (rank, ask, *_) in enumerate(self._asked):
            if self._serves is None or self._serves == (rank, ask):
                found = self._asked[index]
                del self._asked[index]
                return found
        return None

    def _look(self, published: PublishedModel | None, unread: bool) -> bool:
        """Copy the latest publication. Returns False if there is none, or no unread one."""
        if published is None:
            return False
        if len(self._copy) != published.form.bytes:
            self._copy = published.form.room()
        number = published.read(self._copy, unread)
        if number is None:
            return False
        self._publication, self._form = number, _digest(published.form)
        return True

    def _send(self, comm: MPI.Intracomm, rank: int, ask: int, piece: int, publication: int) -> None:
        buffer = self._buffers.pop() if self._buffers else _message()
        _HEAD.pack_into(buffer, 0, ask, piece, publication, self._form)
        length = _HEAD.size
        if publication != _NONE:
            here = self._copy[piece * PIECE : (piece + 1) * PIECE]
            length += len(here)
            buffer[_HEAD.size : length] = here
        try:
            request = comm.Issend([buffer[:length], MPI.BYTE], rank, _REPLY)
        except MPI.Exception as error:
            peers_lost(error, comm)
            self._buffers.append(buffer)
        else:
            self._sent.setdefault(rank, deque()).append(_Message(comm, request, buffer))


def _message() -> Buffer:
    return HOST.zeros("uint8", _HEAD.size + PIECE)


def _digest(form: ModelForm) -> int:
    found = hashlib.blake2b(repr(form.arrays).encode(), digest_size=7).digest()
    return int.from_bytes(found, "little")
