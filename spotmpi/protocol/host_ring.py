"""How a sum travels between hosts: which messages each worker sends and gets, in which order. Pure.

There are three ways. By the *first* workers: the first of each host sends its host's sum to the
first of all others, and adds up what comes. *Straight*: each host owns a share of the array; it
gets the others' sums of that, adds them to its own, and sends the total to all. Both of these add
the sums of hosts, in the order of the hosts. The third way is a *ring*.

For rings an array is cut into slices, one for each worker of the host that has the most. Each slice
has a ring of its own: one worker of every host, which sends to the one of the next host and hears
from that of the last one. Within a ring the slice is cut into shares, one for each host, and these
into messages. A share starts at the host after its *owner*, as the sum of that host's
contributions. Each host adds its own and passes it on, until the owner has the whole sum; then that
goes round once more, and nobody adds anything. So each host sends and gets 2 (n - 1) / n of the
slice, every sum is made by one host for all, and the order of summation depends on nothing but the
numbers here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = [
    "FIRST",
    "RING",
    "STRAIGHT",
    "Course",
    "Exchange",
    "carried",
    "carriers",
    "courses",
    "cut",
    "exchanges",
    "orders",
]

FIRST, STRAIGHT, RING = "first", "straight", "ring"
"""The ways, as traces have them."""

_LINE = 16
"""Elements of which two workers of a host never write one each."""


class Course(NamedTuple):
    """What one worker does in one ring, of an array."""

    ring: int
    before: int
    """Which worker of the host before this one it hears from."""
    after: int
    """Which worker of the next host it sends to."""
    outgoing: Sequence[slice]
    """What it sends, in this order."""
    incoming: Sequence[slice]
    """What it gets, in this order: number i is to be sent on as number ``begun + i``, if there is
    such a one."""
    begun: int
    """So many of what it sends are sums of its host's contributions alone."""
    partial: int
    """To so many of what it gets its host's contributions are added; the rest are whole sums."""
    owned: int
    """Of those, the ones from this on are whole sums then, and this host's to make for all."""


class Exchange(NamedTuple):
    """What one worker does of a slice of an array that goes straight."""

    ring: int
    partners: Sequence[int]
    """Which worker of each host has this slice."""
    shares: Sequence[Sequence[slice]]
    """What each host owns of it, as messages."""


def cut(size: int, which: int, count: int, start: int = 0) -> slice:
    """One of so many about equal pieces of the elements from ``start`` on, in whole cache lines."""
    lines = -(-size // _LINE)
    first, last = (min(size, _LINE * (lines * i // count)) for i in (which, which + 1))
    return slice(start + first, start + last)


def courses(
    size: int, workers: Sequence[int], host: int, worker: int, message: int
) -> list[Course]:
    """What a worker does for an array of ``size`` elements.

    ``workers``: how many each host has, of two hosts or more. ``host`` and ``worker``: which of
    them this is. ``message``: elements of one at most.
    """
    hosts, rings = len(workers), max(workers)
    found = []
    for ring in range(rings):
        if _who(ring, rings, workers[host]) != worker:
            continue
        shares = [_messages(share, message) for share in _shares(size, ring, rings, hosts)]
        turns = range(2 * (hosts - 1))
        partial = sum(len(shares[(host - turn - 2) % hosts]) for turn in range(hosts - 1))
        found.append(
            Course(
                ring,
                _who(ring, rings, workers[host - 1]),
                _who(ring, rings, workers[(host + 1) % hosts]),
                [one for turn in turns for one in shares[(host - turn - 1) % hosts]],
                [one for turn in turns for one in shares[(host - turn - 2) % hosts]],
                begun=len(shares[host - 1]),
                partial=partial,
                owned=partial - len(shares[host]),
            )
        )
    return found


def exchanges(
    size: int, workers: Sequence[int], host: int, worker: int, message: int
) -> list[Exchange]:
    """What a worker does for an array that goes straight, as `courses` has it for one in rings. No
    more workers of a host take part than have a whole message each."""
    hosts, rings = len(workers), min(max(workers), max(1, -(-size // message)))
    return [
        Exchange(
            ring,
            [_who(ring, rings, count) for count in workers],
            [_messages(share, message) for share in _shares(size, ring, rings, hosts)],
        )
        for ring in range(rings)
        if _who(ring, rings, workers[host]) == worker
    ]


def orders(size: int, workers: Sequence[int]) -> Iterator[tuple[slice, list[int]]]:
    """In which order hosts are added, piece by piece of the array; in each host its workers are, in
    theirs, one after the other."""
    for share, hops in carriers(size, workers):
        yield share, [host for host, _ in hops]


def carriers(size: int, workers: Sequence[int]) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
    """The same, with the worker of each host that adds its contributions; the last is the owner."""
    hosts, rings = len(workers), max(workers)
    for ring in range(rings):
        for owner, share in enumerate(_shares(size, ring, rings, hosts)):
            order = [(owner + 1 + turn) % hosts for turn in range(hosts)]
            yield share, [(host, _who(ring, rings, workers[host])) for host in order]


def carried(size: int, workers: Sequence[int], host: int, worker: int) -> list[slice]:
    """All that one worker adds its host's contributions to."""
    rings = max(workers)
    mine = [ring for ring in range(rings) if _who(ring, rings, workers[host]) == worker]
    return [cut(size, ring, rings) for ring in mine]


def _who(ring: int, rings: int, workers: int) -> int:
    """Which worker of a host with so many has this ring."""
    return ring * workers // rings


def _shares(size: int, ring: int, rings: int, hosts: int) -> list[slice]:
    """Of a ring's slice, by their owners."""
    whole = cut(size, ring, rings)
    return [cut(whole.stop - whole.start, owner, hosts, whole.start) for owner in range(hosts)]


def _messages(share: slice, most: int) -> list[slice]:
    starts = range(share.start, share.stop, most)
    return [slice(start, min(start + most, share.stop)) for start in starts]
