"""A job for the simulator: a script goes through loaders of Accelerate, which read a batch ahead,
with rounds as torch has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import spotmpi
from spotmpi.torch import loaders
from spotmpi.torch.collectives import Collectives
from spotmpi.torch.newcomers import Entrance
from spotmpi.torch.torch_rounds import Rounds
from tests.simulated import Final, Job
from tests.torch.dealt_job import PASSES, SAMPLES, Numbers

__all__ = ["Shards", "ahead"]

_iterate = getattr(DataLoader.__iter__, "__wrapped__", DataLoader.__iter__)
"""Torch's own: `following` may have replaced it."""


def ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield each batch once the next one has been read."""
    there = [*[next(batches)]]
    for batch in batches:
        there.append(batch)
        yield there.pop(0)
    yield there.pop()


@dataclass(frozen=True)
class Shards(Job):
    """A script that goes through its samples again and again, and tests in between."""

    strays: bool = False
    """True if newcomers do not test."""

    def script(self, worker: int) -> Final:
        """Each step moves the model by what depends on all workers' batches, and on the model.
        ``means`` are the samples that nobody has used."""
        used: Counter[Any] = Counter()
        numbers, stopped, began = Numbers(worker), False, 0
        missed = ()
        try:
            with Rounds(numbers) as rounds:
                calls = Collectives(rounds, self.workers)
                entrance = Entrance(calls)
                loop = loaders.following(_iterate, lambda: entrance)
                calls.broadcast([numbers.model], 0, stands_in=True)
                # All go on from the first worker's random numbers.
                generator = torch.Generator().manual_seed(worker)
                train, test = self._loader(calls.rank, generator), self._loader(calls.rank, None)
                for number in range(PASSES):
                    state = generator.get_state()
                    calls.broadcast([state], 0, stands_in=True)
                    generator.set_state(state)
                    for batch in ahead(loop(train)):
                        if worker >= self.workers and not entrance.rehearses and not began:
                            began = number
                        there = self._step(batch, numbers, entrance)
                        if not entrance.rehearses:
                            used.update({(number, n): many for n, many in enumerate(there)})
                    if self.strays and worker >= self.workers:
                        continue
                    for batch in ahead(loop(test)):
                        calls.exchange(len(batch))
                missed = (float(calls.passes.missed),)
        except spotmpi.Stopped:
            stopped = True
        bits = numbers.model.numpy().tobytes()
        return Final(bits, rounds.steps, used, (), stopped, missed, began)

    def _loader(self, rank: int, generator: torch.Generator | None) -> Any:
        """Return a loader for training; without random numbers, for tests."""
        order: Any = range(SAMPLES)
        if generator is not None:
            order = RandomSampler(order, generator=generator)
        batches = BatchSampler(order, 2, drop_last=False)
        shard = BatchSamplerShard(batches, self.workers, rank)
        return DataLoader(range(SAMPLES), batch_sampler=shard, collate_fn=list)

    def _step(self, batch: list[int], numbers: Numbers, entrance: Entrance) -> list[int]:
        """Train with a batch. Return how often each sample was used in this step."""
        calls = entrance.calls
        mine = torch.zeros(SAMPLES, dtype=torch.float64)
        mine[batch] = 1.0
        grad = numbers.model * 0.1 + float(sum(batch))
        calls.reduce([mine, grad], "AVG", step=True)
        entrance.sum_up()
        numbers.model -= grad
        entrance.move()
        total: list[int] = (mine * len(calls.alive)).round().int().tolist()
        return total
