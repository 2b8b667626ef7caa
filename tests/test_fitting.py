"""Chains whose operators fit together, and those that are refused when the strategy is made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

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
    Meeting,
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
    Stage,
    Step,
)
from spotmpi.strategies import Strategy
from tests.simulated import Job

SHIPPED: Sequence[Callable[[], Operator]] = (
    *(Apply, GradientAverage, GradientSum, ModelAverage, Broadcast, ElasticAverage, OuterUpdate),
    *(PairAverage, PushSum, PushPull, PushedSum, SharedSteps, MeanOfSteps, Quorum, SlowWeights),
    *(lambda: OuterUpdate(fragments=2, delay=1), lambda: OuterUpdate(mix=0.5)),
    *(lambda: Clip(0.5), lambda: Narrow("int8")),
)


class Mine(Meeting):
    """A round that a user wrote, of something else."""

    def contribute(self, step: Step) -> Any:
        return step.bring

    def apply(self, step: Step, sums: Sequence[Any]) -> None:
        """Nothing."""


class Parts(Mine):
    """A user's, of parts of a model that nobody keeps."""

    carries = "models"
    fragments = 2


class Idle(Stage):
    """It does nothing."""

    def run(self, step: Step) -> None:
        """Nothing."""


class Moves(Idle):
    """It changes parameters as a user likes."""

    moves = True


class Keeps(Idle):
    """It keeps gradients until the round."""

    accumulates = True


class Late(GradientAverage):
    """Its gradients are to travel for some steps."""

    delay = 1


class Needs(Idle):
    """It needs something, and does not say where."""

    needs = (Apply,)


class Unfinished(Stage):
    """Its author has not come to write what it does."""


class HalfDone(Meeting):
    """Of a round it knows only what it brings."""

    def contribute(self, step: Step) -> Any:
        return step.bring


