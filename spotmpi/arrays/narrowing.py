"""Sums that are narrowed between hosts, and what each worker keeps of them: its rest.

A worker that passes a sum on in a narrow format keeps what the format took away, its *rest*. It
adds the rest to its next sum of these elements. So nothing is lost for good while the worker lives:
all results and all rests together are all contributions. The rest is the worker's own and goes with
it. A newcomer has none.
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

    A sum may be given up and made again. So new rests are made beside the valid ones, and take
    their place when the sum is committed.
    """

    def __init__(self, form: str, rest: Buffer, following: Buffer) -> None:
        self.form = form
        self.rest = rest
        """The rest that the sum begins with."""
        self.following = following
        """The rest after the sum: the same wherever this worker narrows nothing."""
        self.parts: list[slice] = []
        """The elements that this worker narrows: only there the two rests may differ."""

    def warm(self) -> None:
        """Load the code that narrows, so that nobody waits for it in a round."""
        room = HOST.zeros("uint8", narrowed_bytes(NARROWED_BLOCK, self.form))
        HOST.kernels.widen(HOST.zeros(NARROWED, NARROWED_BLOCK), room, self.form)

    def begin(self, parts: Sequence[slice]) -> None:
        """Begin a sum, or begin it again. In it this worker narrows all of these parts, or nothing
        at all."""
        if list(parts) == self.parts:
            return
        for part in self.parts:
            HOST.from_host(self.following[part], self.rest[part])
        self.parts = list(parts)

    def turn(self) -> None:
        """Take the following rest for the next sum: the last sum is committed."""
        self.rest, self.following = self.following, self.rest


def narrowed_sum(
    brought: Mapping[WorkerId, Buffer],
    hosts: Sequence[Sequence[WorkerId]],
    narrowings: Mapping[WorkerId, Narrowing],
) -> Buffer:
    """Return what the rings between ``hosts`` make of what was ``brought``, all in one place.

    Workers that brought nothing may be missing in ``brought``. ``narrowings``: one of each worker
    of the hosts. Their following rests are written: `turn` them once the sum is committed.
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
