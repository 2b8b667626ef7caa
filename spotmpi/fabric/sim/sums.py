"""Sums that workers of a simulation add up together without locks.

Workers of one host share a sum. Each adds its part in two halves, and others may add theirs in
between. A worker that dies in between leaves half of its part in the sum. The simulation never lets
two workers add to the same element at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotmpi.arrays.backend import HOST, Buffer, backend_of
from spotmpi.fabric import AddUp
from spotmpi.fabric.sim.workers import LATER, Process, Workers
from spotmpi.protocol.membership import WorkerId

__all__ = ["Sums"]

_Flats = list[Any]
"""Arrays in the memory of the host."""


class Sums:
    """All such sums of one simulation."""

    def __init__(self, workers: Workers, host_of: Callable[[WorkerId], int]) -> None:
        self._time, self._workers = workers.time, workers
        self.host_of = host_of
        """Returns the host of a worker."""
        self._sums: dict[tuple[int, int], _Flats] = {}
        """Sums by round and host."""
        self._within: dict[tuple[int, WorkerId], _Flats] = {}
        """What each worker has in the sum of each round."""

    def neighbours(self, me: WorkerId) -> Sequence[WorkerId]:
        """Return the members on this worker's host, itself included."""
        process = self._workers.processes[me]
        assert process.data is not None
        here = self.host_of(me)
        return [one for one in process.data.members if self.host_of(one) == here]

    def add_up(self, me: WorkerId, process: Process, asked: AddUp) -> Any:
        """Perform `AddUp`."""
        many = len(set(asked.among) & set(self.neighbours(me)))
        if many < 2:
            return self._workers.reply(me, 1)
        self._time.after(self._time.delays.message, self._add, me, asked, many, False)
        return LATER

    def move_on(self) -> None:
        """Forget all sums. All are about to begin another training; none adds before all have."""
        self._sums.clear()
        self._within.clear()

    def _add(self, me: WorkerId, asked: AddUp, many: int, second: bool) -> None:
        if me not in self._workers.processes:
            return
        place = asked.round, self.host_of(me)
        sums = self._sums.setdefault(place, _zeros(asked.part))
        within = self._within.setdefault((me, asked.round), _zeros(asked.part))
        for one, before, part, total in zip(sums, within, asked.part, asked.total, strict=True):
            half = len(one) // 2
            which = slice(half, None) if second else slice(half)
            new, target = backend_of(part).to_host(part), backend_of(total).to_host(total)
            one[which] += new[which] - before[which]
            before[which] = new[which]
            target[which] = one[which]
            backend_of(total).from_host(total, target)
        if second:
            self._workers.reply(me, many)
        else:
            self._time.after(self._time.delays.message, self._add, me, asked, many, True)


def _zeros(flats: Sequence[Buffer]) -> _Flats:
    described = (backend_of(flat).describe(flat) for flat in flats)
    return [HOST.zeros(dtype, size) for dtype, (size,) in described]
