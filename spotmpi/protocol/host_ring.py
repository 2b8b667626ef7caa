"""How a sum travels between hosts: the messages that each worker sends and gets, in order. Pure.

There are four ways. *First*: the first worker of each host sends its host's sum to the first
workers of all others, and adds up what comes. *Straight*: each host owns a share of the array. It
gets the others' sums of that share, adds them to its own, and sends the total to all. Both add the
sums of hosts, in the order of the hosts. The third way is the *ring*. The fourth is for arrays that
one worker each brings: nobody adds anything. *Given*: such an array goes round once, from its
worker's host to the one before.

For rings, an array is cut into slices, one for each worker of the host with the most workers. Each
slice has a ring of its own: one worker of every host, which sends to the one of the next host and
hears from the one of the host before. A slice is cut into shares, one for each host, and a share
into messages. A share starts at the host after its *owner*, as the sum of that host's
contributions. Each host adds its own and passes it on, until the owner has the whole sum. Then the
whole sum goes round once more, and no host adds anything. So each host sends and gets 2 (n - 1) / n
of the slice, and one host makes each sum for all. The order of summation depends only on the
numbers here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = [
    "FIRST",
    "GIVEN",
    "RING",
    "STRAIGHT",
    "Course",
    "Exchange",
    "Passage",
    "carried",
    "carriers",
    "courses",
    "cut",
    "exchanges",
    "orders",
    "passages",
]

FIRST, STRAIGHT, RING, GIVEN = "first", "straight", "ring", "given"
"""The names of the ways. Traces have the first three."""

_LINE = 16
"""Elements of a cache line: two workers of a host never write to the same one."""


class Course(NamedTuple):
    """What one worker does in one ring of an array."""

    ring: int
    before: int
    """Number of the worker that this one hears from, on the host before."""
    after: int
    """Number of the worker that this one sends to, on the next host."""
    outgoing: Sequence[slice]
    """The messages that it sends, in this order."""
    incoming: Sequence[slice]
    """The messages that it gets, in this order. Message i goes on as outgoing message
    ``begun + i``, if there is one."""
    begun: int
    """Number of outgoing messages that are sums of this host's contributions alone: the first."""
    partial: int
    """Number of incoming messages to which this host adds its contributions: the first. The rest
    are whole sums."""
    owned: int
    """Incoming messages from this number up to `partial` become whole sums here, for all hosts."""


class Passage(NamedTuple):
    """What one worker passes on in one ring of arrays that are given. The ring, and the workers of
    other hosts in it, are as in a `Course`."""

    ring: int
    before: int
    after: int
    outgoing: Sequence[tuple[int, slice]]
    """The messages that it sends, in this order: of which array, and what of it."""
    incoming: Sequence[tuple[int, slice]]
    """The messages that it gets, in this order. Message i goes on as outgoing message
    ``begun + i``, if there is one."""
    begun: int
    """Number of outgoing messages that are of this host's arrays: the first."""


class Exchange(NamedTuple):
    """What one worker does with a slice of an array that goes straight."""

    ring: int
    partners: Sequence[int]
    """Number of the worker that has this slice, for each host."""
    shares: Sequence[Sequence[slice]]
    """The messages of the share that each host owns."""


def cut(size: int, which: int, count: int, start: int = 0) -> slice:
    """Return piece ``which`` of ``count`` about equal ones. Together they are the ``size`` elements
    from ``start`` on. All but the last are whole cache lines."""
    lines = -(-size // _LINE)
    first, last = (min(size, _LINE * (lines * i // count)) for i in (which, which + 1))
    return slice(start + first, start + last)


def courses(
    size: int, workers: Sequence[int], host: int, worker: int, message: int
) -> list[Course]:
    """Return what a worker does for an array of ``size`` elements: a course for each of its rings.

    ``workers``: the number of workers on each host, for two hosts or more. ``host`` and ``worker``:
    the numbers of this worker and its host. ``message``: the most elements of one message.
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


def passages(
    arrays: Sequence[tuple[int, int]],
    workers: Sequence[int],
    host: int,
    worker: int,
    message: int,
) -> list[Passage]:
    """Return what a worker does for arrays that are given, all at once: a passage for each of its
    rings. On each host, no more workers take part than the largest array has messages. ``arrays``:
    the size of each, and the host that has it; the others are as for `courses`."""
    hosts = len(workers)
    rings = _slices_of(max((size for size, _ in arrays), default=0), workers, message)
    found = []
    for ring in range(rings):
        if _who(ring, rings, workers[host]) != worker:
            continue
        pieces: list[list[tuple[int, slice]]] = [[] for _ in workers]
        for number, (size, giver) in enumerate(arrays):
            pieces[giver] += [(number, one) for one in _messages(cut(size, ring, rings), message)]
        turns = range(hosts - 1)
        found.append(
            Passage(
                ring,
                _who(ring, rings, workers[host - 1]),
                _who(ring, rings, workers[(host + 1) % hosts]),
                [one for turn in turns for one in pieces[(host - turn) % hosts]],
                [one for turn in turns for one in pieces[(host - turn - 1) % hosts]],
                begun=len(pieces[host]),
            )
        )
    return found


def exchanges(
    size: int, workers: Sequence[int], host: int, worker: int, message: int
) -> list[Exchange]:
    """Return what a worker does for an array that goes straight; arguments are as for `courses`. On
    each host, no more workers take part than there are messages."""
    hosts, rings = len(workers), _slices_of(size, workers, message)
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
    """Yield the pieces of the array, each with the order in which hosts are added. Within a host,
    its workers are added one after the other, in their order."""
    for share, hops in carriers(size, workers):
        yield share, [host for host, _ in hops]


def carriers(size: int, workers: Sequence[int]) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
    """Yield each piece with its hosts, and the worker of each that adds; the last is the owner."""
    hosts, rings = len(workers), max(workers)
    for ring in range(rings):
        for owner, share in enumerate(_shares(size, ring, rings, hosts)):
            order = [(owner + 1 + turn) % hosts for turn in range(hosts)]
            yield share, [(host, _who(ring, rings, workers[host])) for host in order]


def carried(size: int, workers: Sequence[int], host: int, worker: int) -> list[slice]:
    """Return all pieces in which one worker adds its host's contributions."""
    rings = max(workers)
    mine = [ring for ring in range(rings) if _who(ring, rings, workers[host]) == worker]
    return [cut(size, ring, rings) for ring in mine]


def _slices_of(size: int, workers: Sequence[int], message: int) -> int:
    """Return into how many slices an array is cut: no more than it has messages."""
    return min(max(workers), max(1, -(-size // message)))


def _who(ring: int, rings: int, workers: int) -> int:
    """Return which of a host's ``workers`` has this ring."""
    return ring * workers // rings


def _shares(size: int, ring: int, rings: int, hosts: int) -> list[slice]:
    """Return the shares of a ring's slice, in the order of their owners."""
    whole = cut(size, ring, rings)
    return [cut(whole.stop - whole.start, owner, hosts, whole.start) for owner in range(hosts)]


def _messages(share: slice, most: int) -> list[slice]:
    starts = range(share.start, share.stop, most)
    return [slice(start, min(start + most, share.stop)) for start in starts]
