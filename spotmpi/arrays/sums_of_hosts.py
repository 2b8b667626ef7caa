"""The sums that travel between hosts, to the bit, worked out in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spotmpi.arrays.backend import Buffer, without_warnings
from spotmpi.protocol.host_ring import RING, orders
from spotmpi.protocol.membership import WorkerId

__all__ = ["add_up", "sum_of_hosts"]


def sum_of_hosts(
    brought: Mapping[WorkerId, Buffer], hosts: Sequence[Sequence[WorkerId]], way: str
) -> Buffer:
    """Return the sum of what was ``brought``, as it goes this ``way`` between ``hosts``. At least
    one worker brought an array. Workers that brought nothing are left out of it."""
    out = next(iter(brought.values())).copy()
    each = [[brought[one] for one in host if one in brought] for host in hosts]
    if way == RING:
        for piece, order in orders(len(out), [len(host) for host in hosts]):
            inputs = [flat[piece] for which in order for flat in each[which]]
            # A host without contributions begins with zeros.
            add_up(inputs, out[piece], zeros=not each[order[0]])
        return out
    sums = []
    for flats in each:
        sums.append(total := out.copy())
        add_up(flats, total, zeros=not flats)
    add_up(sums, out)
    return out


def add_up(inputs: Sequence[Buffer], out: Buffer, zeros: bool = False) -> None:
    """out = the sum of all inputs, from left to right. ``zeros``: True if it begins with zeros."""
    if zeros:
        out[:] = 0
    else:
        out[:] = inputs[0]
    with without_warnings():  # as sums by MPI and by kernels, which say nothing of infinity
        for one in inputs if zeros else inputs[1:]:
            out += one
