"""A job for the simulator: a script goes through dealt samples, with rounds as torch has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler

import spotmpi
from spotmpi.protocol.plain_values import pack
from spotmpi.torch import loaders
from spotmpi.torch.belongings import Belongings
from spotmpi.torch.collectives import Collectives
from spotmpi.torch.dealing import Deal, Samples
from spotmpi.torch.newcomers import Entrance
from spotmpi.torch.passes import DealtPass, Way
from spotmpi.torch.torch_rounds import Rounds
from tests.simulated import Final, Job

__all__ = ["PASSES", "SAMPLES", "Numbers", "Passes", "ahead", "iterate", "step"]

SAMPLES, PASSES = 24, 6

iterate = getattr(DataLoader.__iter__, "__wrapped__", DataLoader.__iter__)
"""Torch's own: `following` may have replaced it."""


def ahead(begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield each batch once the next one has been read."""
    batches = begin()
    if (last := next(batches, None)) is None:
        return
    for batch in batches:
        yield last
        last = batch
    yield last


class Elastic(Sampler[int]):
    """As ElasticSampler, among simulated workers."""

    def __init__(self, entrance: Entrance, many: int) -> None:
        self.entrance, self.many = entrance, many
        self.next_pass: DealtPass | None = None

    def begin(
        self, batch: int | None, way: Way | None = None, left: Samples | None = None
    ) -> DealtPass:
        """Begin a pass, in the same order each time."""
        calls = self.entrance.calls
        deal = Deal(np.arange(self.many) if left is None else left, calls.alive)
        one = DealtPass(deal, calls.rank, batch)
        calls.passes.begin(one, way)
        return one

    def __iter__(self) -> Iterator[int]:
        """Yield this worker's samples, or some to rehearse with."""
        return iter(range(self.many) if self.next_pass is None else self.next_pass)


class Fixed(DistributedSampler[int]):
    """Torch's, as spotmpi has it."""

    __iter__ = loaders._skipping(DistributedSampler.__iter__)


class Numbers(Belongings):
    """A model without torch's classes."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.model = torch.full((3,), float(worker), dtype=torch.float64)

    def look(self, when: int | None = None, theirs: Any = ()) -> None:
        """Give the model."""
        self._tensors, self._text = [self.model], pack("model")

    @property
    def has_optimizer(self) -> bool:
        """There is something like an optimizer."""
        return True

    @staticmethod
    def tidy() -> None:
        """Collect nothing: it takes 0.2 s, at each of many simulated looks."""

    def check(self, described: bytes) -> None:
        """Know what it is."""
        assert described == pack("model")

    def expect(self, described: bytes, size: int) -> Any:
        """Have the others'."""
        return SimpleNamespace(tensors=[self.model], settle=lambda: None)


class OwnOrder(DistributedSampler[int]):
    """A script's own, which spotmpi cannot tell to leave samples out."""

    def __iter__(self) -> Iterator[int]:
        """Yield every other one of them, and then the rest."""
        mine = range(self.rank, len(self.dataset), self.num_replicas)
        return iter([*mine[::2], *mine[1::2]])


@dataclass(frozen=True)
class Passes(Job):
    """A script that goes through its samples again and again."""

    elastic: bool = True
    many: int = SAMPLES
    over: int = PASSES
    """Passes."""
    every: int = 0
    """It makes a call with each batch of this number, as it counts them; 0: it makes none."""
    globally: int = 0
    """So it does, counted over all passes."""
    accumulate: int = 1
    """It steps with each batch of this number, and sums gradients with each batch."""
    fresh: int = 0
    """A worker leaves out so many of its first steps, as with a fresh GradScaler."""
    own_order: bool = False
    """Its sampler has an order of its own."""
    reads_ahead: bool = False
    """The script reads a batch before it trains with the one before."""

    def script(self, worker: int) -> Final:
        """Each step moves the model by what depends on all workers' batches, and on the model.
        ``began`` is the first pass of which a newcomer has seen all; ``means`` are the samples that
        nobody has used, and 1 if it joined within a pass."""
        used: Counter[tuple[int, int]] = Counter()
        numbers, stopped, began, within = Numbers(worker), False, list[int](), 0.0
        missed = count = 0
        try:
            with Rounds(numbers) as rounds:
                calls = Collectives(rounds, self.workers)
                entrance = Entrance(calls)
                loop = loaders.following(iterate, lambda: entrance)
                calls.broadcast([numbers.model], 0, stands_in=True)
                loader = self._loader(entrance)
                for number in range(self.over):
                    self.goes_on_with(number, -1, entrance)
                    for batches, batch in enumerate(self._read(loop, loader)):
                        if not entrance.rehearses and not self.goes_on_with(
                            number, batches, entrance
                        ):
                            break
                        if self.every and batches % self.every == self.every - 1:
                            calls.exchange(number, "now and then")
                        count += 1
                        if self.globally and count % self.globally == 0:
                            calls.exchange(count, "now and then")
                        moves = (batches + 1) % self.accumulate == 0 and count > self.fresh
                        there = step([n % SAMPLES for n in batch], numbers, entrance, moves)
                        if entrance.rehearses:
                            continue
                        if worker >= self.workers and not began:
                            within = float(calls.standing.within)
                            began.append(number + int(within))
                        used.update({(number, n): many for n, many in enumerate(there)})
                    told = calls.exchange(number, self.asks(entrance))
                    assert set(told.values()) == {number}
                missed = calls.passes.missed
        except spotmpi.Stopped:
            stopped = True
        bits, means = numbers.model.numpy().tobytes(), (float(missed), within)
        return Final(bits, rounds.steps, used, (), stopped, means, *began or [0])

    def goes_on_with(self, number: int, batches: int, entrance: Entrance) -> bool:
        """Return True: the script trains with this batch of the pass. -1: it has yet to begin
        it."""
        return True

    def asks(self, entrance: Entrance) -> str:
        """Return what it asks for after a pass."""
        return "passes"

    def _read(self, loop: Any, loader: Any) -> Any:
        return ahead(lambda: loop(loader)) if self.reads_ahead else loop(loader)

    def _loader(self, entrance: Entrance) -> Any:
        rows = range(self.many)
        sampler: Any = Elastic(entrance, self.many)
        if not self.elastic:
            kind = OwnOrder if self.own_order else Fixed
            sampler = kind(rows, self.workers, entrance.calls.share, shuffle=False)
        return DataLoader(rows, 2, sampler=sampler, collate_fn=list)


def reduce(calls: Collectives, mine: torch.Tensor, grad: torch.Tensor, _begins: bool) -> None:
    """Write the means of these."""
    calls.reduce([mine, grad], "AVG", step=True)


def step(batch: list[int], numbers: Numbers, entrance: Entrance, moves: bool = True) -> list[int]:
    """Train with a batch. Return how often each sample was used in this step, by all workers."""
    calls = entrance.calls
    mine = torch.zeros(SAMPLES, dtype=torch.float64)
    mine[batch] = 1.0
    grad = numbers.model * 0.1 + float(sum(batch))
    reduce(calls, mine, grad, entrance.begins_step)
    entrance.sum_up()
    numbers.model -= grad
    if moves:
        entrance.move()
    total: list[int] = (mine * len(calls.alive)).round().int().tolist()
    return total
