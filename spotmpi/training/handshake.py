"""Before the first round: every worker must have come with the same model and the same settings.

Until all buffers are known to have one size, nothing else may be reduced: two sizes in one
collective are undefined in MPI. The handshake's own size depends on nothing that may differ.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from spotmpi.errors import PeersLost, SpotmpiError, UsageError
from spotmpi.fabric import Arena, Reduce, Revoke, Shape, Steps
from spotmpi.protocol.membership import Membership, WorkerId


def shake_hands(
    me: WorkerId,
    membership: Membership,
    facts: Sequence[tuple[str, str]],
    arena: Callable[[Sequence[Shape]], Arena],
) -> Steps[None]:
    """Compare ``facts`` (what it is, this worker's value) with everybody's. Collective.

    Raises UsageError, on all workers alike, naming the first worker that differs from worker 0 and
    in what. A loss in here ends the job cleanly: nothing has been trained that could be kept.
    """
    mine = [zlib.crc32(value.encode()) for _, value in facts]
    halves = [half for checksum in mine for half in divmod(checksum, 1 << 16)]
    many, size = len(membership), len(halves)
    sums = yield from _total(me, [*halves, *(half * half for half in halves)], arena)
    # n numbers are equal if and only if n times the sum of their squares is the square of their
    # sum. All of it is exact: squares of 16 bits have 32, and float64 adds 2^20 of those.
    if all(many * int(sums[size + i]) == int(sums[i]) ** 2 for i in range(size)):
        return
    # Now a row for each worker may be worth its place. Each has one addend that is not zero.
    rank = membership.rank(me)
    before, after = rank * len(facts), (many - rank - 1) * len(facts)
    everybody = yield from _total(me, [*[0] * before, *mine, *[0] * after], arena)
    for rank in range(many):
        for column, (name, value) in enumerate(facts):
            if everybody[rank * len(facts) + column] != everybody[column]:
                raise _differ(membership.ids[rank], membership.ids[0], name, me, value)


def _total(
    me: WorkerId, numbers: Sequence[int], arena: Callable[[Sequence[Shape]], Arena]
) -> Steps[list[float]]:
    table = arena([Shape("float64", len(numbers))])
    table.contributions[0][...] = numbers
    try:
        yield Reduce(table.parts)
    except PeersLost:
        yield Revoke()
        raise SpotmpiError(
            f"worker {me}: another worker was lost before the first step; "
            "nothing is trained yet: start again"
        ) from None
    sums: list[float] = table.results[0].tolist()
    return sums


def check_facts(
    me: WorkerId, theirs: WorkerId, facts: Sequence[tuple[str, str]], known: Sequence[str]
) -> None:
    """The same for a newcomer, with the values ``known`` to a worker that trains. Local."""
    for (name, value), other in zip(facts, known, strict=True):
        if value != other:
            raise _differ(me, theirs, name, me, value)


def _differ(one: WorkerId, other: WorkerId, name: str, me: WorkerId, value: str) -> UsageError:
    return UsageError(
        f"worker {one} and worker {other} differ in {name} (worker {me} has {value}): all workers "
        "must run the same script with the same arguments, on the same version of spotmpi"
    )
