"""A sampler for `DistributedDataParallel` scripts. What lost workers had left, the others use."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from spotmpi.errors import UsageError
from spotmpi.torch.dealing import Deal, Samples
from spotmpi.torch.passes import DealtPass, Way
from spotmpi.torch.process_group import the_group

__all__ = ["ElasticSampler"]


class ElasticSampler(DistributedSampler):  # type: ignore[misc]  # torch has no types for it
    """Deals a dataset's samples to the workers that live, as `DistributedSampler` of torch does.
    What a lost worker did not use, the others use in the same pass.

    A sample is used by the sum of gradients, in a backward pass of `DistributedDataParallel`, that
    follows its batch. Each worker has the same number of samples, and must have the same size of
    batch. So for each loss, and for each pass, a few samples are used twice; with ``drop_last`` by
    nobody instead. No batch has a single sample, which many modules cannot train with: a sample
    comes with it, or with ``drop_last`` it is left out.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """As torch's. ``num_replicas`` and ``rank``: those of the process group, or None."""
        self._known: tuple[tuple[int, ...], int] = (0,), 0
        workers, me = self._workers()
        size = dist.get_world_size() if dist.is_initialized() else 1
        if num_replicas not in (None, size) or rank not in (None, me):
            raise UsageError(
                f"ElasticSampler deals to the process group's workers: num_replicas={num_replicas} "
                f"and rank={rank} are not {size} and {me}; leave them out"
            )
        super().__init__(dataset, len(workers), workers.index(me), shuffle, seed, drop_last)
        self.next_pass: DealtPass | None = None
        """The pass of which a loader draws next, which says what it gives."""

    def begin(
        self, batch: int | None, way: Way | None = None, left: Samples | None = None
    ) -> DealtPass:
        """Begin a pass. ``batch``: the size of a batch, of a loader that says what it gives;
        ``way``: that one. ``left``: what is left of one in which the job was stopped."""
        workers, me = self._workers()
        many = len(self.dataset)
        samples = np.arange(many) if left is None else left
        if self.shuffle and left is None:
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
            samples = torch.randperm(many, generator=generator).numpy()
        one = DealtPass(Deal(samples, workers, whole=not self.drop_last), me, batch)
        group = the_group()
        if group is not None:
            group.entrance.passes.begin(one, way)
        return one

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of this worker in one pass, or those that are left of it."""
        return self._drawn_alone() if self.next_pass is None else iter(self.next_pass)

    def _drawn_alone(self) -> Iterator[int]:
        """Yield those of a pass without a loader that says what it gives."""
        one = self.begin(None)
        try:
            yield from one
        finally:
            if (group := the_group()) is not None:
                group.entrance.passes.end(one)

    def __len__(self) -> int:
        """Return the number of samples that each worker has in a pass that begins now."""
        there = len(self.dataset) / len(self._workers()[0])
        return math.floor(there) if self.drop_last else math.ceil(there)

    def _workers(self) -> tuple[tuple[int, ...], int]:
        """Return the workers that live, and this one; after the group's end those of the end."""
        group = the_group()
        if group is not None:
            self._known = group.collectives.alive, group.rank()
        elif dist.is_initialized():
            self._known = tuple(range(dist.get_world_size())), dist.get_rank()
        return self._known
