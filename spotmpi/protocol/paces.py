"""How fast workers are in asynchronous rounds, and how many steps each takes in the next. Pure.

In a round of an asynchronous strategy each worker takes as many steps as it can while the others
take theirs, and tells how many they were. All workers read the same table, so all deal the same
leases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from spotmpi.protocol import tables
from spotmpi.protocol.membership import WorkerId

__all__ = ["WIDTH", "Pace", "all_of", "furthest", "paces", "read", "write"]

_LEAST = 1e-9
"""Fewest seconds that a worker's steps count for."""
_GROWTH = 2
"""Times as many steps as in its last round that a worker gets at most."""


class Pace(NamedTuple):
    """What one worker did on the way to a round."""

    worker: WorkerId
    dealt: int
    """Steps that the worker was dealt."""
    taken: int
    """Steps that the worker took."""
    samples: int
    """Samples of the steps that the worker took."""
    seconds: float
    """Seconds that the worker's steps took."""

    @property
    def speed(self) -> float | None:
        """Steps a second; None if that is not known."""
        known = self.taken and self.seconds > 0
        return self.taken / max(self.seconds, _LEAST) if known else None


WIDTH = len(Pace._fields)
"""Numbers of a table's row. All but the seconds are exact in it."""


def write(table: Any, place: int, pace: Pace | None) -> None:
    """Make the table hold this ``pace`` alone, or zeros. No two workers have one ``place``."""
    tables.write(table, place, *((0, ()) if pace is None else (pace.worker, pace[1:])))


def read(table: Any) -> list[Pace]:
    """Return the paces of all workers, from the sum of all tables."""
    return [
        Pace(worker, int(dealt), int(taken), int(samples), seconds)
        for worker, (dealt, taken, samples, seconds) in tables.read(table, WIDTH)
    ]


def all_of(steps: int, known: Sequence[Pace]) -> int:
    """Return how many training steps were taken, if all that were dealt make up ``steps``."""
    dealt = sum(one.dealt for one in known)
    return max(1, round(steps * sum(one.taken for one in known) / dealt)) if dealt else steps


def furthest(steps: int, known: Sequence[Pace]) -> int:
    """Return how many training steps the worker took that came furthest with its own. All of its
    own make up ``steps``."""
    shares = [steps * one.taken // one.dealt for one in known if one.dealt]
    return max(1, *shares) if shares else steps


def paces(workers: Sequence[WorkerId], known: Sequence[Pace], steps: int) -> list[int]:
    """Return each worker's steps of the next round, so that all come to it together: at least one,
    and ``steps`` on average. A worker whose speed is not known counts as one in the middle.

    Nobody gets more than `_GROWTH` times what it was dealt in the last round, or `_GROWTH` times
    ``steps`` if that is more: a worker may be ten times faster than others for a moment only, and
    would train nearly alone for a whole round.
    """
    speeds: Mapping[WorkerId, float] = {
        one.worker: one.speed for one in known if one.speed is not None
    }
    dealt = {one.worker: one.dealt for one in known}
    usual = median(speeds.values()) if speeds else 1.0
    wanted = [speeds.get(worker, usual) for worker in workers]
    limits = [_GROWTH * max(steps, dealt.get(worker, 0)) - 1 for worker in workers]
    free = steps * len(workers) - len(workers)
    shares = _shares(free, wanted, limits)
    found = [1 + int(share) for share in shares]
    # The steps that remain go to the largest fractions; of equal ones, to the first.
    order = sorted(range(len(workers)), key=lambda slot: (int(shares[slot]) - shares[slot], slot))
    for slot in order[: free - sum(found) + len(workers)]:
        found[slot] += 1
    return found


def _shares(whole: float, speeds: Sequence[float], limits: Sequence[int]) -> list[float]:
    """Share ``whole`` by speed, to each at most its limit. The limits are enough for all of it."""
    shares = [0.0] * len(speeds)
    # Who comes to its limit first leaves the rest to the others.
    order = sorted(range(len(speeds)), key=lambda slot: speeds[slot] / limits[slot])
    together = list(accumulate(speeds[slot] for slot in order))
    for slot, speed in zip(reversed(order), reversed(together), strict=True):
        shares[slot] = min(limits[slot], whole * speeds[slot] / speed)
        whole -= shares[slot]
    return shares
