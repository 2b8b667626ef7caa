"""Strategies: operators with just one round."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope
from spotmpi.errors import UsageError
from spotmpi.fabric import Fetch, Fetched, Publish
from spotmpi.operators import (
    Apply,
    Every,
    GradientAverage,
    ModelAverage,
    Narrow,
    Operator,
    PairAverage,
    PushSum,
    Quorum,
    Stage,
    Step,
    StepPosition,
)
from spotmpi.optimizers import SGD
from spotmpi.strategies import ADPSGD, SSGD, DiLoCo, Gossip, Strategy


def step(**known: Any) -> Step:
    """A step of a model of one number, with a gradient of 6 that stands for 2 samples."""
    layout = Layout.of([np.zeros(1)])

    def bring(flats: Sequence[Any]) -> None:
        flats[0][...] = 12.0

    return Step(layout, SGD(lr=1.0), layout.allocate(), bring=bring, **known)


def asked_by(strategy: Strategy, now: Step, *fetched: Fetched | None) -> list[Any]:
    """What a worker asks for before the round, if these models come to it."""
    asks, reply, left = strategy.prepare(now), None, iter(fetched)
    asked: list[Any] = []
    try:
        while True:
            asked.append(asks.send(reply))
            reply = next(left) if isinstance(asked[-1], Fetch) else None
    except StopIteration:
        return asked


@pytest.mark.parametrize(
    "chain",
    [Apply(), GradientAverage() >> Every(2, GradientAverage()), Apply() >> Every(2, Apply())],
)
def test_a_strategy_has_one_round(chain: Operator) -> None:
    with pytest.raises(UsageError, match="exactly one operator with a round"):
        Strategy(chain)


def test_a_round_of_no_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="Every: count is 0, expected a whole number of at"):
        Strategy(Every(0, GradientAverage()))


def test_ssgd_applies_the_average_gradient() -> None:
    now, strategy = step(rate=0.5, weight=4.0), SSGD()
    assert asked_by(strategy, now) == []
    sums = now.layout.allocate()
    strategy.contribute(now)(sums)
    strategy.apply(now, sums)
    assert now.params[0][0] == -1.5
    assert str(strategy) == "GradientAverage() >> Apply()"
    assert strategy.every == 1


def test_ssgd_may_be_narrowed() -> None:
    strategy = Narrow("int8") >> SSGD()
    assert isinstance(strategy, Strategy)
    assert strategy.wire == "int8"
    assert str(strategy) == "Narrow('int8') >> GradientAverage() >> Apply()"
    assert SSGD().wire is None
    assert strategy.piecewise
    assert strategy.fusable
    inner = Strategy(Apply() >> Every(3, Narrow("bf16") >> ModelAverage()))
    assert inner.wire == "bf16"
    assert str(inner) == "Narrow('bf16') >> Apply() >> Every(3, ModelAverage())"


def test_what_is_narrowed_is_kept_by_each_worker_for_itself() -> None:
    states = (Narrow("fp16") >> SSGD()).init(Layout.of([np.zeros(3, np.float32)]))
    assert {state.scope for state in states.values()} == {Scope.LOCAL}
    assert not any(flat.any() for state in states.values() for flat in state.flats)


def test_formats_that_are_none_and_two_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Narrow\('int4'\) is no format, expected one of bf16"):
        Narrow("int4")
    with pytest.raises(UsageError, match="has 2 of Narrow, expected at most one"):
        _ = Narrow("int8") >> Strategy(Narrow("bf16") >> GradientAverage() >> Apply())
    with pytest.raises(UsageError, match="has 2 of Quorum, expected at most one"):
        Strategy(Quorum() >> Apply() >> Quorum(0.5) >> Every(4, ModelAverage()))


def test_what_the_plane_has_fused_is_not_done_again() -> None:
    now = step(rate=0.5, weight=4.0, fused=True)
    SSGD().apply(now, ())
    assert now.params[0][0] == 0


def test_what_comes_after_a_round_asks_for_nothing() -> None:
    class Asks(Stage):
        def run(self, step: Step) -> Any:
            yield Fetch(1)

    now = step(rate=0.5, weight=4.0)
    with pytest.raises(UsageError, match=r"Asks\(\) asks for something after the round"):
        Strategy(GradientAverage() >> Apply() >> Asks()).apply(now, [np.array([12.0])])


def test_what_is_sent_early_is_brought_again_as_it_was() -> None:
    strategy = DiLoCo(h=4, delay=2)
    layout = Layout.of([np.zeros(1)])
    state = {name: one.flats for name, one in strategy.init(layout).items()}
    now = step(state=state, now=StepPosition(share=3.0, last=False, sends=True))
    now.params[0][:], state["anchor"][0][:] = 5.0, 1.0
    out = layout.allocate()
    strategy.contribute(now)(out)
    assert out[0] == 3.0 * (1.0 - 5.0)
    now.params[0][:] = 77.0
    for share, brought in ((3.0, -12.0), (0.0, 0.0)):
        now.now = StepPosition(share=share)
        strategy.contribute(now)(out)
        assert out[0] == brought


def alone_in_a_step(**known: Any) -> StepPosition:
    return StepPosition(samples=2.0, last=False, others=[4, 7, 8], chance=0.5, **known)


def test_a_worker_goes_on_with_the_mean_of_its_model_and_anothers() -> None:
    now = step(rate=0.5, now=alone_in_a_step(round=5))
    now.room = now.layout.allocate
    found = Fetched(8, 3, [np.array([1.0]), np.array([5])])
    asked = asked_by(ADPSGD(), now, found)
    assert asked[0] == Fetch(7, unread=True)
    assert now.params[0][0] == (-0.5 * 12.0 / 2 + 1.0) / 2
    assert isinstance(asked[1], Publish)
    shown, number = asked[1].model
    assert shown is now.params[0]
    assert number == [5]
    assert len(asked) == 2


@pytest.mark.parametrize("before", [4, 0, 6])
def test_a_model_from_before_the_last_round_is_left_alone(before: int) -> None:
    now = step(rate=0.5, now=alone_in_a_step(round=5))
    now.room = now.layout.allocate
    asked_by(ADPSGD(), now, Fetched(8, 3, [np.array([1.0]), np.array([before])]))
    assert now.params[0][0] == -3.0


def test_if_nothing_came_it_goes_on_alone() -> None:
    now = step(rate=0.5, now=alone_in_a_step())
    now.room = now.layout.allocate
    asked = asked_by(ADPSGD(), now, None)
    assert now.params[0][0] == -3.0
    assert [type(one) for one in asked] == [Fetch, Publish]


@pytest.mark.parametrize(
    "moment", [StepPosition(samples=2.0), StepPosition(samples=0.0, others=[1])]
)
def test_who_is_alone_or_has_nothing_exchanges_nothing(moment: StepPosition) -> None:
    now = step(rate=0.5, now=moment)
    now.room = now.layout.allocate
    assert next(iter(PairAverage().run(now)), None) is None


def giving(before: int | None, samples: float = 2.0, **known: Any) -> StepPosition:
    """A step in which a worker looks for what that one gives."""
    others = [] if before is None else [before]
    return StepPosition(samples=samples, last=False, others=others, before=before, **known)


class Giver:
    """A worker that gives its model away, with what it remembers between steps."""

    def __init__(self, params: float, **known: Any) -> None:
        layout = Layout.of([np.zeros(1)])
        state = {name: one.flats for name, one in PushSum().init(layout).items()}
        self.step = Step(layout, None, [np.array([params])], state=state)
        self.known = known

    @property
    def weight(self) -> float:
        return float(self.step.state["weights"][0][0])

    @property
    def model(self) -> float:
        return float(self.step.params[0][0])

    def go(self, before: int, found: Fetched | None = None, **known: Any) -> list[Any]:
        """One step; what it shows."""
        self.step.now = giving(before, **{**self.known, **known})
        asks = PushSum().run(self.step)
        assert next(asks) == Fetch(before)
        shown = asks.send(found)
        assert isinstance(shown, Publish)
        assert next(asks, None) is None
        return [flat.copy() for flat in shown.model]


def test_what_is_given_away_arrives_whole_whatever_is_skipped() -> None:
    """A ring of three, whose workers look now and then: at the end all weight is somewhere."""
    rest = np.random.default_rng(3)
    models = [0.0, 3.0, 9.0]
    workers = [Giver(one) for one in models]
    shown: list[Any] = [None] * 3
    taken = [(0.0, 0.0)] * 3
    for number in range(200):
        me = int(rest.integers(3))
        before = (me - 1) % 3
        looks = rest.random() < 0.7 and shown[before] is not None
        found = Fetched(before, number, shown[before]) if looks else None
        shown[me] = workers[me].go(before, found)
        if looks:
            taken[me] = shown[before][0][0], shown[before][1][2]
    under_way = [
        (shown[one][0][0] - taken[(one + 1) % 3][0], shown[one][1][2] - taken[(one + 1) % 3][1])
        for one in range(3)
    ]
    assert sum(one.weight for one in workers) + sum(p for _, p in under_way) == pytest.approx(3)
    whole = sum(one.weight * one.model for one in workers) + sum(x for x, _ in under_way)
    assert whole == pytest.approx(sum(models))
    assert all(1 / 2 <= one.weight < 3 for one in workers)
    assert all(one.model == pytest.approx(4, abs=0.1) for one in workers)


def test_who_gets_nothing_keeps_half() -> None:
    worker = Giver(5.0)
    assert [worker.go(1)[1][2] for _ in range(3)] == [0.5, 0.5, 0.5]
    assert (worker.weight, worker.model) == (1 / 2, 5.0)


def test_what_is_not_of_this_ring_is_not_taken() -> None:
    known = {"round": 4, "generation": 2}
    shown = Giver(8.0, **known).go(7)

    def came(found: Fetched, **now: Any) -> float:
        worker = Giver(0.0)
        worker.go(1, found, **now)
        return worker.model

    assert came(Fetched(1, 0, shown), **known) == 8.0 * 0.5 / 1.5
    assert came(Fetched(2, 0, shown), **known) == 0
    assert came(Fetched(1, 0, shown), round=5, generation=2) == 0
    assert came(Fetched(1, 0, shown), round=4, generation=3) == 0
    never = [np.zeros(1), PushSum().init(Layout.of([np.zeros(1)]))["told"].flats[0]]
    assert came(Fetched(1, 0, never), round=0, generation=0) == 0
    for other in (
        [np.zeros(1)],
        [np.ones(1), np.array([0])],
    ):  # an operator's of one's own, a pair's
        assert came(Fetched(1, 0, other), round=0, generation=0) == 0


def test_a_sum_of_what_was_given_is_no_model_of_a_pair() -> None:
    now = step(now=alone_in_a_step())
    asks = PairAverage().run(now)
    next(asks)
    asks.send(Fetched(7, 0, Giver(8.0).go(7)))
    assert now.params[0][0] == 0


def test_each_round_begins_with_all_of_a_model() -> None:
    worker = Giver(2.0)
    worker.go(1)
    (given, told) = worker.go(1, round=1)
    assert (worker.weight, given[0], told.tolist()) == (0.5, 1.0, [1.0, 0.0, 0.5])


@pytest.mark.parametrize("moment", [giving(None), giving(1, samples=0.0)])
def test_who_is_alone_or_has_nothing_gives_nothing(moment: StepPosition) -> None:
    worker = Giver(2.0).step
    worker.now = moment
    assert next(iter(PushSum().run(worker)), None) is None


def test_workers_that_exchange_models_train_their_own() -> None:
    assert ADPSGD().asynchronous
    assert Gossip().asynchronous
    assert not SSGD().asynchronous
    assert not DiLoCo().asynchronous
    assert Strategy(Apply() >> Every(2, PairAverage()) >> Every(8, ModelAverage())).asynchronous
    with pytest.raises(UsageError, match="workers that go at their own pace must train their own"):
        Strategy(PairAverage() >> GradientAverage() >> Apply())
    with pytest.raises(UsageError, match="have no delay"):
        Strategy(Apply() >> PairAverage() >> DiLoCo(h=8, delay=2).chain)


def test_a_mean_of_models_now_and_then_comes_once_though_steps_count_by_more_or_less() -> None:
    """A worker's steps may each be none, one or several of the training's."""
    strategy = Strategy(Apply() >> Every(4, PairAverage()) >> Every(64, ModelAverage()))
    reached, asked = [0, 1, 1, 3, 4, 4, 4, 9, 9], []
    for before, after in itertools.pairwise([0, *reached]):
        moment = StepPosition(0.5, after=after, many=after - before, others=[1])
        now = step(now=moment, many=moment.many)
        now.room = now.layout.allocate
        asked.append(any(isinstance(one, Publish) for one in asked_by(strategy, now, None)))
    assert asked == [False, False, False, False, True, False, False, True, False]
