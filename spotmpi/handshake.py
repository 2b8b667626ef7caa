"""Before the first round: every worker must have come with the same model and the same settings.

Until all buffers are known to have one size, nothing else may be reduced: two sizes in one
collective are undefined in MPI. The handshake's own size follows from the number of workers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from spotmpi.errors import PeersLost, SpotmpiError, UsageError
from spotmpi.fabric import Arena, Reduce, Revoke, Shape, Steps
from spotmpi.membership import Membership, WorkerId


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
    # A checksum of 32 bits is exact in a float64, and the sum has one addend that is not zero.
    table = arena([Shape("float64", len(membership) * len(facts), host=True)])
    mine = [float(zlib.crc32(value.encode())) for _, value in facts]
    begin = membership.rank(me) * len(facts)
    table.contributions[0][begin : begin + len(facts)] = mine
    try:
        yield Reduce(table.parts)
    except PeersLost:
        yield Revoke()
        raise SpotmpiError(
            f"worker {me}: another worker was lost before the first step; "
            "nothing is trained yet: start again"
        ) from None
    everybody = table.results[0].tolist()
    for rank in range(len(membership)):
        for column, (name, value) in enumerate(facts):
            if everybody[rank * len(facts) + column] != everybody[column]:
                raise _differ(membership.ids[rank], membership.ids[0], name, me, value)


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
