"""Chains whose operators fit together, and those that are refused when the strategy is made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from spotmpi.arrays.layout import Layout
from spotmpi.errors import UsageError
from spotmpi.operators import (
    Apply,
    Broadcast,
    Chain,
    Clip,
    ElasticAverage,
    Every,
    GradientAverage,
    GradientSum,
    MeanOfSteps,
    ModelAverage,
    Narrow,
    Operator,
    OuterUpdate,
    PairAverage,
    PushedSum,
    PushPull,
    PushSum,
    Quorum,
    SharedSteps,
    SlowWeights,
)
from spotmpi.strategies import Strategy
from tests.simulated import Job

SHIPPED: Sequence[Callable[[], Operator]] = (
    *(Apply, GradientAverage, GradientSum, ModelAverage, Broadcast, ElasticAverage, OuterUpdate),
    *(PairAverage, PushSum, PushPull, PushedSum, SharedSteps, MeanOfSteps, Quorum, SlowWeights),
    *(lambda: OuterUpdate(fragments=2, delay=1), lambda: OuterUpdate(mix=0.5)),
    *(lambda: Clip(0.5), lambda: Narrow("int8")),
)


class Mine(Operator):
    """A round that a user wrote, of something else."""

    @property
    def collective(self) -> bool:
        """It has one."""
        return True


class Moves(Operator):
    """It changes parameters as a user likes."""

    @property
    def moves(self) -> bool:
        """Each worker's own."""
        return True


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            PushPull(2) >> Every(4, ModelAverage()),
            r"PushPull\(shards=2\) needs PushedSum or OuterUpdate behind it, and there is none",
        ),
        (
            Apply() >> PushedSum(),
            r"PushedSum\(\) needs PushPull before it, and there is none: put one there",
        ),
        (
            Every(4, PushedSum()) >> PushPull(),
            r"PushPull\(shards=1\) stands behind PushedSum\(\), and must stand before it",
        ),
        (SharedSteps() >> GradientAverage(), "needs MeanOfSteps or OuterUpdate behind it"),
        (SharedSteps() >> Every(4, PushedSum()), "needs MeanOfSteps or OuterUpdate behind it"),
        (PushPull() >> MeanOfSteps(), "needs PushedSum or OuterUpdate behind it"),
        (Apply() >> Every(4, MeanOfSteps()), r"MeanOfSteps\(\) needs SharedSteps before it"),
        (
            Apply() >> GradientAverage(),
            r"Apply\(\) gives each worker parameters of its own, .*: put Apply\(\) behind Grad",
        ),
        (Every(3, Moves() >> GradientSum() >> Apply()), r"Moves\(\) gives each worker param"),
        (
            Every(2, ModelAverage()) >> Apply(),
            r"Apply\(\) stands behind ModelAverage\(\), .*: put it before ModelAverage\(\)$",
        ),
        (
            Every(3, GradientAverage()) >> Apply(),
            r"steps without a round, .*one, Every\(3, GradientAverage\(\) >> Apply\(\)\)$",
        ),
        (
            Apply() >> ModelAverage() >> PairAverage(),
            r"PairAverage\(\) stands behind the round, .*: put it before ModelAverage\(\)$",
        ),
        (
            SlowWeights() >> GradientAverage() >> Apply(),
            r"SlowWeights\(mix=0.5\) needs the same .* round: put it behind GradientAverage\(\)$",
        ),
        (
            Apply() >> Every(2, ModelAverage()) >> Every(4, SlowWeights()),
            r"one, Every\(2, ModelAverage\(\) >> SlowWeights\(mix=0.5\)\)$",
        ),
        (Apply() >> ElasticAverage() >> SlowWeights(), "each has its own: leave out SlowWeights"),
        (Apply() >> OuterUpdate(mix=0.5) >> SlowWeights(), "each has its own: leave out Slow"),
        (Clip(1.0) >> Every(3, ModelAverage()), "no operator before it changes any: begin with"),
    ],
    ids=str,
)
def test_who_makes_a_chain_that_does_not_fit_is_told_what_to_put_where(
    chain: Operator, said: str
) -> None:
    with pytest.raises(UsageError, match=rf"^the operators of .* do not fit together: .*{said}"):
        Strategy(chain)


@pytest.mark.parametrize(
    "chain",
    [
        PushPull() >> Every(4, Narrow("int8") >> PushedSum()),
        PushPull() >> Every(4, OuterUpdate()),
        SharedSteps() >> Every(4, MeanOfSteps() >> SlowWeights()),
        Every(3, GradientAverage() >> Apply()) >> SlowWeights(),
        Every(1, GradientAverage()) >> Apply(),
        Chain((Chain((GradientAverage(), Clip(1.0))), Apply())),
        Apply() >> Every(2, ModelAverage() >> Every(3, SlowWeights())),
        Moves() >> ModelAverage(),
        Moves() >> Every(3, Mine()) >> Apply(),  # nobody knows what that is of
    ],
    ids=str,
)
def test_what_fits_is_not_refused(chain: Operator) -> None:
    assert Strategy(chain).chain


def test_operators_count_wherever_they_stand() -> None:
    with pytest.raises(UsageError, match=r"exactly one collective operator, and .* has 2"):
        Strategy(Every(2, GradientAverage() >> ModelAverage()))
    with pytest.raises(UsageError, match="narrows 2 times"):
        Strategy(Every(2, Narrow("int8") >> Narrow("bf16") >> GradientAverage()))
    quorum = Quorum(0.5)
    assert Strategy(Apply() >> Every(8, quorum >> ModelAverage())).quorum is quorum
    assert Strategy(Every(2, Apply() >> ModelAverage())).apart


def chain_of(kinds: Sequence[Callable[[], Operator]], steps: int) -> Strategy:
    """Of these, with a round in so many steps. UsageError if it is refused."""
    operators = [kind() for kind in kinds]
    strategy = Strategy(
        Chain(tuple(Every(steps, one) if one.collective else one for one in operators))
    )
    strategy.init(Layout.of([np.zeros(1)]))  # as whoever makes a trainer does
    return strategy


def train_chains(folder: Path, size: int) -> int:
    """All chains of so many shipped operators that are not refused: how many there are."""
    trained = 0
    for *kinds, steps in itertools.product(*[SHIPPED] * size, (1, 2)):
        strategy = partial(chain_of, kinds, steps)
        try:
            name = str(strategy())
        except UsageError:
            continue
        place = folder / f"{trained}"
        place.mkdir()
        try:
            finals = Job(place, 2, samples=16, passes=1, strategy=strategy).run().finals
        except Exception as error:
            raise AssertionError(f"{name} was not refused") from error
        assert len({final.bits for final in finals.values()}) == 1, name
        trained += 1
    return trained


@pytest.mark.parametrize(("size", "least"), [(1, 4), (2, 40)])
def test_all_chains_of_shipped_operators_are_refused_or_train(
    tmp_path: Path, size: int, least: int
) -> None:
    assert train_chains(tmp_path, size) >= least


@pytest.mark.campaign
def test_all_chains_of_three_shipped_operators_are_refused_or_train(tmp_path: Path) -> None:
    assert train_chains(tmp_path, 3) >= 400
