"""Neighbours in a ring of workers. Pure; a question takes O(lost), never O(ring)."""

from __future__ import annotations

from collections.abc import Collection

from spotmpi.protocol.membership import Membership, WorkerId


def successor(ring: Membership, worker: WorkerId, lost: Collection[WorkerId]) -> WorkerId:
    """Return the next worker of ``ring`` after ``worker`` that is not lost. It may be itself."""
    return _walk(ring, worker, lost, +1)


def predecessor(ring: Membership, worker: WorkerId, lost: Collection[WorkerId]) -> WorkerId:
    """Return the nearest worker of ``ring`` before ``worker`` that is not lost."""
    return _walk(ring, worker, lost, -1)


def starter(ring: Membership, lost: Collection[WorkerId]) -> WorkerId:
    """Return the one worker that starts the token of this view.

    It is the nearest live predecessor of the first lost worker: on a ring, its neighbour fell
    silent. With nobody lost, it is the lowest rank. Everybody who holds the same view names the
    same worker. That keeps a recovery at O(lost) messages a worker.
    """
    if not lost:
        return ring.workers[0].id
    first = min(lost, key=ring.rank)
    return predecessor(ring, first, lost)


def _walk(ring: Membership, worker: WorkerId, lost: Collection[WorkerId], way: int) -> WorkerId:
    size = len(ring)
    rank = ring.rank(worker)
    for hop in range(1, size + 1):
        candidate = ring.workers[(rank + way * hop) % size].id
        if candidate not in lost:
            return candidate
    raise ValueError(f"nobody is left of generation {ring.generation}: {sorted(lost)} are lost")
