"""Sums between hosts, made while they travel: `protocol.host_ring` says which messages there are.

A message of a ring is added to this host's contributions, or copied, as soon as it is here, and is
sent on while the next ones come. It comes to memory of these rings' own, a room, and never to a
result. So only this code writes to results, and MPI cannot touch them with messages that were given
up. Messages that leave are read from contributions and results.

A narrowed sum travels as bytes, from room to room. Each host widens the bytes that come, adds its
own contributions in float32, and narrows the sum. The bytes of the sum's owner go round unchanged,
so all hosts make the same of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.arrays.narrowing import NARROWED_BLOCK, Narrowing, narrowed_bytes
from spotmpi.errors import PeersLost
from spotmpi.fabric.planes.plane import Handle, Line
from spotmpi.protocol.host_ring import Course, carried, courses, exchanges
from spotmpi.protocol.membership import WorkerId

__all__ = ["MESSAGE", "Rings"]

MESSAGE = 60 << 10
"""Bytes of a message. MPI sends these at once and whole (over TCP up to 64 KB, with its header).
For larger ones it asks first: if a worker is lost, these can be neither finished nor taken back."""

_AHEAD = 64
"""Most messages that a worker waits for at a time, and most that it sends, over all its rings."""

_FEWEST = 4
"""The same limit for each single ring is never less than this."""


Brought = tuple[Buffer, float]
"""A contribution and its weight."""

_SENT = -1
"""Stands for the number of a message that was sent."""


class Rings:
    """A worker's rings between these hosts. Each host has these workers, in this order."""

    def __init__(self, hosts: Sequence[Sequence[WorkerId]], me: WorkerId, line: Line) -> None:
        self._hosts, self._me = hosts, me
        self.per_host = [len(host) for host in hosts]
        """The number of workers of each host."""
        self._host = next(which for which, host in enumerate(hosts) if me in host)
        self._place = list(hosts[self._host]).index(me)
        self._line = line
        self._rooms: list[Buffer] = []
        """Free rooms for messages that come. A room is never free again if a message to it was
        given up: it may come late."""
        self.halted = False
        """True if the rings are given up: a worker that waits in them leaves off."""

    @property
    def index(self) -> int:
        """This worker's index among those of all hosts, counted host by host."""
        return sum(self.per_host[: self._host]) + self._place

    @property
    def count(self) -> int:
        """The number of workers of all hosts."""
        return sum(self.per_host)

    @property
    def leads(self) -> bool:
        """True if this worker is the first of its host."""
        return self._place == 0

    @property
    def _beside(self) -> int:
        """The ring of messages that belong to no slice."""
        return max(self.per_host)

    def by_firsts(self, brought: Sequence[Brought], result: Buffer) -> None:
        """Add up an array that fits into a message: the sums of the hosts, in their order.
        Collective over the first workers of all hosts; others do nothing. Raises PeersLost."""
        if not self.leads:
            return
        ring, size = self._beside, len(result)
        rooms = [_taken_from(self._rooms) for _ in self._hosts]
        seen = [room.view(result.dtype)[:size] for room in rooms]
        _add_up(brought, seen[self._host])
        under_way: set[Handle] = set()
        for host, room in enumerate(seen):
            if host != self._host:
                under_way.add(self._line.receive(self._hosts[host][0], ring, room))
                under_way.add(self._line.send(self._hosts[host][0], ring, seen[self._host]))
        self._finish(under_way)
        _add_up([(one, 1.0) for one in seen], result)
        self._rooms += rooms

    def all_agree(self, flag: bool) -> bool:
        """Return True if ``flag`` is true on all hosts. Workers of one host give the same one, so
        the first worker speaks for them. Collective. Raises PeersLost."""
        own, agreeing = HOST.zeros("float64", 1), HOST.zeros("float64", 1)
        own[0] = flag
        self.by_firsts([(own, 1.0)], agreeing)
        ring, (first, *others) = self._beside, self._hosts[self._host]
        if self.leads:
            under_way = {self._line.send(other, ring, agreeing) for other in others}
        else:
            under_way = {self._line.receive(first, ring, agreeing)}
        self._finish(under_way)
        return int(agreeing[0]) == len(self._hosts)

    def straight(self, brought: Sequence[Brought], result: Buffer) -> None:
        """Add up an array: the sums of the hosts, in their order. Each share of the array comes
        straight to its owner. Otherwise as `sum`."""
        most = MESSAGE // result.itemsize
        mine = exchanges(len(result), self.per_host, self._host, self._place, most)
        totals: list[tuple[slice, list[Buffer]]] = []
        """This host's shares, each with the rooms for all hosts' sums of it."""
        to_come: list[tuple[slice, Buffer]] = []
        """The others' shares, each with the room for its total."""
        partial: set[Handle] = set()
        rest: set[Handle] = set()
        taken: list[Buffer] = []

        def room_for(part: slice) -> Buffer:
            taken.append(room := _taken_from(self._rooms))
            return room.view(result.dtype)[: part.stop - part.start]

        for one in mine:
            partners = [host[who] for host, who in zip(self._hosts, one.partners, strict=True)]
            for part in one.shares[self._host]:
                rooms = [room_for(part) for _ in self._hosts]
                _add_up(_of(brought, part), rooms[self._host])
                totals.append((part, rooms))
            for host, partner in enumerate(partners):
                if host == self._host:
                    continue
                # Messages from one worker come in this order.
                own = totals[len(totals) - len(one.shares[self._host]) :]
                partial |= {self._line.receive(partner, one.ring, rooms[host]) for _, rooms in own}
                for part in one.shares[host]:
                    _add_up(_of(brought, part), result[part])
                    rest.add(self._line.send(partner, one.ring, result[part]))
                for part in one.shares[host]:
                    to_come.append((part, room_for(part)))
                    rest.add(self._line.receive(partner, one.ring, to_come[-1][1]))
        self._finish(partial, rest)
        for part, rooms in totals:
            _add_up([(room, 1.0) for room in rooms], result[part])
        for one in mine:
            for host, who in enumerate(one.partners):
                if host != self._host:
                    for part in one.shares[self._host]:
                        to = self._hosts[host][who]
                        rest.add(self._line.send(to, one.ring, result[part]))
        self._finish(rest)
        for part, room in to_come:
            result[part] = room
        self._rooms += taken

    def _finish(self, awaited: set[Handle], others: set[Handle] | None = None) -> None:
        """Wait until all ``awaited`` are done. Remove from ``others`` what is done meanwhile."""
        while awaited:
            if self.halted:
                raise PeersLost("the rings were given up")
            done = self._line.through()
            awaited.difference_update(done)
            if others is not None:
                others.difference_update(done)

    def sum(
        self, brought: Sequence[Brought], result: Buffer, narrowing: Narrowing | None = None
    ) -> None:
        """Add up an array: do this worker's share for its host. ``brought``: all contributions of
        this host that count, with their weights. Collective over all hosts; other workers of this
        host come at their own time. Raises PeersLost."""
        size, here, place = len(result), self._host, self._place
        most = MESSAGE // result.itemsize if narrowing is None else _elements(narrowing.form)
        mine = courses(size, self.per_host, here, place, most)
        if narrowing is not None:
            narrowing.begin(carried(size, self.per_host, here, place))
        following, last = self._hosts[(here + 1) % len(self._hosts)], self._hosts[here - 1]
        travels: list[_Travel] = []
        for course in mine:
            way = last[course.before], following[course.after], max(_FEWEST, _AHEAD // len(mine))
            if narrowing is None:
                travels.append(_Wide(course, self._line, self._rooms, way, brought, result))
            else:
                travels.append(
                    _Narrow(course, self._line, self._rooms, way, brought, result, narrowing)
                )
        waiting: _Waiting = {}
        for travel in travels:
            waiting |= travel.go_on()
        while waiting:
            if self.halted:
                raise PeersLost("the rings were given up")
            for handle in self._line.through():
                travel, number, room = waiting.pop(handle)
                waiting |= travel.step(number, room)


def _taken_from(rooms: list[Buffer]) -> Buffer:
    """Return one of ``rooms``, or a new room if there is none."""
    return rooms.pop() if rooms else HOST.zeros("uint8", MESSAGE)


def _of(brought: Sequence[Brought], part: slice) -> list[Brought]:
    return [(one[part], weight) for one, weight in brought]


def _add_up(inputs: Sequence[Brought], result: Buffer) -> None:
    if inputs:
        HOST.kernels.scaled_sum(result, *map(list, zip(*inputs, strict=True)))
    else:
        result[:] = 0


def _elements(form: str) -> int:
    """Return the elements of a narrowed message: whole blocks, so that none has two scales."""
    return MESSAGE // narrowed_bytes(NARROWED_BLOCK, form) * NARROWED_BLOCK


class _Travel(ABC):
    """The way of one array in one ring."""

    def __init__(
        self,
        course: Course,
        line: Line,
        rooms: list[Buffer],
        way: tuple[WorkerId, WorkerId, int],
        brought: Sequence[Brought],
        result: Buffer,
    ) -> None:
        self._course = course
        self._line = line
        self._rooms = rooms
        self._before, self._after, self._ahead = way
        self._brought = brought
        self._result = result
        self._asked = 0
        """The number of incoming messages that were asked for."""
        self._here = 0
        """The number of incoming messages that are here and dealt with, from the first on."""
        self._early: dict[int, Buffer] = {}
        """The rooms of messages that have come before an earlier one, by number."""
        self._begun = 0
        """The number of outgoing messages that were sent."""
        self._leaving = 0
        """The number of sent messages that have not left yet."""

    def step(self, number: int, room: Buffer) -> _Waiting:
        """Go on after message ``number`` has come to ``room``, or after one has left (`_SENT`)."""
        if number == _SENT:
            self._leaving -= 1
            if room is not None:
                self._rooms.append(room)
        else:
            self._early[number] = room
            while (came := self._early.pop(self._here, None)) is not None:
                if self._take(self._here, came):
                    self._rooms.append(came)
                self._here += 1
        return self.go_on()

    def go_on(self) -> _Waiting:
        """Ask for what comes next, and send what can be sent. Return the messages so started."""
        course, line = self._course, self._line
        started: _Waiting = {}
        while self._asked < min(len(course.incoming), self._here + self._ahead):
            room = _taken_from(self._rooms)
            handle = line.receive(
                self._before, course.ring, self._seen(room, course.incoming[self._asked])
            )
            started[handle] = self, self._asked, room
            self._asked += 1
        while (
            self._leaving < self._ahead
            and self._begun < len(course.outgoing)
            and self._begun < course.begun + self._here
        ):
            what, room = self._outgoing(self._begun)
            started[line.send(self._after, course.ring, what)] = self, _SENT, room
            self._begun += 1
            self._leaving += 1
        return started

    @abstractmethod
    def _seen(self, room: Buffer, part: slice) -> Buffer:
        """Return the piece of a room that this part of the array takes."""

    @abstractmethod
    def _take(self, number: int, room: Buffer) -> bool:
        """Use message ``number``, which is in this room. Return True if the room is free again."""

    @abstractmethod
    def _outgoing(self, number: int) -> tuple[Buffer, Buffer]:
        """Return outgoing message ``number``, and the room in which it lies, or None."""


_Waiting = dict[Handle, tuple[_Travel, int, Buffer]]
"""Messages under way: for each its travel; its number if it comes, else `_SENT`; and its room."""


class _Wide(_Travel):
    """An array that travels as it is. Its sums lie in the result while they travel."""

    def _seen(self, room: Buffer, part: slice) -> Buffer:
        return room.view(self._result.dtype)[: part.stop - part.start]

    def _take(self, number: int, room: Buffer) -> bool:
        part = self._course.incoming[number]
        came = self._seen(room, part)
        if number < self._course.partial:
            self._add(part, [(came, 1.0)])
        else:
            self._result[part] = came
        return True

    def _outgoing(self, number: int) -> tuple[Buffer, Buffer]:
        part = self._course.outgoing[number]
        if number < self._course.begun:
            if len(self._brought) == 1 and self._brought[0][1] == 1.0:
                return self._brought[0][0][part], None
            self._add(part, [])
        return self._result[part], None

    def _add(self, part: slice, first: Sequence[Brought]) -> None:
        """Set this part of the result to ``first`` and what this host brings."""
        _add_up([*first, *_of(self._brought, part)], self._result[part])


class _Narrow(_Travel):
    """An array that travels narrowed. Its sums lie in rooms while they travel."""

    def __init__(
        self,
        course: Course,
        line: Line,
        rooms: list[Buffer],
        way: tuple[WorkerId, WorkerId, int],
        brought: Sequence[Brought],
        result: Buffer,
        narrowing: Narrowing,
    ) -> None:
        super().__init__(course, line, rooms, way, brought, result)
        self._narrowing = narrowing
        self._inputs = [one for one, _ in brought]
        self._scales = [weight for _, weight in brought]
        self._sums = HOST.zeros(result.dtype, _elements(narrowing.form))
        """Sums with which another host goes on."""
        self._ready: deque[Buffer] = deque()
        """Rooms to be sent on, in this order."""

    def _seen(self, room: Buffer, part: slice) -> Buffer:
        return room[: narrowed_bytes(part.stop - part.start, self._narrowing.form)]

    def _take(self, number: int, room: Buffer) -> bool:
        part, course = self._course.incoming[number], self._course
        sent_on = course.begun + number < len(course.outgoing)
        came = self._seen(room, part)
        if number >= course.partial:
            HOST.kernels.widen(self._result[part], came, self._narrowing.form)
            if sent_on:
                self._ready.append(room)
            return not sent_on
        self._ready.append(self._narrowed(part, came, number >= course.owned))
        return True

    def _narrowed(self, part: slice, came: Buffer | None, owned: bool) -> Buffer:
        """Return a room with the narrowed sum of what came, if anything, and this host's part. If
        it is ``owned``, it is the whole sum, and goes to the result."""
        narrowing, room = self._narrowing, _taken_from(self._rooms)
        HOST.kernels.narrow_sum(
            self._seen(room, part),
            self._result[part] if owned else self._sums[: part.stop - part.start],
            narrowing.following[part],
            narrowing.rest[part],
            came,
            [one[part] for one in self._inputs],
            self._scales,
            narrowing.form,
        )
        return room

    def _outgoing(self, number: int) -> tuple[Buffer, Buffer]:
        part = self._course.outgoing[number]
        if number < self._course.begun:
            room = self._narrowed(part, None, owned=False)
        else:
            room = self._ready.popleft()
        return self._seen(room, part), room
