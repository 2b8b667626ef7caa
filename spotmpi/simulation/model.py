"""The small model of simulated trainings, and what a step makes of it, worked out on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spotmpi.arrays.narrowing import Narrowing, narrowed_sum
from spotmpi.optimizers import Momentum
from spotmpi.protocol.host_ring import RING, orders
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices

__all__ = [
    "LARGE",
    "RATE",
    "SEVERAL",
    "SMALL",
    "Array",
    "Model",
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


class Model:
    """Parameters that follow the steps of a training, without any of its code but the optimizer."""

    def __init__(self, params: Array, arrays: int = 1) -> None:
        """Of so many arrays, which are one to the model."""
        self.params = params.copy()
        self._arrays = arrays
        self._velocity = np.zeros_like(params)
        self._optimizer = Momentum(lr=RATE)
        self._rests: dict[tuple[WorkerId, int], Narrowing] = {}
        """What workers have kept of narrowed sums, array by array."""

    @property
    def replicated(self) -> list[Array]:
        """What must be equal on all workers, in the order in which replicas have it in buckets, of
        which each holds one array, and the last array comes first."""
        both = self.params, self._velocity
        return [one for each in both for one in cut(each, self._arrays)[::-1]]

    def step(self, gradients: Sequence[Array], weights: Sequence[int], rate: float) -> None:
        """Move by the mean of the gradients, which are summed in this order."""
        if sum(weights):
            self._move(_in_order(_scaled(gradients, weights)), sum(weights), rate)

    def step_between(
        self,
        gradients: Sequence[Array],
        weights: Sequence[int],
        rate: float,
        workers: Sequence[WorkerId],
        way: Way,
    ) -> None:
        """The same of these workers, whose sums go from host to host, and are narrowed there."""
        if not sum(weights):
            return
        scaled = dict(zip(workers, _scaled(gradients, weights), strict=True))
        found = []
        for number, like in enumerate(cut(self.params, self._arrays)):
            brought = {one: cut(whole, self._arrays)[number] for one, whole in scaled.items()}
            if way.form is not None:
                found.append(self._narrowed(number, like, brought, way))
            elif way.names[-1 - number] == RING:
                found.append(_in_rings(brought, way.hosts))
            else:
                sums = [[brought[one] for one in host if one in brought] for host in way.hosts]
                found.append(_in_order([_in_order(flats) for flats in sums if flats]))
        self._move(np.concatenate(found), sum(weights), rate)

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

    def _move(self, summed: Array, total: int, rate: float) -> None:
        slots = {"velocity": [self._velocity]}
        self._optimizer.update([self.params], [summed], slots, rate, 1.0 / total)


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


def _scaled(gradients: Sequence[Array], weights: Sequence[int]) -> Array:
    scaled: Array = np.stack(gradients) * np.array(weights, np.float32)[:, None]
    return scaled
