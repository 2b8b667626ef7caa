"""Tables in which each worker tells some numbers with a round. Pure.

A table is an array of float64. Each worker fills one row of its own, so the sum of all tables holds
what each has told. All tables of a round have as many rows. So the number of rows follows from who
took part in the last committed round, and not from who is there now: some workers hear of a death
before they open the next round, and others after that.
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
    """Return the number of rows of a table, if this number of ``workers`` took part in the last
    round: at least one for each of them, and one for a newcomer."""
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
