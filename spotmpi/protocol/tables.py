"""Tables in which each worker tells some numbers with a round: sums of float64, to which each adds
one row of its own, so all read what each has said. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.protocol.membership import WorkerId

__all__ = ["MOST", "check_room", "rows", "words", "write"]

MOST = 1024
"""Workers that a table has room for."""


def words(numbers: int) -> int:
    """Of a table in which each worker tells so many numbers beside its name."""
    return MOST * (1 + numbers)


def check_room(workers: int) -> None:
    """Raises UsageError if there are more than a table has room for."""
    if workers > MOST:
        raise UsageError(
            f"there are {workers} workers, and with an asynchronous strategy, or with a policy, "
            f"there may be at most {MOST}: start fewer, or choose a synchronous strategy, such as "
            "LocalSGD"
        )


def write(table: Any, place: int, worker: WorkerId, told: Sequence[float]) -> None:
    """Make the table one with what this worker tells, or with nothing if that is nothing. No two
    workers have one ``place``."""
    table[...] = 0
    if not told:
        return
    check_room(place + 1)
    begin = (1 + len(told)) * place
    table[begin : begin + 1 + len(told)] = [worker + 1, *told]


def rows(table: Any) -> list[tuple[WorkerId, list[float]]]:
    """What the sum of all tables says, in the order of the workers' places."""
    found = table.reshape(MOST, -1)
    return [(int(row[0]) - 1, row[1:]) for row in found[found[:, 0] > 0].tolist()]
