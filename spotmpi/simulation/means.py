"""What simulated scripts ask the mean of, and what may be right to answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from spotmpi.protocol.membership import WorkerId

__all__ = ["mean_of", "perhaps_full", "question"]


def question(worker: WorkerId) -> float:
    """What ``worker`` asks the mean of: each has a number of its own."""
    return float(1 + worker * 2_654_435_761 % (1 << 20))


def mean_of(workers: Iterable[WorkerId]) -> float:
    """That of their numbers."""
    found = [question(worker) for worker in workers]
    return sum(found) / len(found)


def perhaps_full(members: Sequence[WorkerId], known: set[WorkerId]) -> Iterator[list[WorkerId]]:
    """Who of ``members`` may have brought a number: a newcomer does as soon as it has learnt."""
    perhaps = [worker for worker in members if worker not in known]
    surely = [worker for worker in members if worker in known]
    for many in range(len(perhaps) + 1):
        for some in combinations(perhaps, many):
            if surely or some:
                yield [*surely, *some]
