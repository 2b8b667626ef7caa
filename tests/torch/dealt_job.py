"""A job for the simulator: a script goes through dealt samples, with rounds as torch has them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

import spotmpi
from spotmpi.protocol.plain_values import pack
from spotmpi.torch.belongings import Belongings
from spotmpi.torch.collectives import Collectives
from spotmpi.torch.dealing import Deal
from spotmpi.torch.loaders import Dealt
from spotmpi.torch.newcomers import Entrance
from spotmpi.torch.passes import DealtPass
from spotmpi.torch.torch_rounds import Rounds
from tests.simulated import Final, Job

__all__ = ["PASSES", "SAMPLES", "Numbers", "Passes", "step"]

SAMPLES, PASSES = 24, 6
WAY = partial(Dealt, sampler=None, batch=2, samples=0)
"""How the samples of something that stands for a loader are dealt."""


class Numbers(Belongings):
    """A model without torch's classes."""

    def __init__(self, worker: int) -> None:
        super().__init__()
        self.model = torch.full((3,), float(worker), dtype=torch.float64)

    def look(self, when: int | None = None) -> None:
        """Give the model."""
        self._tensors, self._text = [self.model], pack("model")

    @staticmethod
    def tidy() -> None:
        """Collect nothing: it takes 0.2 s, at each of many simulated looks."""

    def check(self, described: bytes) -> None:
        """Know what it is."""
        assert described == pack("model")

    def take(self, described: bytes, numbers: Any) -> None:
        """Have the others'."""
        self.model.copy_(torch.from_numpy(numbers).view(torch.float64))


@dataclass(frozen=True)
class Passes(Job):
    """A script that goes through its samples again and again."""

    def script(self, worker: int) -> Final:
        """Each step moves the model by what depends on all workers' batches, and on the model."""
        used: Counter[tuple[int, int]] = Counter()
        numbers, stopped, began = Numbers(worker), False, 0
        try:
            with Rounds(numbers) as rounds:
                calls = Collectives(rounds, self.workers)
                entrance = Entrance(calls)
                calls.broadcast([numbers.model], 0, stands_in=True)
                for number in range(PASSES):
                    self.goes_on_with(number, -1, entrance)
                    trains = entrance.begins_pass(WAY(numbers))
                    if trains and worker >= self.workers and not began:
                        began = number
                    self._go_through(number, trains, numbers, entrance, used)
                    told = calls.exchange(number, self.asks(entrance))
                    assert set(told.values()) == {number}
        except spotmpi.Stopped:
            stopped = True
        bits = numbers.model.numpy().tobytes()
        return Final(bits, rounds.steps, used, (), stopped, (), began)

    def goes_on_with(self, number: int, batches: int, entrance: Entrance) -> bool:
        """Return True: the script trains with this batch of the pass. -1: it has yet to begin
        it."""
        return True

    def asks(self, entrance: Entrance) -> str:
        """Return what it asks for after a pass."""
        return "passes"

    def _go_through(
        self, number: int, trains: bool, numbers: Numbers, entrance: Entrance, used: Counter[Any]
    ) -> None:
        """Go through a pass, or rehearse it."""
        calls, place = entrance.calls, entrance.resumed_at()
        left = None if place is None else place.left
        deal = Deal(np.arange(SAMPLES) if left is None else left, calls.alive)
        one = DealtPass(deal, calls.rank, 2)
        calls.passes.begin(one, WAY(numbers).way, rehearsed=not trains)
        draw, batches = iter(one), 0
        while (batch := [*islice(draw, 2)]) or one.goes_on():
            if not batch:
                draw = iter(one)
                continue
            if not trains and batches and not entrance.goes_on(WAY(numbers)):
                break
            if trains:
                entrance.rest(one)
            one.give(2)
            if trains and not self.goes_on_with(number, batches, entrance):
                break
            there = step(batch, numbers, entrance)
            batches += 1
            if trains:
                used.update({(number, n): many for n, many in enumerate(there)})
        calls.passes.end(one)


def step(batch: list[int], numbers: Numbers, entrance: Entrance) -> list[int]:
    """Train with a batch. Return how often each sample was used in this step, by all workers."""
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
