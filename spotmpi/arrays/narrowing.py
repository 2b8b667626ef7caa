"""Sums that are narrowed between hosts: what each worker keeps of what that took away.

A worker that passes a sum on in a narrow format keeps what the format took away, its *rest*, and
adds it to what it sums next at these elements. So nothing is lost for good while it lives: all
results and all rests together are all that was brought. The rest is the worker's own and goes with
it; who is new has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spotmpi.arrays.backend import HOST, Buffer
from spotmpi.kernels.reference import FORMATS, NARROWED_BLOCK, narrowed_bytes
from spotmpi.protocol.host_ring import carried, carriers
from spotmpi.protocol.membership import WorkerId

__all__ = ["FORMATS", "NARROWED", "NARROWED_BLOCK", "Narrowing", "narrowed_bytes", "narrowed_sum"]

NARROWED = "float32"
"""The dtype that is narrowed."""


class Narrowing:
    """How one array is narrowed, and the rest that this worker has of it. Local.

    What is summed may be given up and summed again. So rests are made beside those that hold, and
    take their place when the sum is committed.
    """

    def __init__(self, form: str, rest: Buffer, following: Buffer) -> None:
        self.form = form
        self.rest = rest
        """What the sum begins with."""
        self.following = following
        """What becomes of it: wherever this worker narrows nothing, the same."""
        self.parts: list[slice] = []
        """Where the two may differ: what this worker narrows."""

    def warm(self) -> None:
        """Load what narrows, so that nobody waits for that in a round."""
        room = HOST.zeros("uint8", narrowed_bytes(NARROWED_BLOCK, self.form))
        HOST.kernels.widen(HOST.zeros(NARROWED, NARROWED_BLOCK), room, self.form)

    def begin(self, parts: Sequence[slice]) -> None:
        """A sum begins, or begins again, in which this worker narrows these parts, all of them, or
        nothing at all."""
        if list(parts) == self.parts:
            return
        for part in self.parts:
            HOST.from_host(self.following[part], self.rest[part])
        self.parts = list(parts)

    def turn(self) -> None:
        """The last sum is committed."""
        self.rest, self.following = self.following, self.rest


def narrowed_sum(
    brought: Mapping[WorkerId, Buffer],
    hosts: Sequence[Sequence[WorkerId]],
    narrowings: Mapping[WorkerId, Narrowing],
) -> Buffer:
    """What the rings between ``hosts`` make of what was ``brought``, all in one place.

    Who brought nothing may be left out of it. ``narrowings``: of all workers of the hosts; what
    follows on them is written, and is to be turned once the sum is committed.
    """
    size = len(next(iter(narrowings.values())).rest)
    workers = [len(host) for host in hosts]
    total = HOST.zeros(NARROWED, size)
    for which, host in enumerate(hosts):
        for place, worker in enumerate(host):
            narrowings[worker].begin(carried(size, workers, which, place))
    for part, hops in carriers(size, workers):
        came = None
        for which, place in hops:
            own = narrowings[hosts[which][place]]
            wire = HOST.zeros("uint8", narrowed_bytes(part.stop - part.start, own.form))
            inputs = [brought[one][part] for one in hosts[which] if one in brought]
            HOST.kernels.narrow_sum(
                wire,
                total[part],
                own.following[part],
                own.rest[part],
                came,
                inputs,
                [1.0] * len(inputs),
                own.form,
            )
            came = wire
    return total
