"""Sums between hosts, while they travel: `protocol.host_ring` says which messages there are.

A message that comes is added to this host's contributions, or copied, as soon as it is here, and
is sent on while the next ones come. What comes lands in memory of these rings' own, never in a
result: so nothing but this code writes to results, and whatever MPI may still do with messages that
were given up, it cannot touch them. Contributions and results are read by messages that leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.errors import PeersLost
from spotmpi.fabric.plane import Handle, Line
from spotmpi.protocol.host_ring import Course, courses
from spotmpi.protocol.membership import WorkerId

__all__ = ["MESSAGE", "Rings"]

MESSAGE = 60 << 10
"""Bytes of a message. MPI sends these at once and whole (over TCP up to 64 KB, with its header);
about larger ones it asks first, and what was asked can be neither finished nor taken back when a
worker is lost."""

_AHEAD = 64
"""Messages that a worker waits for at a time, and as many that it sends, over all its rings."""

_FEWEST = 4
"""In each ring."""


Brought = tuple[Buffer, float]
"""A contribution and its weight."""

_SENT = -1
"""Stands for the number of a message that has left."""

_Waiting = dict[Handle, tuple["_Travel", int]]
"""Messages under way: whose each is, and which of those that come it is, or `_SENT`."""


class Rings:
    """A worker's rings between these hosts, of which each has these workers, in this order."""

    def __init__(self, hosts: Sequence[Sequence[WorkerId]], me: WorkerId, line: Line) -> None:
        self._hosts, self._me = hosts, me
        self._workers = [len(host) for host in hosts]
        self._host = next(which for which, host in enumerate(hosts) if me in host)
        self._place = list(hosts[self._host]).index(me)
        self._line = line
        self._room: list[Buffer] = []
        """For what comes: as long as these rings are, because it may come late."""
        self.halted = False
        """They are given up: whoever waits in them leaves off."""

    @property
    def leads(self) -> bool:
        """Whether this worker is the first of its host."""
        return self._place == 0

    def add_up(self, result: Buffer) -> None:
        """Add to a host's sum, which fits into a message, those of the other hosts: in their order,
        the same for all. Collective over the first workers of all hosts. Raises PeersLost."""
        ring = max(self._workers)
        while len(self._room) < len(self._hosts):
            self._room.append(HOST.zeros("uint8", MESSAGE))
        rooms = [one.view(result.dtype)[: len(result)] for one in self._room[: len(self._hosts)]]
        rooms[self._host][:] = result
        under_way: set[Handle] = set()
        for host, room in enumerate(rooms):
            if host != self._host:
                under_way.add(self._line.receive(self._hosts[host][0], ring, room))
                under_way.add(self._line.send(self._hosts[host][0], ring, rooms[self._host]))
        while under_way:
            under_way.difference_update(self._line.through())
        HOST.kernels.scaled_sum(result, rooms, [1.0] * len(rooms))

    def anew(self) -> Rings:
        """The same, with other room for what comes."""
        return Rings(self._hosts, self._me, self._line)

    def sum(self, brought: Sequence[Brought], result: Buffer) -> None:
        """Add up an array: do this worker's share for its host, of which all contributions that
        count are in ``brought``, with their weights. Collective over all hosts; what others of this
        host do comes at its own time. Raises PeersLost.
        """
        most = MESSAGE // result.itemsize
        mine = courses(len(result), self._workers, self._host, self._place, most)
        each = max(_FEWEST, _AHEAD // len(mine))
        while len(self._room) < each * len(mine):
            self._room.append(HOST.zeros("uint8", MESSAGE))
        following = self._hosts[(self._host + 1) % len(self._hosts)]
        last = self._hosts[self._host - 1]
        travels = [
            _Travel(
                course,
                brought,
                result,
                self._room[each * number : each * (number + 1)],
                self._line,
                last[course.before],
                following[course.after],
            )
            for number, course in enumerate(mine)
        ]
        waiting: _Waiting = {}
        for travel in travels:
            waiting |= travel.go_on()
        while waiting:
            if self.halted:
                raise PeersLost("the rings were given up")
            for handle in self._line.through():
                travel, number = waiting.pop(handle)
                waiting |= travel.step(number)


class _Travel:
    """One array in one ring."""

    def __init__(
        self,
        course: Course,
        brought: Sequence[Brought],
        result: Buffer,
        room: Sequence[Buffer],
        line: Line,
        before: WorkerId,
        after: WorkerId,
    ) -> None:
        self._course = course
        self._brought = brought
        self._result = result
        self._room = [one.view(result.dtype) for one in room]
        self._line = line
        self._before, self._after = before, after
        self._asked = 0
        """How many of those that come were asked for, ..."""
        self._here = 0
        """... and how many of them, from the first on, are here and done with; ..."""
        self._early: set[int] = set()
        """... and which others are."""
        self._begun = 0
        """How many were sent on their way, ..."""
        self._leaving = 0
        """... and how many of them have not left."""

    def step(self, number: int) -> _Waiting:
        """This one has come, or one has left: go on from there."""
        if number == _SENT:
            self._leaving -= 1
        else:
            self._take(number)
        return self.go_on()

    def go_on(self) -> _Waiting:
        """Ask for what comes next, and send what can be sent; returns what is under way more."""
        course, line = self._course, self._line
        started: _Waiting = {}
        while self._asked < min(len(course.incoming), self._here + len(self._room)):
            part = course.incoming[self._asked]
            room = self._room[self._asked % len(self._room)][: part.stop - part.start]
            started[line.receive(self._before, course.ring, room)] = self, self._asked
            self._asked += 1
        while (
            self._leaving < len(self._room)
            and self._begun < len(course.outgoing)
            and self._begun < course.begun + self._here
        ):
            what = self._outgoing(self._begun)
            started[line.send(self._after, course.ring, what)] = self, _SENT
            self._begun += 1
            self._leaving += 1
        return started

    def _take(self, number: int) -> None:
        part = self._course.incoming[number]
        came = self._room[number % len(self._room)][: part.stop - part.start]
        if number < self._course.partial:
            self._add(part, [(came, 1.0)])
        else:
            self._result[part] = came
        self._early.add(number)
        while self._here in self._early:
            self._early.remove(self._here)
            self._here += 1

    def _outgoing(self, number: int) -> Buffer:
        part = self._course.outgoing[number]
        if number < self._course.begun:
            if len(self._brought) == 1 and self._brought[0][1] == 1.0:
                return self._brought[0][0][part]
            self._add(part, [])
        return self._result[part]

    def _add(self, part: slice, first: Sequence[Brought]) -> None:
        """To ``first``, what this host brings."""
        inputs = [*first, *((one[part], weight) for one, weight in self._brought)]
        if inputs:
            HOST.kernels.scaled_sum(self._result[part], *map(list, zip(*inputs, strict=True)))
        else:
            self._result[part] = 0
