"""Operators: what each does in a step, and how they chain."""

from __future__ import annotations

import numpy as np
import pytest

from spotmpi.buffers import Layout
from spotmpi.operators import Apply, Chain, GradientAverage, Operator, Step
from spotmpi.optimizers import SGD


def step() -> Step:
    """A step of a model of two arrays."""
    layout = Layout.of([np.zeros(2), np.zeros(1)])
    params = layout.allocate()
    params[0][:] = 1.0
    return Step(layout, SGD(lr=1.0), params, {})


def test_gradients_are_contributed_times_their_weight() -> None:
    now = step()
    contribution = now.layout.allocate(tail=1)
    GradientAverage().contribute(now, [np.array([1.0, 2.0]), np.array([3.0])], 4, contribution)
    np.testing.assert_array_equal(contribution[0], [4.0, 8.0, 12.0, 0.0])


def test_apply_moves_the_parameters_by_rate_times_scale_times_sum() -> None:
    now = step()
    now.update, now.rate, now.scale = [np.array([4.0, 8.0, 12.0, 99.0])], 0.5, 0.25
    Apply().complete(now)
    np.testing.assert_array_equal(now.params[0], [0.5, 0.0, -0.5])


def test_only_a_collective_operator_contributes() -> None:
    assert GradientAverage.collective
    assert not Apply.collective
    with pytest.raises(NotImplementedError, match=r"Apply\(\) takes no part in a round"):
        Apply().contribute(step(), [], 1, [])


def test_chains_are_written_in_the_order_in_which_they_run_however_they_are_grouped() -> None:
    a, b, c = GradientAverage(), Apply(), Operator()
    assert (a >> b >> c).operators == (a, b, c)
    assert (a >> (b >> c)).operators == (a, b, c)
    assert str(a >> b) == "GradientAverage() >> Apply()"
    assert isinstance(a >> b, Chain)
