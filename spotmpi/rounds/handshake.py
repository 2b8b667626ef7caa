"""Before the first step: a check that all workers have the same model and the same settings.

Nothing else may be reduced until all buffers are known to have one size: two sizes in one
collective are undefined in MPI. The size of these rounds depends on nothing that may differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from spotmpi.errors import UsageError
from spotmpi.fabric import Shape
from spotmpi.protocol import control_word
from spotmpi.protocol.control_word import ControlSum
from spotmpi.protocol.membership import WorkerId
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.round import Round, Taken

__all__ = ["LIBRARY", "Compare", "Facts", "Tell", "check_facts"]

LIBRARY = "the library that their arrays are of"
"""Name of the fact that differs on a worker that came without a GPU."""

_ADVICE = {
    LIBRARY: "start workers only where there is a GPU, or have the script use NumPy on all of them"
}
_USUAL = (
    "all workers must run the same script with the same arguments, on the same version of spotmpi"
)

Facts = Sequence[tuple[str, str]]
"""What must be equal: pairs of a name and this worker's value."""


class Compare(Round):
    """A round that compares the facts of all workers. Its size does not depend on their number."""

    kind = control_word.MEAN
    obeys = levels = False

    def __init__(self, memory: RoundMemory, facts: Facts) -> None:
        super().__init__(memory)
        self._halves = [half for one in _checksums(facts) for half in divmod(one, 1 << 16)]
        memory.expect(Shape("float64", 2 * len(self._halves)))
        self.differing: tuple[WorkerId, ...] = ()
        """All workers of the round, if the facts of any of them differ; else none."""

    def bring(self) -> None:
        """Bring the halves of checksums, and their squares."""
        halves = self._halves
        self.memory.alone.contributions[0][:] = [*halves, *(half * half for half in halves)]

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Compare the sums. n numbers are equal if and only if n times the sum of their squares is
        the square of their sum. All of it is exact: squares of 16 bits have 32, and float64 adds
        2^20 of those."""
        sums: list[float] = self.memory.alone.record[0].tolist()
        size, many = len(self._halves), len(full)
        if any(many * int(sums[size + i]) != int(sums[i]) ** 2 for i in range(size)):
            self.differing = tuple(full)
        return None


class Tell(Round):
    """A round that tells which worker differs, and in what. It has a row for each worker."""

    kind = control_word.MEAN
    obeys = levels = False

    def __init__(
        self, memory: RoundMemory, facts: Facts, me: WorkerId, workers: Sequence[WorkerId]
    ) -> None:
        super().__init__(memory)
        self._facts, self._me, self._workers = facts, me, workers
        memory.expect(Shape("float64", len(workers) * len(facts)))

    def bring(self) -> None:
        """Bring this worker's row, with zeros in the others' place."""
        super().bring()
        begin = self._workers.index(self._me) * len(self._facts)
        row = self.memory.alone.contributions[0][begin : begin + len(self._facts)]
        row[:] = _checksums(self._facts)

    def commit(
        self, number: int, full: Sequence[WorkerId], word: ControlSum, page: Any
    ) -> Taken | None:
        """Raise UsageError, on all alike, that names the first worker unlike the first of all."""
        table, width = self.memory.alone.record[0].tolist(), len(self._facts)
        rows = {
            worker: table[rank * width : (rank + 1) * width]
            for rank, worker in enumerate(self._workers)
            if worker in full  # others have died since
        }
        first = next(iter(rows))
        for worker, row in rows.items():
            for column, (name, value) in enumerate(self._facts):
                if row[column] != rows[first][column]:
                    raise _differ(worker, first, name, self._me, value)
        return None


def _checksums(facts: Facts) -> list[int]:
    return [zlib.crc32(value.encode()) for _, value in facts]


def check_facts(me: WorkerId, theirs: WorkerId, facts: Facts, known: Sequence[str]) -> None:
    """Raise UsageError if a newcomer's facts differ from those ``known`` to ``theirs``. Local."""
    for (name, value), other in zip(facts, known, strict=True):
        if value != other:
            raise _differ(me, theirs, name, me, value)


def _differ(one: WorkerId, other: WorkerId, name: str, me: WorkerId, value: str) -> UsageError:
    return UsageError(
        f"worker {one} and worker {other} differ in {name} (worker {me} has {value}): "
        + _ADVICE.get(name, _USUAL)
    )
