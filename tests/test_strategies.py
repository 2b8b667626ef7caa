"""Strategies: chains with just one collective operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Scope
from spotmpi.errors import UsageError
from spotmpi.operators import Apply, Every, GradientAverage, Moment, Narrow, Operator, Step
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD, Strategy, complete


def step(**known: Any) -> Step:
    """A step of a model of one number, with a gradient of 6 that stands for 2 samples."""
    layout = Layout.of([np.zeros(1)])

    def bring(flats: Sequence[Any]) -> None:
        flats[0][...] = 12.0

    return Step(layout, SGD(lr=1.0), layout.allocate(), bring=bring, **known)


@pytest.mark.parametrize(
    "chain",
    [Apply(), GradientAverage() >> Every(2, GradientAverage()), Apply() >> Every(2, Apply())],
)
def test_a_strategy_has_one_collective_operator(chain: Operator) -> None:
    with pytest.raises(UsageError, match="exactly one collective operator"):
        Strategy(chain)


def test_a_round_of_no_steps_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Every\(0, .*\) counts steps, expected at least 1"):
        Strategy(Every(0, GradientAverage()))


def test_ssgd_applies_the_average_gradient() -> None:
    now, strategy = step(rate=0.5, weight=4.0), SSGD()
    contribute, run = strategy.begin(now)
    assert contribute is not None
    sums = now.layout.allocate()
    contribute.bring(sums)
    complete(run, sums)
    assert now.params[0][0] == -1.5
    assert str(strategy) == "GradientAverage() >> Apply()"
    assert strategy.steps == 1


def test_ssgd_may_be_narrowed() -> None:
    strategy = Narrow("int8") >> SSGD()
    assert isinstance(strategy, Strategy)
    assert strategy.narrow == "int8"
    assert str(strategy) == "Narrow('int8') >> GradientAverage() >> Apply()"
    assert SSGD().narrow is None
    assert strategy.piecewise
    now = step(rate=0.5, weight=4.0)
    contribute, run = strategy.begin(now)
    assert contribute is not None
    complete(run, [np.array([12.0])])
    assert now.params[0][0] == -1.5
    inner = Strategy(Every(3, Narrow("bf16") >> GradientAverage() >> Apply()))
    assert inner.narrow == "bf16"


def test_what_is_narrowed_is_kept_by_each_worker_for_itself() -> None:
    states = (Narrow("fp16") >> SSGD()).init(Layout.of([np.zeros(3, np.float32)]))
    assert {state.scope for state in states.values()} == {Scope.LOCAL}
    assert not any(flat.any() for state in states.values() for flat in state.flats)


def test_formats_that_are_none_and_two_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Narrow\('int4'\) is no format, expected one of bf16"):
        Narrow("int4")
    with pytest.raises(UsageError, match="narrows 2 times, expected at most once"):
        _ = Narrow("int8") >> Strategy(Narrow("bf16") >> GradientAverage() >> Apply())


def test_who_follows_does_what_all_do_with_the_sums() -> None:
    now = step(rate=0.5, weight=4.0)
    _, run = SSGD().follow(now)
    complete(run, [np.array([12.0])])
    assert now.params[0][0] == -1.5


def test_a_strategy_says_in_which_steps_it_has_a_round() -> None:
    strategy = Strategy(Every(3, GradientAverage() >> Apply()))
    assert strategy.steps == 3
    contribute, _ = strategy.begin(step(now=Moment(last=False)))
    assert contribute is None
    contribute, _ = strategy.begin(step(now=Moment(last=True)))
    assert contribute is not None


def test_a_second_round_in_a_step_is_refused() -> None:
    class Twice(GradientAverage):
        """Asks again."""

        def run(self, step: Step) -> Any:
            """Two rounds."""
            yield from super().run(step)
            yield from super().run(step)

    now = step()
    _, run = Strategy(Twice()).begin(now)
    with pytest.raises(UsageError, match="a second round in one step"):
        complete(run, now.layout.allocate())
