"""Sums of arrays that lie in no memory which all members share: small ones by rows, others by MPI.

A row is a piece of a worker's header (`SharedHeader`). Each worker copies what it brings to a row
of its own, sleeps until all have, and adds up all rows. MPI waits without sleep, and several times
for a sum: beside busy processes each wait costs a worker its share of the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from spotmpi.arrays.backend import HOST, Buffer, backend_of
from spotmpi.arrays.sums_of_hosts import add_up
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.neighbours.shared_header import ROW
from spotmpi.fabric.planes.host_barrier import HostBarrier
from spotmpi.fabric.planes.plane import Part, Sum

__all__ = ["UnsharedSums"]

_UNIT = 8
"""Arrays in a row begin at multiples of as many bytes."""


class UnsharedSums:
    """One worker's side. Sums by rows are in the order of the members, the same bits on all.

    A worker has two rows, which take turns. Who fills a row again has met all others in between, so
    nobody reads it any more.
    """

    def __init__(self, neighbours: Neighbours, barrier: HostBarrier, total: Sum) -> None:
        """``total`` sums by MPI."""
        self._neighbours = neighbours
        self._barrier = barrier
        self._total = total
        self._begun = 0
        """How many sums by rows this worker has begun among these members."""
        self._rows: list[list[Buffer]] = []
        """The first rows of all members, and the second ones; empty: MPI sums all."""

    def bind(self) -> None:
        """Have MPI sum all from now on, until `use_rows`: there are other members."""
        self._begun, self._rows = 0, []

    def use_rows(self) -> None:
        """Sum small arrays by rows from now on. All members do this between the same two sums: when
        they are known to be on this host, and to have loaded Numba."""
        present = self._neighbours.present
        if not self._rows and len(present) > 1:
            self._rows = [[header.row(turn) for header in present] for turn in range(2)]

    def sum(self, parts: Sequence[Part]) -> None:
        """Sum these over all members, who give the same ones in the same order. Collective,
        blocking; raises PeersLost."""
        for part in parts:
            if part.narrowing is not None:
                part.narrowing.begin([])
        ends = [0, *accumulate(-(-part.result.nbytes // _UNIT) * _UNIT for part in parts)]
        if self._rows and 0 < ends[-1] <= ROW:
            self._sum_by_rows(parts, ends)
        else:
            self._total(parts)

    def _sum_by_rows(self, parts: Sequence[Part], ends: Sequence[int]) -> None:
        """Sum parts that begin in a row at these bytes."""
        self._begun += 1
        rows, place = self._rows[self._begun % 2], self._neighbours.place
        for start, part in zip(ends, parts, strict=False):
            _bring(part, _room(rows[place], start, part))
        number = self._neighbours.bindings << 32 | self._begun
        self._barrier.all_bring(self._neighbours.present[place], number)
        for start, part in zip(ends, parts, strict=False):
            _take([_room(row, start, part) for row in rows], part)


def _room(row: Buffer, start: int, part: Part) -> Buffer:
    """Return the array for ``part`` that begins at this byte of a row."""
    return row[start : start + part.result.nbytes].view(part.result.dtype)


def _bring(part: Part, room: Buffer) -> None:
    """Write what this worker adds to the sum of a part to ``room``."""
    if not part.weight:
        HOST.fill(room, 0)
        return
    backend = backend_of(part.contribution)
    brought = part.contribution if backend is HOST else backend.to_host(part.contribution)
    if part.weight != 1.0:
        HOST.kernels.scaled_sum(room, [brought], [part.weight])
    else:
        room[:] = brought


def _take(brought: Sequence[Buffer], part: Part) -> None:
    """Write the sum of what all have ``brought`` to a part's result."""
    backend = backend_of(part.result)
    if backend is HOST:
        add_up(brought, part.result)
    else:
        total = HOST.zeros(str(part.result.dtype), len(brought[0]))
        add_up(brought, total)
        backend.from_host(part.result, total)
