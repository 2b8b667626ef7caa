"""Tables in which each worker tells some numbers with a round. Pure.

A table is an array of float64. Each worker fills one row of its own, so the sum of all tables holds
what each has told. How many rows there are follows from the last round, of which all know the same:
some workers may open the next round before they hear of a death, and others after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.protocol.membership import WorkerId

__all__ = ["MOST", "check_room", "read", "rows_after", "write"]

MOST = 1024
"""Most workers that a table has room for."""


def rows_after(workers: int) -> int:
    """Return how many rows a table has after a round of so large a number of ``workers``: one for
    each, and one for a worker that has come since."""
    return min(MOST, 1 << workers.bit_length())


def check_room(workers: int) -> None:
    """Raise UsageError if there are more workers than a table has room for."""
    if workers > MOST:
        raise UsageError(
            f"there are {workers} workers, and with an asynchronous strategy, or with a policy, "
            f"there may be at most {MOST}: start fewer, or choose a synchronous strategy, such as "
            "LocalSGD"
        )


def write(table: Any, place: int, worker: WorkerId, told: Sequence[float]) -> None:
    """Make the table hold only what this worker tells, or zeros if it tells nothing. No two
    workers have one ``place``. UsageError if the table has no room for it."""
    table[...] = 0
    if not told:
        return
    check_room(place + 1)
    begin = (1 + len(told)) * place
    table[begin : begin + 1 + len(told)] = [worker + 1, *told]


def read(table: Any, width: int) -> list[tuple[WorkerId, list[float]]]:
    """Return what each worker told, in the order of their places, from the sum of all tables.
    ``width``: the numbers of a row, with the worker's id."""
    found = table.reshape(-1, width)
    return [(int(row[0]) - 1, row[1:]) for row in found[found[:, 0] > 0].tolist()]
