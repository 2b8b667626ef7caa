"""The small model of simulated trainings, and how what workers bring of it is summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spotmpi.arrays.narrowing import Narrowing, narrowed_sum
from spotmpi.protocol.host_ring import RING, orders
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices

__all__ = [
    "LARGE",
    "RATE",
    "SEVERAL",
    "SMALL",
    "Array",
    "Sums",
    "Way",
    "cut",
    "first_params",
    "gradient",
    "whose",
]

SMALL, LARGE = 6, 16_400
"""Parameters: so few that runs are quick, and so many that newcomers learn them in two parts."""
SEVERAL = 99
"""So many that several workers of several hosts have something to narrow."""
_DISTINCT = 6
"""Parameters that have gradients of their own; the others' are theirs again."""
RATE = 0.125

Array = npt.NDArray[np.float32]

_PULLS = np.random.default_rng(1).standard_normal((1021, _DISTINCT)).astype(np.float32)
"""Where samples pull the parameters to: so many differ, which is more than one worker is dealt."""


def first_params(worker: WorkerId, size: int) -> Array:
    """What ``worker`` brings: one worker's count, and it can be told whose."""
    return np.full(size, worker / 4, np.float32)


def whose(params: Array) -> WorkerId:
    """Who brought them, if they are anybody's `first_params`."""
    return int(params[0] * 4)


def gradient(params: Array, batch: Indices) -> Array:
    """Depends on every bit of the parameters, and on which samples are in the batch."""
    mean: Array = np.add.reduce(_PULLS[batch % len(_PULLS)], axis=0) / np.float32(len(batch))
    if len(params) > _DISTINCT:
        mean = np.resize(mean, len(params))
    mean += np.float32(0.25) * params
    return mean


def cut(whole: Array, arrays: int) -> list[Array]:
    """As so many arrays, which share its memory."""
    return np.array_split(whole, arrays)


class Way(NamedTuple):
    """How the sums of a step went between hosts."""

    hosts: Sequence[Sequence[WorkerId]]
    names: Sequence[str]
    """Of each array, the last one first."""
    form: str | None
    """They were narrowed like this."""


class Sums:
    """Sums of what workers brought, array by array, and what they have kept of narrowed ones."""

    def __init__(self, arrays: int) -> None:
        """Of so many arrays."""
        self._arrays = arrays
        self._rests: dict[tuple[WorkerId, int], Narrowing] = {}

    def of(
        self, brought: Mapping[WorkerId, Array], way: Way | None, buckets: Sequence[int] = ()
    ) -> Array:
        """In the order of the workers; or from host to host, and narrowed there. ``buckets``: of
        these alone, which hold an array each, the last one first."""
        if way is None:
            return _in_order(np.stack([*brought.values()]))
        found = np.zeros_like(next(iter(brought.values())))
        for place, bucket in enumerate(buckets or range(self._arrays)):
            number = self._arrays - 1 - bucket
            parts = {one: cut(whole, self._arrays)[number] for one, whole in brought.items()}
            total = cut(found, self._arrays)[number]
            if way.form is not None:
                total[:] = self._narrowed(number, total, parts, way)
            elif way.names[place] == RING:
                total[:] = _in_rings(parts, way.hosts)
            else:
                sums = [[parts[one] for one in host if one in parts] for host in way.hosts]
                total[:] = _in_order([_in_order(flats) for flats in sums if flats])
        return found

    def _narrowed(
        self, number: int, like: Array, brought: Mapping[WorkerId, Array], way: Way
    ) -> Array:
        assert way.form is not None
        members = [one for host in way.hosts for one in host]
        for one in members:
            zeros = np.zeros_like(like), np.zeros_like(like)
            self._rests.setdefault((one, number), Narrowing(way.form, *zeros))
        taken = {one: self._rests[one, number] for one in members}
        found: Array = narrowed_sum(brought, way.hosts, taken)
        for rest in taken.values():
            rest.turn()
        return found


def _in_order(flats: Sequence[Array] | Array) -> Array:
    """Not a sum over the axis, whose order would be NumPy's."""
    found: Array = np.add.accumulate(np.asarray(flats), axis=0)[-1]
    return found


def _in_rings(brought: Mapping[WorkerId, Array], hosts: Sequence[Sequence[WorkerId]]) -> Array:
    found = np.empty_like(next(iter(brought.values())))
    for piece, order in orders(len(found), [len(host) for host in hosts]):
        workers = [one for which in order for one in hosts[which] if one in brought]
        found[piece] = _in_order([brought[one][piece] for one in workers])
    return found