class Bare(Operator):
    """It says nothing of when it runs."""


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
            PushPull() >> Every(4, PushedSum()) >> PushPull(2),
            r"PushPull\(shards=2\) stands behind the round, .*: put it before PushedSum\(\)$",
        ),
        (SharedSteps() >> GradientAverage(), "needs MeanOfSteps or OuterUpdate behind it"),
        (SharedSteps() >> Every(4, PushedSum()), "needs MeanOfSteps or OuterUpdate behind it"),
        (PushPull() >> MeanOfSteps(), "needs PushedSum or OuterUpdate behind it"),
        (Apply() >> Every(4, MeanOfSteps()), r"MeanOfSteps\(\) needs SharedSteps before it"),
        (
            Apply() >> GradientAverage(),
            r"Apply\(\) gives each worker parameters of its own, .*: put Apply\(\) behind Grad",
        ),
        (Moves() >> GradientSum() >> Apply(), r"Moves\(\) gives each worker param"),
        (
            Every(2, ModelAverage()) >> Apply(),
            r"Apply\(\) stands behind ModelAverage\(\), .*: put it before ModelAverage\(\)$",
        ),
        (
            Every(3, GradientAverage() >> Apply()),
            r"GradientAverage\(\) comes once in 3 steps, and the gradients of the other steps",
        ),
        (
            Clip(1.0) >> Every(3, GradientSum() >> Apply()),
            "would be lost: leave out Every, or put an operator before it that `accumulates` them$",
        ),
        (
            GradientAverage() >> Every(2, Apply()),
            r"Every\(2, Apply\(\)\) would lose the gradients of all other steps: put Apply",
        ),
        (
            GradientAverage() >> Apply() >> Clip(1.0),
            r"Clip\(1.0\) stands behind Apply\(\), which has used the .*: put it before Apply\(\)$",
        ),
        (
            Apply() >> Clip(1.0) >> Every(2, ModelAverage()),
            r"Clip\(1.0\) stands behind Apply\(\), which has used the gradient",
        ),
        (
            Apply() >> Every(3, OuterUpdate(delay=3)),
            r"delay=3, .* has a delay of 3 steps, and its rounds have 3: choose a shorter delay",
        ),
        (
            Apply() >> Quorum() >> Every(4, OuterUpdate(fragments=2)),
            "a round with a quorum carries all of the model, .*: leave out quorum, or fragments",
        ),
        (
            Apply() >> PairAverage() >> Every(4, OuterUpdate(delay=2)),
            "workers that go at their own pace must train .*: begin with .*, and have no delay",
        ),
        (
            Keeps() >> Every(4, Late() >> Apply()),
            r"Late\(\) has a delay, and only a round of models may have one: leave out delay$",
        ),
        (
            Every(2, Apply()) >> Every(4, ModelAverage()),
            r"Every\(2, Apply\(\)\) would lose the gradients of all other steps",
        ),
        (
            Every(2, Keeps()) >> Every(4, GradientAverage() >> Apply()),
            r"Every\(2, Keeps\(\)\) would lose the gradients of all other steps: put Keeps",
        ),
        (
            GradientAverage() >> Needs(),
            r"Needs\(\) needs Apply in the same strategy, and there is none: put one there$",
        ),
        (Apply() >> Every(2, Parts()), r"has 2 fragments and no centre, .*: leave out fragments"),
        (
            Apply() >> ModelAverage() >> PairAverage(),
            r"PairAverage\(\) stands behind the round, .*: put it before ModelAverage\(\)$",
        ),
        (
            SlowWeights() >> GradientAverage() >> Apply(),
            r"SlowWeights\(mix=0.5\) needs the same .* round: put it behind GradientAverage\(\)$",
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
        Keeps() >> Every(3, GradientAverage() >> Apply()) >> SlowWeights(),
        Apply() >> Every(2, ModelAverage()) >> Every(4, SlowWeights()),
        GradientAverage() >> Clip(1.0),  # a group's
        Every(2, Clip(1.0)) >> GradientAverage() >> Apply(),
        Every(1, GradientAverage()) >> Apply(),
        Chain((Chain((GradientAverage(), Clip(1.0))), Apply())),
        Apply() >> Every(2, ModelAverage() >> Every(3, SlowWeights())),
        Moves() >> ModelAverage(),
        Moves() >> Every(3, Mine() >> Apply()),  # nobody knows what that is of
    ],
    ids=str,
)
def test_what_fits_is_not_refused(chain: Operator) -> None:
    assert Strategy(chain).chain


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            Every(2, Apply() >> ModelAverage()),
            r"^Apply\(\) stands before ModelAverage\(\) in Every\(2, .*: put .* before Every$",
        ),
        (
            Apply() >> Every(2, ModelAverage()) >> Quorum(),
            r"^Quorum\(.*\) stands behind the round, .*: put it before ModelAverage\(\)$",
        ),
        (Apply() >> Every(2, Every(3, ModelAverage())), "stands in another Every: make one Every"),
        (GradientAverage() >> Every(2, Every(3, SlowWeights())), "stands in another Every"),
        (
            Every(3, Narrow("int8")) >> GradientAverage() >> Apply(),
            r"^Narrow\('int8'\) holds for all rounds: put it there without Every\(3, ...\)$",
        ),
        (
            Apply() >> Every(3, Quorum()) >> Every(4, ModelAverage()),
            r"^Quorum\(.*\) holds for all rounds: put it there without Every\(3",
        ),
        (GradientAverage() >> Unfinished(), r"^Unfinished\(\) has no run: write one in its class$"),
        (HalfDone() >> Apply(), r"^HalfDone\(\) has no apply: write one in its class$"),
        (GradientAverage() >> Bare(), r"^Bare\(\) is neither a Stage nor a Meeting: derive Bare"),
        (
            Every(2, GradientAverage() >> ModelAverage()),
            "exactly one operator with a round, and .* has 2",
        ),
        (
            Every(2, Narrow("int8") >> Narrow("bf16") >> GradientAverage()),
            "has 2 of Narrow, expected at most one",
        ),
    ],
    ids=str,
)
def test_what_has_no_meaning_where_it_stands_is_refused(chain: Operator, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Strategy(chain)


def test_operators_count_wherever_they_stand() -> None:
    quorum = Quorum(0.5)
    assert Strategy(Apply() >> Every(8, quorum >> ModelAverage())).quorum is quorum
    one, other = GradientAverage() >> Every(1, Apply()), Every(1, GradientAverage() >> Apply())
    assert str(Strategy(one)) == str(Strategy(other)) == "GradientAverage() >> Apply()"


def chain_of(kinds: Sequence[Callable[[], Operator]], steps: int) -> Strategy:
    """Of these, with a round in so many steps. UsageError if it is refused."""
    operators = [kind() for kind in kinds]
    strategy = Strategy(
        Chain(tuple(Every(steps, one) if isinstance(one, Meeting) else one for one in operators))
    )
    strategy.init(Layout.of([np.zeros(1)]))  # as whoever makes a trainer does
    return strategy


def train_chains(folder: Path, size: int) -> int:
    """All chains of so many shipped operators that are not refused: how many there are."""
    trained = set[str]()
    for *kinds, steps in itertools.product(*[SHIPPED] * size, (1, 2)):
        strategy = partial(chain_of, kinds, steps)
        try:
            name = str(strategy())
        except UsageError:
            continue
        if name in trained:
            continue  # the same one in other words
        place = folder / f"{len(trained)}"
        place.mkdir()
        try:
            finals = Job(place, 2, samples=16, passes=1, strategy=strategy).run().finals
        except Exception as error:
            raise AssertionError(f"{name} was not refused") from error
        assert len({final.bits for final in finals.values()}) == 1, name
        trained.add(name)
    return len(trained)


@pytest.mark.parametrize(("size", "least"), [(1, 2), (2, 33)])
def test_all_chains_of_shipped_operators_are_refused_or_train(
    tmp_path: Path, size: int, least: int
) -> None:
    assert train_chains(tmp_path, size) >= least


@pytest.mark.campaign
def test_all_chains_of_three_shipped_operators_are_refused_or_train(tmp_path: Path) -> None:
    assert train_chains(tmp_path, 3) >= 220
