"""Sums between hosts, made while they travel: `protocol.host_ring` says which messages there are.

A message of a ring is added to this host's contributions, or copied, as soon as it is here, and is
sent on while the next ones come (`travels`).

A narrowed sum travels as bytes, from room to room. Each host widens the bytes that come, adds its
own contributions in float32, and narrows the sum. The bytes of the sum's owner go round unchanged,
so all hosts make the same of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.arrays.narrowing import Narrowing
from spotmpi.errors import PeersLost
from spotmpi.fabric.planes.plane import Handle, Line
from spotmpi.fabric.planes.travels import (
    Brought,
    GivenTravel,
    Link,
    NarrowTravel,
    Travel,
    WideTravel,
    most_of,
    of_slice,
    taken_from,
    travel_all,
    write_sum,
)
from spotmpi.protocol.host_ring import Course, Passage, carried, courses, exchanges, passages
from spotmpi.protocol.membership import WorkerId

__all__ = ["Rings"]

R = TypeVar("R", Course, Passage)

_AHEAD = 64
"""Most messages that a worker waits for at a time, and most that it sends, over all its rings."""

_FEWEST = 4
"""The same limit for each single ring is never less than this."""


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
        rooms = [taken_from(self._rooms) for _ in self._hosts]
        seen = [room.view(result.dtype)[:size] for room in rooms]
        write_sum(brought, seen[self._host])
        under_way: set[Handle] = set()
        for host, room in enumerate(seen):
            if host != self._host:
                under_way.add(self._line.receive(self._hosts[host][0], ring, room))
                under_way.add(self._line.send(self._hosts[host][0], ring, seen[self._host]))
        self._finish(under_way)
        write_sum([(one, 1.0) for one in seen], result)
        self._rooms += rooms

    def total(self, said: Sequence[float]) -> list[float]:
        """Return the sums of what hosts say: numbers that fit into a message. Workers of one host
        say the same, so the first worker speaks for them. Collective. Raises PeersLost."""
        own, sums = (HOST.zeros("float64", len(said)) for _ in range(2))
        own[:] = said
        self.by_firsts([(own, 1.0)], sums)
        ring, (first, *others) = self._beside, self._hosts[self._host]
        if self.leads:
            under_way = {self._line.send(other, ring, sums) for other in others}
        else:
            under_way = {self._line.receive(first, ring, sums)}
        self._finish(under_way)
        found: list[float] = sums.tolist()
        return found

    def all_agree(self, flag: bool) -> bool:
        """Return True if ``flag`` is true on all hosts. Otherwise as `total`."""
        return self.total([flag]) == [len(self._hosts)]

    def givers(self, brought: Sequence[int]) -> list[int | None]:
        """Return which host brings each of some arrays, if one worker alone does. ``brought``: how
        many workers of this host bring each. Otherwise as `total`."""
        said = [*brought, *(self._host * many for many in brought)]
        found = [*map(round, self.total(said))]
        many, hosts = found[: len(brought)], found[len(brought) :]
        return [host if one == 1 else None for one, host in zip(many, hosts, strict=True)]

    def straight(self, brought: Sequence[Brought], result: Buffer) -> None:
        """Add up an array: the sums of the hosts, in their order. Each share of the array comes
        straight to its owner. Otherwise as `sum`."""
        mine = exchanges(len(result), self.per_host, self._host, self._place, most_of(result))
        totals: list[tuple[slice, list[Buffer]]] = []
        """This host's shares, each with the rooms for all hosts' sums of it."""
        to_come: list[tuple[slice, Buffer]] = []
        """The others' shares, each with the room for its total."""
        partial: set[Handle] = set()
        rest: set[Handle] = set()
        taken: list[Buffer] = []

        def room_for(part: slice) -> Buffer:
            taken.append(room := taken_from(self._rooms))
            return room.view(result.dtype)[: part.stop - part.start]

        for one in mine:
            partners = [host[who] for host, who in zip(self._hosts, one.partners, strict=True)]
            for part in one.shares[self._host]:
                rooms = [room_for(part) for _ in self._hosts]
                write_sum(of_slice(brought, part), rooms[self._host])
                totals.append((part, rooms))
            for host, partner in enumerate(partners):
                if host == self._host:
                    continue
                # Messages from one worker come in this order.
                own = totals[len(totals) - len(one.shares[self._host]) :]
                partial |= {self._line.receive(partner, one.ring, rooms[host]) for _, rooms in own}
                for part in one.shares[host]:
                    write_sum(of_slice(brought, part), result[part])
                    rest.add(self._line.send(partner, one.ring, result[part]))
                for part in one.shares[host]:
                    to_come.append((part, room_for(part)))
                    rest.add(self._line.receive(partner, one.ring, to_come[-1][1]))
        self._finish(partial, rest)
        for part, rooms in totals:
            write_sum([(room, 1.0) for room in rooms], result[part])
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
        mine = courses(size, self.per_host, here, place, most_of(result, narrowing))
        travels: list[Travel]
        if narrowing is None:
            travels = [
                WideTravel(one, link, brought, result) for one, link in self._with_links(mine)
            ]
        else:
            narrowing.begin(carried(size, self.per_host, here, place))
            travels = [
                NarrowTravel(one, link, brought, result, narrowing)
                for one, link in self._with_links(mine)
            ]
        self._travel(travels)

    def give(
        self, brought: Mapping[int, Buffer], results: Sequence[Buffer], givers: Sequence[int]
    ) -> None:
        """Have all hosts have arrays of one type that one worker each brings: do this worker's
        share for its host. ``givers``: the numbers of their hosts; ``brought``: those of this host,
        by number. Collective as `sum` is. Raises PeersLost."""
        if not results:
            return
        arrays = [(len(one), giver) for one, giver in zip(results, givers, strict=True)]
        most = most_of(results[0])
        mine = passages(arrays, self.per_host, self._host, self._place, most)
        self._travel(
            [GivenTravel(one, link, brought, results) for one, link in self._with_links(mine)]
        )

    def _with_links(self, mine: Sequence[R]) -> Iterator[tuple[R, Link]]:
        """Yield what this worker does in each of its rings, with the link of that ring."""
        following = self._hosts[(self._host + 1) % len(self._hosts)]
        last = self._hosts[self._host - 1]
        ahead = max(_FEWEST, _AHEAD // max(1, len(mine)))
        for one in mine:
            before, after = last[one.before], following[one.after]
            yield one, Link(self._line, self._rooms, one.ring, before, after, ahead)

    def _travel(self, travels: Sequence[Travel]) -> None:
        travel_all(travels, self._line, lambda: self.halted)
