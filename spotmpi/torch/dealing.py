"""Which samples of a pass each worker has, and who has what lost workers did not use. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Deal", "Samples", "dealt"]

Samples = npt.NDArray[np.integer[Any]]


def dealt(samples: Samples, workers: int, whole: bool) -> Sequence[Samples]:
    """Deal samples in turn, so that all have the same number, as torch's `DistributedSampler` does.

    If they do not go up evenly, some are dealt twice. If they need not be dealt as a ``whole``, the
    last ones go to nobody instead.
    """
    each = len(samples) / workers
    rounds = math.ceil(each) if whole else math.floor(each)
    return [*np.resize(samples, (rounds, workers)).T]  # it begins again where they end


class Place(NamedTuple):
    """What all workers have used of a pass."""

    used: int
    """Samples that each worker has used."""
    workers: int
    """Workers that the samples were dealt to."""
    left: Samples | None
    """Samples that nobody has used, in the order in which they are to be dealt; None: each worker
    has the rest of its own."""
    summed: bool
    """True if gradients were summed in the pass."""

    def used_by_each_of(self, workers: int) -> int:
        """Return how many samples each of so many workers would have used to be here."""
        return self.used * self.workers // workers


class Deal:
    """The samples of one pass, dealt to workers. What a lost one did not use goes to the others,
    who use it after their own. Alike on all workers."""

    def __init__(self, samples: Samples, workers: Sequence[int], whole: bool = True) -> None:
        """``workers``: those that begin the pass; ``whole``: see `dealt`."""
        self.whole = whole
        """See `dealt`."""
        self._of = dict(zip(workers, dealt(samples, len(workers), whole), strict=True))

    @property
    def workers(self) -> Sequence[int]:
        """Those that are not lost."""
        return tuple(self._of)

    def of(self, worker: int) -> Samples:
        """Return the samples of a worker, in order: those that it was dealt so far."""
        return self._of[worker]

    def repeat(self) -> bool:
        """Give each worker its first sample once more at the end, unless none may be used twice;
        returns True if that was done."""
        if self.whole:
            self._of = {one: np.append(mine, mine[:1]) for one, mine in self._of.items()}
        return self.whole

    def left(self, used: int) -> Samples:
        """Return the samples that are left if each worker has used ``used`` of its own: in the
        order in which they would be dealt to as many."""
        return np.stack([mine[used:] for mine in self._of.values()]).T.reshape(-1)

    def lose(self, workers: Collection[int], used: int) -> None:
        """Deal what these workers have left to all others. Each had used ``used`` of its own."""
        left = np.concatenate([self._of.pop(one)[used:] for one in sorted(workers)])
        shares = dealt(left, len(self._of), self.whole)
        for worker, share in zip(sorted(self._of), shares, strict=True):
            self._of[worker] = np.append(self._of[worker], share)
