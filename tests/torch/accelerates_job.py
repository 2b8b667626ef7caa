"""A job for the simulator: a script goes through loaders of Accelerate, which read a batch ahead,
with rounds as torch has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

import spotmpi
from spotmpi.torch import loaders
from spotmpi.torch.collectives import Collectives
from spotmpi.torch.newcomers import Entrance
from spotmpi.torch.torch_rounds import Rounds
from tests.simulated import Final, Job
from tests.torch.dealt_job import PASSES, SAMPLES, Numbers, ahead, iterate, step

__all__ = ["Shards"]


@dataclass(frozen=True)
class Shards(Job):
    """A script that goes through its samples again and again, and tests now and then."""

    way: str = "loop"
    """``loop``: it tests after each pass. ``small``: and has half of the samples. ``astray``: and
    newcomers have half of them.
    ``trainer``: as Hugging Face's Trainer it reads so many batches, and tests after each fifth
    step, also within a pass. ``two``: so, and half of the passes go through another loader.
    ``turns``: so, and two loaders take turns."""

    def script(self, worker: int) -> Final:
        """Each step moves the model by what depends on all workers' batches, and on the model.
        ``means`` are the samples that nobody has used, and 1 if a newcomer joined within a pass;
        ``began`` is the first pass of which a newcomer has seen all."""
        used: Counter[Any] = Counter()
        numbers, stopped, began = Numbers(worker), False, list[int]()
        missed, within = tuple[float, ...](), 0.0
        try:
            with Rounds(numbers) as rounds:
                calls = Collectives(rounds, self.workers)
                entrance = Entrance(calls)
                loop = loaders.following(iterate, lambda: entrance)
                calls.broadcast([numbers.model], 0, stands_in=True)
                # All go on from the first worker's random numbers.
                orders = [torch.Generator().manual_seed(worker) for _ in range(2)]
                few = self.way == "small" or (self.way == "astray" and calls.rehearses)
                many = SAMPLES // 2 if few else SAMPLES
                trains = [self._loader(calls.rank, order, many) for order in orders]
                for number in range(PASSES):
                    which = {"two": number // (PASSES // 2), "turns": number % 2}.get(self.way, 0)
                    state = orders[which].get_state()
                    calls.broadcast([state], 0, stands_in=True)
                    orders[which].set_state(state)
                    for there in self._pass(trains[which], loop, numbers, entrance):
                        if entrance.rehearses:
                            continue
                        used.update({(number, n): many for n, many in enumerate(there)})
                        if worker >= self.workers and not began:
                            within = float(calls.standing.within)
                            began.append(number + int(within))
                missed = (float(calls.passes.missed), within)
        except spotmpi.Stopped:
            stopped = True
        bits = numbers.model.numpy().tobytes()
        return Final(bits, rounds.steps, used, (), stopped, missed, *began or [0])

    def _pass(
        self, train: Any, loop: Any, numbers: Numbers, entrance: Entrance
    ) -> Iterator[list[int]]:
        """Go through a pass. Yield how often each sample was used in each step."""
        batches = ahead(lambda: loop(train))
        if self.way in ("loop", "small", "astray"):
            for batch in batches:
                yield step(batch, numbers, entrance)
            self._test(loop, entrance)
            return
        for _ in range(len(train)):  # so that the iterator may not be at its end
            if (batch := next(batches, None)) is None:
                break
            yield step(batch, numbers, entrance)
            if entrance.calls.group.steps % 5 == 0:
                self._test(loop, entrance)

    def _test(self, loop: Any, entrance: Entrance) -> None:
        for batch in ahead(lambda: loop(self._loader(entrance.calls.rank, None))):
            numbers = (10_000, 3)[entrance.calls.group.steps % 2]
            entrance.calls.reduce([torch.full((numbers,), len(batch))], "MAX")

    def _loader(self, rank: int, random: torch.Generator | None, many: int = SAMPLES) -> Any:
        """Return a loader of so many samples for training; without random numbers, for tests."""
        order: Any = SequentialSampler(range(many))
        if random is not None:
            order = RandomSampler(range(many), generator=random)
        shard = BatchSamplerShard(BatchSampler(order, 2, drop_last=False), self.workers, rank)
        return DataLoader(range(many), batch_sampler=shard, collate_fn=list)
