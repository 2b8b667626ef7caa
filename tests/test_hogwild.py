"""A model that workers of a host share without locks, step by step: who does what when, and who is
lost, is written in each test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.arrays.layout import Layout
from spotmpi.errors import UsageError
from spotmpi.fabric import AddUp
from spotmpi.operators import Step, StepPosition, Weighted
from spotmpi.optimizers import SGD, Momentum
from spotmpi.strategies import Hogwild

LAYOUT = Layout.of([np.zeros(2), np.zeros(3)], bucket_mb=1e-9)
"""Two buckets."""


class Crew:
    """Workers with numbers from 0 on, each on the host that is given for it."""

    def __init__(self, *hosts: str) -> None:
        self.strategy = Hogwild(control=64)
        self.hosts = dict(enumerate(hosts))
        self.sums: dict[tuple[int, str], dict[int, list[Any]]] = {}
        """What each has in the sum of a round and a host."""
        self.round = 0
        self.members = [*self.hosts]
        self.steps = {
            me: Step(
                LAYOUT,
                SGD(lr=1.0),
                LAYOUT.allocate(),
                state={name: one.flats for name, one in self.strategy.init(LAYOUT).items()},
                room=LAYOUT.allocate,
            )
            for me in self.members
        }

    def moment(self, me: int, **known: Any) -> StepPosition:
        others = [one for one in self.members if one != me]
        return StepPosition(me=me, others=others, crew=self.members, round=self.round, **known)

    def train(self, *workers: int, by: float = 1.0) -> None:
        """These take a step each, one after the other, which adds so much to each parameter."""
        for me in workers:
            step = self.steps[me]
            step.now = self.moment(me, last=False)
            step.bring = Weighted(lambda flats, _: [flat.fill(-by) for flat in flats], 1.0)
            step.update, step.rate = None, 1.0
            asks, reply = self.strategy.prepare(step), None
            try:
                while True:
                    reply = self.add_up(me, asks.send(reply))
            except StopIteration:
                pass

    def add_up(self, me: int, asked: Any) -> int:
        """As a fabric does it."""
        assert isinstance(asked, AddUp)
        many = sum(self.hosts[one] == self.hosts[me] for one in asked.among)
        if many > 1:
            parts = self.sums.setdefault((asked.round, self.hosts[me]), {})
            parts[me] = [np.array(flat) for flat in asked.part]
            for total, *some in zip(asked.total, *parts.values(), strict=True):
                total[:] = sum(some)
        return many

    def meet(self, *without: int) -> None:
        """The round, of those who are not lost; ``without``: these have no samples in it."""
        sums = LAYOUT.allocate()
        for me in self.members:
            step = self.steps[me]
            step.now = self.moment(me, samples=0.0, share=float(me not in without))
            step.active = len(self.members) - len(without)
            assert next(self.strategy.prepare(step), None) is None
            flats = LAYOUT.allocate()
            self.strategy.contribute(step)(flats)
            for total, flat in zip(sums, flats, strict=True):
                total += flat
        for me in self.members:
            self.strategy.apply(self.steps[me], sums)
        self.round += 1

    def model(self, me: int) -> float:
        """What it trains: all parameters are the same."""
        (found,) = {value for flat in self.steps[me].params for value in flat.tolist()}
        return float(found)


def test_each_of_four_moves_the_model_by_a_fourth_of_its_step() -> None:
    crew = Crew("h", "h", "h", "h")
    crew.train(0)
    assert crew.model(0) == 0.25
    crew.train(1, 1, 1)
    assert crew.model(1) == 1.0
    crew.train(2)
    assert crew.model(2) == 1.25
    crew.train(0)
    assert crew.model(0) == 1.5


def test_a_round_ends_with_the_model_that_they_share() -> None:
    crew = Crew("h", "h", "h", "h")
    crew.train(0, 1, 1, 1, 2, 0)
    crew.train(3, by=6.0)
    assert crew.model(3) == 3.0
    crew.meet()
    assert {crew.model(one) for one in range(4)} == {3.0}
    crew.train(2)
    assert crew.model(2) == 3.25, "the next one begins with it, and with nothing else"
    crew.train(0)
    assert crew.model(0) == 3.5


def test_hosts_have_models_of_their_own_which_come_together() -> None:
    crew = Crew("h", "h", "i", "i")
    crew.train(0, 1, 0, 1)
    crew.train(2, 3, by=5.0)
    assert (crew.model(1), crew.model(3)) == (2.0, 5.0)
    crew.meet()
    assert {crew.model(one) for one in range(4)} == {3.5}


def test_a_host_weighs_as_much_as_the_steps_that_it_has_taken() -> None:
    """Three workers on one and one on the other: each step counts the same."""
    crew = Crew("h", "h", "h", "i")
    crew.train(0, 1, 2, by=4.0)
    crew.train(3, by=8.0)
    assert (crew.model(2), crew.model(3)) == (4.0, 8.0)
    crew.meet()
    assert {crew.model(one) for one in range(4)} == {5.0}


def test_who_shares_memory_with_nobody_trains_its_own() -> None:
    crew = Crew("h", "i")
    crew.train(0, 0, 0, 1)
    assert (crew.model(0), crew.model(1)) == (3.0, 1.0)
    assert crew.sums == {}
    crew.meet()
    assert crew.model(0) == crew.model(1) == 2.0


def test_what_a_lost_worker_has_done_is_there_until_the_round() -> None:
    crew = Crew("h", "h", "h", "h")
    crew.train(3, by=8.0)
    crew.train(0, 1, 2)
    crew.members.remove(3)
    assert crew.model(2) == 2.75
    crew.meet()
    assert {crew.model(one) for one in range(3)} == {1.0}


def test_whatever_becomes_of_the_memory_a_round_is_right() -> None:
    crew = Crew("h", "h")
    crew.train(0, 1)
    crew.sums[0, "h"][1][0][:] = -1e30  # rubbish, in one array
    crew.train(0, 1)
    crew.sums[0, "h"][0][1][:] = np.nan
    crew.meet()
    assert crew.model(0) == crew.model(1) == 2.0


def test_who_has_no_samples_adds_nothing_and_goes_on_with_the_others() -> None:
    crew = Crew("h", "h", "h")
    crew.train(0, 1)
    crew.meet(2)
    assert {crew.model(one) for one in range(3)} == {1.0}
    step = crew.steps[2]
    step.now = crew.moment(2, samples=0.0, last=False)
    assert next(crew.strategy.prepare(step), None) is None


def test_what_a_worker_did_before_a_round_that_it_had_no_samples_in_does_not_come_again() -> None:
    crew = Crew("h", "h")
    crew.train(0, 1)
    crew.meet()
    crew.train(0)
    crew.meet(1)
    assert crew.model(1) == 2.0
    crew.train(0, 1)
    crew.meet()
    assert crew.model(0) == crew.model(1) == 3.0


def test_a_group_has_no_optimizer_for_it() -> None:
    step = Step(LAYOUT, None, LAYOUT.allocate(), now=StepPosition(last=False))
    with pytest.raises(UsageError, match=r"SharedSteps\(\) needs an optimizer, and a group has"):
        next(Hogwild().prepare(step))


def test_workers_are_asynchronous_and_train_their_own() -> None:
    assert Hogwild().asynchronous
    assert Hogwild().local_models
    assert Hogwild().name == "hogwild:control=64"


def test_a_worker_alone_trains_as_if_there_were_no_others() -> None:
    params = [np.full(3, 2.0), np.full(2, 5.0)]
    with spotmpi.Trainer(
        params, optimizer=Momentum(lr=0.25, beta=0.5), strategy=Hogwild(control=2)
    ) as trainer:
        for _ in range(4):
            trainer.step([np.ones(3), np.ones(2)])
    moved = 0.25 * (1 + 1.5 + 1.75 + 1.875)
    assert trainer.params[0].tolist() == [2.0 - moved] * 3
    assert trainer.model[1].tolist() == [5.0 - moved] * 2
