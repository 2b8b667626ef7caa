"""Messages between two workers, over MPI, which outlast the loss of any other.

The two paths are replaced when workers are lost, and what is under way on them is lost then. So
messages have communicators of their own, which nobody revokes: one is made with the first members,
and one with each newcomer. What two workers post to each other is on the first one that has both.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from spotmpi.arrays.backend import Buffer
from spotmpi.fabric import KEY, Message
from spotmpi.fabric.mpi.calls import MPI, Path, Sent, done, duplicate, let_go, peers_lost, threads
from spotmpi.fabric.mpi.given_up import GivenUp
from spotmpi.fabric.mpi.messenger import Messenger
from spotmpi.fabric.retired import Retired
from spotmpi.protocol.membership import WorkerId

__all__ = ["Mailbox"]

_TAG = 1

_LARGE = 1 << 16
"""Bytes. Memory of this size or more is used again, as new memory costs more than a copy."""

_HUGE = 1 << 22
"""Bytes. Within a host a message of this size or more may take as long as one between hosts."""

_SPARES = 2
"""Most pieces of memory that are kept for that: one to send from, and one to receive in."""


class _Mail(NamedTuple):
    """A message: its memory, and the bytes of it that are used."""

    room: bytearray
    size: int

    @property
    def all(self) -> memoryview:
        """The message, with its key."""
        return memoryview(self.room)[: self.size]


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
        self._sending: list[tuple[Sent, _Mail]] = []
        self._incoming: dict[WorkerId, tuple[MPI.Request, _Mail]] = {}
        """A message that is on its way into this worker's memory, by sender."""
        self._stale = GivenUp()
        """Those of workers that are gone: MPI may still write there."""
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
            self._stale.add(*self._incoming.pop(one))
        self._clear()
        used: list[MPI.Comm] = [comm for comm, _ in self._paths.values()]
        used += [comm for (_, _, comm), _ in self._sending]
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
            under_way = bool(self._sending)
        slow = content.nbytes >= _HUGE or not self._is_near(to)
        if under_way and slow and threads():
            self._messenger.start()
            self._messenger.wake()

    def _post(self, to: WorkerId, key: bytes, content: Buffer) -> None:
        self._clear()
        said = memoryview(content)
        mail = self._room(KEY + said.nbytes)
        mail.all[:KEY], mail.all[KEY:] = key, said
        if to == self._me:
            self._keep(to, mail)
        elif to in self._paths:
            comm, workers = self._paths[to]
            try:
                request = comm.Isend([mail.all, MPI.BYTE], workers.index(to), _TAG)
            except MPI.Exception as error:
                peers_lost(error, comm)  # it is lost, and needs no message
            else:
                self._sending.append(((request, mail.all, comm), mail))

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
                return Message(sender, self._given.all[KEY:])
        return None

    def _fetch(self, sender: WorkerId) -> None:
        """Keep all that has come from this worker."""
        if sender == self._me or sender not in self._paths:
            return
        comm, workers = self._paths[sender]
        try:
            while self._receives(sender, comm, workers.index(sender)):
                request, mail = self._incoming[sender]
                if not let_go(request):
                    return
                del self._incoming[sender]
                self._keep(sender, mail)
        except MPI.Exception as error:
            self._incoming.pop(sender, None)  # else it would count as whole: MPI has ended it
            peers_lost(error, comm)  # the sender is lost, which the other paths tell

    def _receives(self, sender: WorkerId, comm: MPI.Comm, rank: int) -> bool:
        """Return True if a message of this worker is on its way, or has come."""
        if sender not in self._incoming:
            # The first probe makes MPI fetch what has come, the second one finds it.
            message = comm.Improbe(rank, _TAG, self._status)
            message = message or comm.Improbe(rank, _TAG, self._status)
            if message is None:
                return False
            mail = self._room(self._status.Get_count(MPI.BYTE))
            self._incoming[sender] = message.Irecv([mail.all, MPI.BYTE]), mail
        return True

    def _keep(self, sender: WorkerId, mail: _Mail) -> None:
        self._come.setdefault((sender, bytes(mail.all[:KEY])), deque()).append(mail)

    def _clear(self) -> None:
        """Let go of what has left, and of what will not come any more."""
        self._stale.free()
        sending, self._sending = self._sending, []
        for sent, mail in sending:
            if done(sent):
                self._spare_room(mail)
            else:
                self._sending.append((sent, mail))

    def _look_for_messages(self) -> tuple[bool, bool]:
        """Return True if any have left, and True if any are under way."""
        with self._turn:
            before = len(self._sending)
            self._clear()
            return len(self._sending) < before, bool(self._sending)

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
