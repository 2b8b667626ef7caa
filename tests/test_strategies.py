"""Strategies: chains with just one collective operator."""

from __future__ import annotations

import numpy as np
import pytest

from spotmpi.buffers import Layout
from spotmpi.errors import UsageError
from spotmpi.operators import Apply, Chain, GradientAverage, Operator, Step
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD, Strategy


class Diary(Operator):
    """Notes that it ran."""

    def __init__(self, pages: list[str], name: str) -> None:
        self.pages, self.name = pages, name

    def complete(self, step: Step) -> None:
        """A line."""
        self.pages.append(self.name)


def step() -> Step:
    """A step of a model of one number."""
    layout = Layout.of([np.zeros(1)])
    return Step(layout, SGD(lr=1.0), layout.allocate(), {})


@pytest.mark.parametrize("chain", [Chain((Apply(),)), GradientAverage() >> GradientAverage()])
def test_a_strategy_has_one_collective_operator(chain: Chain) -> None:
    with pytest.raises(UsageError, match="exactly one collective operator"):
        Strategy(chain)


def test_what_stands_after_the_collective_runs_when_its_round_is_complete() -> None:
    pages: list[str] = []
    before, after = Diary(pages, "before"), Diary(pages, "after")
    Strategy(before >> GradientAverage() >> after).complete(step())
    assert pages == ["after"]


def test_ssgd_applies_the_average_gradient() -> None:
    now, strategy = step(), SSGD()
    contribution = now.layout.allocate()
    strategy.contribute(now, [np.array([6.0])], 2, contribution)
    now.update, now.rate, now.scale = contribution, 0.5, 1 / 4
    strategy.complete(now)
    assert now.params[0][0] == -1.5
    assert str(strategy) == "GradientAverage() >> Apply()"
