"""Arrays on their way from host to host, message by message; `host_ring` says which ones.

A message comes to memory of the rings' own, a room, and never to a result. So MPI cannot touch
results with messages that were given up. Messages that leave are read from contributions, results
and rooms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.arrays.narrowing import NARROWED_BLOCK, Narrowing, narrowed_bytes
from spotmpi.errors import PeersLost
from spotmpi.fabric.planes.plane import Handle, Line
from spotmpi.protocol.host_ring import Course, Passage
from spotmpi.protocol.membership import WorkerId

__all__ = [
    "MESSAGE",
    "Brought",
    "GivenTravel",
    "Link",
    "NarrowTravel",
    "Travel",
    "WideTravel",
    "most_of",
    "of_slice",
    "taken_from",
    "travel_all",
    "write_sum",
]

MESSAGE = 60 << 10
"""Bytes of a message. MPI sends these at once and whole (over TCP up to 64 KB, with its header).
For larger ones it asks first: if a worker is lost, these can be neither finished nor taken back."""

Brought = tuple[Buffer, float]
"""A contribution and its weight."""

_SENT = -1
"""Stands for the number of a message that was sent."""


class Link(NamedTuple):
    """Between whom messages go in a ring."""

    line: Line
    rooms: list[Buffer]
    """Free rooms. A travel takes some, and gives them back."""
    ring: int
    before: WorkerId
    """The worker of the host before, which this one hears from."""
    after: WorkerId
    """The worker of the next host, to which it sends."""
    ahead: int
    """Most messages that it waits for at a time, and most that it sends."""


def taken_from(rooms: list[Buffer]) -> Buffer:
    """Return one of ``rooms``, or a new room if there is none."""
    return rooms.pop() if rooms else HOST.zeros("uint8", MESSAGE)


def of_slice(brought: Sequence[Brought], part: slice) -> list[Brought]:
    """Return the same slice of each contribution, with its weight."""
    return [(one[part], weight) for one, weight in brought]


def write_sum(inputs: Sequence[Brought], result: Buffer) -> None:
    """Write the weighted sum of these to ``result``; zeros, if there are none."""
    if inputs:
        HOST.kernels.scaled_sum(result, *map(list, zip(*inputs, strict=True)))
    else:
        result[:] = 0


def most_of(result: Buffer, narrowing: Narrowing | None = None) -> int:
    """Return the most elements of an array that one message has."""
    if narrowing is None:
        return int(MESSAGE // result.itemsize)
    # Whole blocks, so that none has two scales.
    return MESSAGE // narrowed_bytes(NARROWED_BLOCK, narrowing.form) * NARROWED_BLOCK


class Travel(ABC):
    """The way of an array, or of several, in one ring."""

    def __init__(self, link: Link, comes: int, leaves: int, begun: int) -> None:
        """``comes``, ``leaves``: the numbers of messages. ``begun``: of those that leave, how many
        follow from no message that comes: the first."""
        self._link = link
        self._comes = comes
        self._leaves = leaves
        self._begun = begun
        self._asked = 0
        """The number of incoming messages that were asked for."""
        self._here = 0
        """The number of incoming messages that are here and dealt with, from the first on."""
        self._early: dict[int, Buffer] = {}
        """The rooms of messages that have come before an earlier one, by number."""
        self._sent = 0
        """The number of outgoing messages that were sent."""
        self._leaving = 0
        """The number of sent messages that have not left yet."""

    def step(self, number: int, room: Buffer) -> Waiting:
        """Go on after message ``number`` has come to ``room``, or after one has left (`_SENT`)."""
        if number == _SENT:
            self._leaving -= 1
            if room is not None:
                self._link.rooms.append(room)
        else:
            self._early[number] = room
            while (came := self._early.pop(self._here, None)) is not None:
                if self._take(self._here, came):
                    self._link.rooms.append(came)
                self._here += 1
        return self.go_on()

    def go_on(self) -> Waiting:
        """Ask for what comes next, and send what can be sent. Return the messages so started."""
        link = self._link
        started: Waiting = {}
        while self._asked < min(self._comes, self._here + link.ahead):
            room = taken_from(link.rooms)
            handle = link.line.receive(link.before, link.ring, self._seen(self._asked, room))
            started[handle] = self, self._asked, room
            self._asked += 1
        while (
            self._leaving < link.ahead
            and self._sent < self._leaves
            and self._sent < self._begun + self._here
        ):
            what, room = self._outgoing(self._sent)
            started[link.line.send(link.after, link.ring, what)] = self, _SENT, room
            self._sent += 1
            self._leaving += 1
        return started

    @abstractmethod
    def _seen(self, number: int, room: Buffer) -> Buffer:
        """Return the piece of a room that incoming message ``number`` takes."""

    @abstractmethod
    def _take(self, number: int, room: Buffer) -> bool:
        """Use message ``number``, which is in this room. Return True if the room is free again."""

    @abstractmethod
    def _outgoing(self, number: int) -> tuple[Buffer, Buffer]:
        """Return outgoing message ``number``, and the room in which it lies, or None."""


Waiting = dict[Handle, tuple[Travel, int, Buffer]]
"""Messages under way: for each its travel; its number if it comes, else `_SENT`; and its room."""


def travel_all(travels: Sequence[Travel], line: Line, halted: Callable[[], bool]) -> None:
    """Have all of these come to their ends. Raises PeersLost, also once ``halted`` is true."""
    waiting: Waiting = {}
    for travel in travels:
        waiting |= travel.go_on()
    while waiting:
        if halted():
            raise PeersLost("the rings were given up")
        for handle in line.through():
            travel, number, room = waiting.pop(handle)
            waiting |= travel.step(number, room)


class WideTravel(Travel):
    """An array that travels as it is. Its sums lie in the result while they travel."""

    def __init__(
        self, course: Course, link: Link, brought: Sequence[Brought], result: Buffer
    ) -> None:
        super().__init__(link, len(course.incoming), len(course.outgoing), course.begun)
        self._course = course
        self._brought = brought
        self._result = result

    def _seen(self, number: int, room: Buffer) -> Buffer:
        part = self._course.incoming[number]
        return room.view(self._result.dtype)[: part.stop - part.start]

    def _take(self, number: int, room: Buffer) -> bool:
        part = self._course.incoming[number]
        came = self._seen(number, room)
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
        write_sum([*first, *of_slice(self._brought, part)], self._result[part])


class GivenTravel(Travel):
    """Arrays that one worker each brings. They come to the results as they are."""

    def __init__(
        self,
        passage: Passage,
        link: Link,
        brought: Mapping[int, Buffer],
        results: Sequence[Buffer],
    ) -> None:
        """``brought``: those of this host, by number."""
        super().__init__(link, len(passage.incoming), len(passage.outgoing), passage.begun)
        self._passage = passage
        self._brought = brought
        self._results = results

    def _seen(self, number: int, room: Buffer) -> Buffer:
        which, part = self._passage.incoming[number]
        return room.view(self._results[which].dtype)[: part.stop - part.start]

    def _take(self, number: int, room: Buffer) -> bool:
        which, part = self._passage.incoming[number]
        self._results[which][part] = self._seen(number, room)
        return True

    def _outgoing(self, number: int) -> tuple[Buffer, Buffer]:
        which, part = self._passage.outgoing[number]
        result = self._results[which]
        if number < self._passage.begun:
            result[part] = self._brought[which][part]
        return result[part], None


class NarrowTravel(Travel):
    """An array that travels narrowed. Its sums lie in rooms while they travel."""

    def __init__(
        self,
        course: Course,
        link: Link,
        brought: Sequence[Brought],
        result: Buffer,
        narrowing: Narrowing,
    ) -> None:
        super().__init__(link, len(course.incoming), len(course.outgoing), course.begun)
        self._course = course
        self._result = result
        self._narrowing = narrowing
        self._inputs = [one for one, _ in brought]
        self._scales = [weight for _, weight in brought]
        self._sums = HOST.zeros(result.dtype, most_of(result, narrowing))
        """Sums with which another host goes on."""
        self._ready: deque[Buffer] = deque()
        """Rooms to be sent on, in this order."""

    def _seen(self, number: int, room: Buffer) -> Buffer:
        return self._narrow(room, self._course.incoming[number])

    def _narrow(self, room: Buffer, part: slice) -> Buffer:
        """Return the piece of a room that this part of the array takes."""
        return room[: narrowed_bytes(part.stop - part.start, self._narrowing.form)]

    def _take(self, number: int, room: Buffer) -> bool:
        part, course = self._course.incoming[number], self._course
        sent_on = course.begun + number < len(course.outgoing)
        came = self._seen(number, room)
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
        narrowing, room = self._narrowing, taken_from(self._link.rooms)
        HOST.kernels.narrow_sum(
            self._narrow(room, part),
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
        return self._narrow(room, part), room
