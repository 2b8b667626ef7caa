"""Which samples of a pass each worker has, and who has what lost workers did not use. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["Deal", "dealt"]


def dealt(samples: Sequence[int], workers: int, whole: bool) -> list[list[int]]:
    """Deal samples in turn, so that all have the same number, as torch's `DistributedSampler` does.

    If they do not go up evenly the first ones are dealt twice, or, unless the ``whole`` of them is
    wanted, the last ones to nobody.
    """
    if whole and samples:
        each = math.ceil(len(samples) / workers)
        samples = [*samples] * math.ceil(each * workers / len(samples))
    else:
        each = len(samples) // workers
    return [[*samples[place : each * workers : workers]] for place in range(workers)]


class Deal:
    """The samples of one pass, dealt to workers. What lost ones did not use goes to the others, who
    use it after their own. Alike on all workers that note the same."""

    def __init__(self, samples: Sequence[int], workers: Sequence[int], whole: bool = True) -> None:
        """``workers``: those that begin the pass; ``whole``: see `dealt`."""
        self._whole = whole
        self._used = dict.fromkeys(workers, 0)
        self._of = dict(zip(workers, dealt(samples, len(workers), whole), strict=True))

    def of(self, worker: int) -> list[int]:
        """Return the samples of a worker, in order. The list grows when others are lost."""
        return self._of[worker]

    def repeat(self) -> bool:
        """Give each worker its first sample once more at the end, unless none may be used twice;
        returns True if that was done."""
        for mine in self._of.values() if self._whole else ():
            mine.append(mine[0])
        return self._whole

    def note(self, workers: Sequence[int], used: int) -> None:
        """Note that each of these workers has used so many of its samples by now, and that all
        others are lost."""
        left: list[int] = []
        for lost in sorted(self._of.keys() - set(workers)):
            left += self._of.pop(lost)[self._used.pop(lost) :]
        there = [worker for worker in workers if worker in self._of]
        for worker, more in zip(there, dealt(left, len(there), self._whole), strict=True):
            self._used[worker] = used
            self._of[worker] += more
