"""How fast workers are, as the rounds of asynchronous strategies tell, and the leases of the next
round that follow. Pure.

In such a round each worker takes as many steps as it can in the time in which the others take
theirs, and says how many they were. All read the same table, so all deal the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from spotmpi.protocol import tables
from spotmpi.protocol.membership import WorkerId

__all__ = ["WORDS", "Pace", "all_of", "furthest", "paces", "read", "write"]

_LEAST = 1e-9
"""Seconds that a worker's steps take at least."""


class Pace(NamedTuple):
    """What one worker did on the way to a round."""

    worker: WorkerId
    dealt: int
    """Steps that it was to take ..."""
    taken: int
    """... that it took ..."""
    samples: int
    """... that they stand for ..."""
    seconds: float
    """... that they took."""

    @property
    def speed(self) -> float | None:
        """Steps a second, if that is known."""
        known = self.taken and self.seconds > 0
        return self.taken / max(self.seconds, _LEAST) if known else None


WORDS = tables.words(len(Pace._fields) - 1)
"""Of a table: float64, in which all of these numbers are exact but the last."""


def write(table: Any, place: int, pace: Pace | None) -> None:
    """Make the table one with this alone, or with nothing. No two workers have one ``place``."""
    tables.write(table, place, *((0, ()) if pace is None else (pace.worker, pace[1:])))


def read(table: Any) -> list[Pace]:
    """What the sum of all tables says."""
    return [
        Pace(worker, int(dealt), int(taken), int(samples), seconds)
        for worker, (dealt, taken, samples, seconds) in tables.rows(table)
    ]


def all_of(steps: int, known: Sequence[Pace]) -> int:
    """Steps of the training that these are, if all of them would be ``steps``."""
    dealt = sum(one.dealt for one in known)
    return max(1, round(steps * sum(one.taken for one in known) / dealt)) if dealt else steps


def furthest(steps: int, known: Sequence[Pace]) -> int:
    """Those that the worker has taken who has come furthest with its own, if all of them would be
    ``steps``."""
    shares = [steps * one.taken // one.dealt for one in known if one.dealt]
    return max(1, *shares) if shares else steps


def paces(workers: Sequence[WorkerId], known: Sequence[Pace], steps: int) -> list[int]:
    """How many steps each of these is to take in the next round, so that they come to it together:
    at least one, and ``steps`` on average. Who is not known is taken for one in the middle."""
    speeds: Mapping[WorkerId, float] = {
        one.worker: one.speed for one in known if one.speed is not None
    }
    usual = median(speeds.values()) if speeds else 1.0
    wanted = [speeds.get(worker, usual) for worker in workers]
    free, whole = steps * len(workers) - len(workers), sum(wanted)
    shares = [free * one / whole for one in wanted]
    found = [1 + int(share) for share in shares]
    # What is left goes to those who lack most of a step, the first ones if they lack as much.
    order = sorted(range(len(workers)), key=lambda slot: (int(shares[slot]) - shares[slot], slot))
    for slot in order[: free - sum(found) + len(workers)]:
        found[slot] += 1
    return found
