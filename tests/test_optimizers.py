"""What a step does to parameters: the equations, on buckets with and without a tail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spotmpi.errors import UsageError
from spotmpi.optimizers import SGD, Momentum


def buckets(*values: list[float]) -> list[Any]:
    return [np.array(v, dtype) for v, dtype in zip(values, ("float32", "float64"), strict=False)]


def test_sgd_walks_down_the_scaled_gradient() -> None:
    params, grads = buckets([1, 2], [3]), buckets([4, 8], [2])
    SGD(lr=99).update(params, grads, {}, rate=0.5, scale=0.25)
    assert [flat.tolist() for flat in params] == [[0.5, 1], [2.75]]
    assert [flat.tolist() for flat in grads] == [[4, 8], [2]]


def test_momentum_remembers_a_velocity_that_decays() -> None:
    params, grads = buckets([1, 2], [3]), buckets([4, 8], [2])
    slots = {"velocity": buckets([8, 0], [4])}
    Momentum(lr=99, beta=0.5).update(params, grads, slots, rate=0.5, scale=0.25)
    assert [flat.tolist() for flat in slots["velocity"]] == [[5, 2], [2.5]]
    assert [flat.tolist() for flat in params] == [[-1.5, 1], [1.75]]


def test_buckets_that_are_missing_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        SGD(0.1).update(buckets([1], [2]), buckets([1]), {}, 0.1, 1.0)


def test_what_they_remember_and_what_they_were_told() -> None:
    assert SGD.slots == ()
    assert Momentum.slots == ("velocity",)
    assert repr(Momentum(lr=np.float32(0.5))) == "Momentum(lr=0.5, beta=0.9)"
    assert SGD(lr=1) == SGD(lr=1.0)


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), "0.1", None])
def test_a_rate_that_cannot_be_meant_is_refused(lr: Any) -> None:
    with pytest.raises(UsageError, match=r"lr is .*expected"):
        SGD(lr)
    with pytest.raises(UsageError, match=r"lr is .*expected"):
        Momentum(lr)


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan"), "0.9"])
def test_a_decay_that_cannot_be_meant_is_refused(beta: Any) -> None:
    with pytest.raises(UsageError, match=r"beta is .*expected"):
        Momentum(0.1, beta)
