"""The parameter server that workers hold between them, step by step: who does what when, and who is
lost, is written in each test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.layout import Layout
from spotmpi.errors import UsageError
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators import Step, StepPosition, Weighted
from spotmpi.optimizers import SGD
from spotmpi.strategies import ParameterServer, named

LAYOUT = Layout.of([np.zeros(2), np.zeros(3)], bucket_mb=1e-9)
"""Two buckets, the last array first: each is a shard, if there are two."""


class Crew:
    """Workers with numbers from 0 on; of each, what it has shown."""

    def __init__(self, many: int, shards: int = 1) -> None:
        self.strategy = ParameterServer(shards, control=64)
        self.shown: dict[int, list[Any]] = {}
        self.lost: set[int] = set()
        self.round = 0
        self.members = [*range(many)]
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
        return StepPosition(me=me, others=others, round=self.round, **known)

    def train(self, *workers: int, by: float = 1.0) -> None:
        """These take a step each, one after the other, which adds so much to each parameter."""
        for me in workers:
            step = self.steps[me]
            step.now = self.moment(me, last=False)
            step.bring = Weighted(lambda flats, _: [flat.fill(-by) for flat in flats], 1.0)
            step.update, step.rate = None, float(len(self.members))
            asks, reply = self.strategy.prepare(step), None
            try:
                while True:
                    asked, reply = asks.send(reply), None
                    if isinstance(asked, Publish):
                        self.shown[me] = [np.array(one) for one in asked.model]
                    elif isinstance(asked, Fetch) and asked.worker in self.shown.keys() - self.lost:
                        found = [one.copy() for one in self.shown[asked.worker]]
                        reply = Fetched(asked.worker, 0, found)
            except StopIteration:
                pass

    def meet(self) -> None:
        """The round, of those who are not lost."""
        self.members = [one for one in self.members if one not in self.lost]
        sums = LAYOUT.allocate()
        for me in self.members:
            step = self.steps[me]
            step.now = self.moment(me, samples=0.0)
            assert next(self.strategy.prepare(step), None) is None
            flats = LAYOUT.allocate()
            self.strategy.contribute(step)(flats)
            for total, flat in zip(sums, flats, strict=True):
                total += flat
        for me in self.members:
            self.strategy.apply(self.steps[me], sums)
        self.round += 1

    def model(self, me: int) -> list[float]:
        """Its parameters: of each bucket one, as all are equal."""
        for flat in self.steps[me].params:
            assert len({*flat.tolist()}) == 1
        return [float(flat[0]) for flat in self.steps[me].params]


def test_each_trains_what_all_have_pushed_each_once() -> None:
    crew = Crew(4)
    crew.train(2, 3)  # nobody who holds anything has seen it
    assert crew.model(2) == crew.model(3) == [1, 1]
    crew.train(0, 1)
    assert crew.model(0) == [3, 3]  # 2, 3 and itself
    assert crew.model(1) == [4, 4]
    crew.train(2, 3)
    assert crew.model(2) == [5, 5]  # 4 and its second step
    assert crew.model(3) == [5, 5]
    for _ in range(3):
        crew.train(0, 1, 2, 3)
    assert crew.model(3) == [17, 17]  # 20, but for what the others have not shown yet


def test_a_push_that_nobody_took_goes_with_the_next_one() -> None:
    crew = Crew(3)
    crew.train(2, 2, 2, 2)
    crew.train(0)
    assert crew.model(0) == [2, 2]  # what was shown first, until somebody has it
    crew.train(2)
    assert crew.model(2) == [6, 6]
    crew.train(0)
    assert crew.model(0) == [7, 7]


def test_all_go_on_with_the_mirror_when_who_holds_a_shard_is_lost() -> None:
    crew = Crew(4)
    crew.train(2, 3, 0, 1, 2, 3)
    crew.lost.add(0)
    crew.train(1, 2, 3)
    assert crew.model(3) == [8, 8]  # with what the lost one had pushed
    crew.train(1, 2, 3, 1, 2, 3)
    assert crew.model(3) == [14, 14]


@pytest.mark.parametrize("lost", [{0}, {1}, {0, 1}])
def test_a_round_has_all_steps_of_all_who_are_there(lost: set[int]) -> None:
    crew = Crew(4)
    crew.train(0, 1, 2, 3, 3, 2, 1)
    crew.train(2, 2, 2, by=10)  # not pushed yet, or not taken
    crew.lost |= lost
    crew.train(3)
    crew.meet()
    right = {0: 1, 1: 2, 2: 32, 3: 3}
    there = [one for one in right if one not in lost]
    for one in there:
        assert crew.model(one) == [sum(right[me] for me in there)] * 2
    assert crew.members == there


def test_if_both_who_have_a_shard_are_lost_it_stays_and_others_do_not() -> None:
    crew = Crew(6, shards=2)  # 0 and 1 have the first one, 1 and 2 the second
    for _ in range(3):
        crew.train(*range(6))
    crew.train(5)
    before = crew.model(5)
    crew.lost |= {0, 1}
    for _ in range(3):
        crew.train(2, 3, 4, 5)
    first, second = crew.model(5)
    assert first == before[0] + 3  # its own steps
    assert second > before[1] + 3  # and others'
    crew.meet()
    for one in (2, 3, 4, 5):
        assert crew.model(one) == [3 * 4 + 1 + 3 * 4] * 2


def test_what_is_of_the_round_before_counts_no_more() -> None:
    crew = Crew(3)
    crew.train(0, 1, 2, 0, 1, 2)
    crew.meet()
    assert crew.model(0) == crew.model(1) == crew.model(2) == [6, 6]
    crew.train(2)  # the others show what they did before the round
    assert crew.model(2) == [7, 7]
    crew.train(0)
    assert crew.model(0) == [8, 8]


def test_what_was_pushed_among_others_counts_no_more() -> None:
    crew = Crew(4)
    crew.train(0, 1, 2, 3)
    crew.members.remove(3)
    crew.steps[0].state["numbers"][0][:] = 0  # it begins the same round without the last one
    crew.train(0)
    assert crew.model(0) == [1, 1]


def test_nobody_but_who_has_a_shard_is_asked() -> None:
    crew = Crew(5)
    asked: list[int] = []
    crew.shown = {one: [np.full(1027, -1.0)] for one in range(5)}
    step = crew.steps[4]
    step.now = crew.moment(4, last=False)
    step.bring = Weighted(lambda flats, _: None, 1.0)
    asks = crew.strategy.prepare(step)
    for request in asks:
        if isinstance(request, Fetch):
            asked.append(request.worker)
    assert asked == [0, 1]


@pytest.mark.parametrize("me", [0, 1024])
def test_more_workers_than_there_are_numbers_to_show_are_refused(me: int) -> None:
    """Those that were there at the start are refused by the trainer; these have come since."""
    crew = Crew(1)
    step = crew.steps[0]
    step.bring = Weighted(lambda flats, _: [flat.fill(1.0) for flat in flats], 1.0)
    others = [one for one in range(1025) if one != me]
    step.now = StepPosition(me=me, others=others, last=False)
    with pytest.raises(UsageError, match=r"^there are 1025 workers, .* there may be at most 1024"):
        next(crew.strategy.prepare(step))
    step.now = StepPosition(me=min(me, 1023), others=others[:1023], last=False)
    next(crew.strategy.prepare(step), None)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="shards is 0"):
        ParameterServer(shards=0)
    assert named("parameterserver:shards=3,control=8").every == 8
    assert ParameterServer().asynchronous
