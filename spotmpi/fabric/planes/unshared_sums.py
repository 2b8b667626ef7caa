"""Sums of arrays that lie in no memory which all members share: small ones by rows, others by MPI.

A row is a piece of a worker's header (`SharedHeader`). Each worker copies what it brings to a row
of its own, sleeps until all have, and adds up all rows. MPI waits without sleep, and several times
for a sum: beside busy processes each wait costs a worker its share of the core.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from spotmpi.arrays.backend import HOST, Buffer, backend_of, in_host_memory
from spotmpi.arrays.sums_of_hosts import add_up
from spotmpi.fabric.neighbours.neighbours import Neighbours
from spotmpi.fabric.neighbours.shared_header import ROW
from spotmpi.fabric.planes.host_barrier import HostBarrier
from spotmpi.fabric.planes.plane import Part, Sum

__all__ = ["UnsharedSums", "bring", "ends_in_row"]

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
        if self._rows:
            brought = [in_host_memory(part.contribution) for part in parts]
            ends = ends_in_row(brought)
            if 0 < ends[-1] <= ROW:
                self._sum_by_rows(parts, brought, ends)
                return
        self._total(parts)

    def _sum_by_rows(
        self, parts: Sequence[Part], brought: Sequence[Buffer], ends: Sequence[int]
    ) -> None:
        """Sum parts to which this worker has ``brought`` these arrays of the host. In a row they
        begin at these bytes."""
        self._begun += 1
        rows, place = self._rows[self._begun % 2], self._neighbours.place
        rooms = [
            [row[start : start + one.nbytes].view(one.dtype) for row in rows]
            for start, one in zip(ends, brought, strict=False)
        ]
        for part, one, room in zip(parts, brought, rooms, strict=True):
            bring(one, part.weight, room[place])
        number = self._neighbours.bindings << 32 | self._begun
        self._barrier.all_bring(self._neighbours.present[place], number)
        for part, room in zip(parts, rooms, strict=True):
            _add_up(room, part.result)


def ends_in_row(arrays: Sequence[Buffer]) -> list[int]:
    """Return the bytes at which these begin in a row, one after the other; and where the row ends,
    a multiple of 8."""
    return [0, *accumulate(-(-one.nbytes // _UNIT) * _UNIT for one in arrays)]


def bring(brought: Buffer, weight: float, room: Buffer) -> None:
    """Write what a worker adds to a sum, ``weight`` times what it ``brought``, to ``room``. Both
    are in the memory of the host, and may be the same. With weight 0 anything may be brought."""
    if not weight:
        HOST.fill(room, 0)
    elif weight != 1.0:
        HOST.kernels.scaled_sum(room, [brought], [weight])
    elif brought is not room:
        HOST.from_host(room, brought)


def _add_up(brought: Sequence[Buffer], result: Buffer) -> None:
    """Write the sum of what all have ``brought`` to ``result``."""
    backend = backend_of(result)
    if backend is HOST:
        add_up(brought, result)
    else:
        total = brought[0].copy()
        add_up(brought, total)
        backend.from_host(result, total)
