"""What a step does to parameters: the equations, on buckets with and without a tail."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spotmpi.arrays.layout import Layout
from spotmpi.errors import UsageError
from spotmpi.kernels import reference
from spotmpi.optimizers import LAMB, SGD, Adam, AdamW, Momentum, Optimizer
from spotmpi.optimizers.numbers import power
from tests import textbook


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


SHAPES = {"w": (40, 31), "b": (31,), "zero": (5,), "still": (7,), "none": (0, 3), "one": ()}
"""Arrays of more elements than a lane has, and of fewer."""


def model(dtype: str, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {key: rng.standard_normal(shape).astype(dtype) for key, shape in SHAPES.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("ours", "slow"),
    [
        (Adam(0.1), textbook.Adam(0.9, 0.999, 1e-8)),
        (Adam(0.1, beta1=0.0, beta2=0.5, eps=1.0), textbook.Adam(0.0, 0.5, 1.0)),
        (AdamW(0.1), textbook.Adam(0.9, 0.999, 1e-8, 0.01)),
        (AdamW(0.1, decay=0.3), textbook.Adam(0.9, 0.999, 1e-8, 0.3)),
        (LAMB(0.1), textbook.Lamb(0.9, 0.999, 1e-6, 0.01)),
        (LAMB(0.1, decay=0.0), textbook.Lamb(0.9, 0.999, 1e-6, 0.0)),
    ],
    ids=lambda made: repr(made) if isinstance(made, Optimizer) else type(made).__name__,
)
@pytest.mark.parametrize("bucket_mb", [25.0, 1e-9])
def test_they_go_where_the_textbook_goes(
    dtype: str, ours: Optimizer, slow: Any, bucket_mb: float
) -> None:
    """However arrays lie in buckets; over as many steps as it takes for the moments to settle."""
    slow = type(slow)(slow.beta1, slow.beta2, slow.eps, slow.decay)
    start = model(dtype, 0)
    start["zero"][...] = 0
    layout = Layout.of(start, bucket_mb)
    params, grads = layout.allocate(), layout.allocate()
    layout.pack(start, params, 1.0)
    memory = ours.remember(layout)
    theta = {key: array.astype("float64") for key, array in start.items()}
    for step in range(120):
        grad = model(dtype, step + 1)
        grad["still"][...] = 0
        layout.pack(grad, grads, 8.0)
        rate = 0.02 / (1 + step % 3)
        ours.apply(layout, params, grads, memory, rate, 0.125)
        theta = slow.step(theta, {k: g.astype("float64") for k, g in grad.items()}, rate)
    assert memory["updates"][0].tolist() == [120]
    near = {"rtol": 2e-4, "atol": 2e-5} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-12}
    for key, array in layout.named(params).items():
        np.testing.assert_allclose(array, theta[key], **near)
        assert key == "none" or not np.allclose(array, start[key], **near) or key == "still"


def test_lamb_looks_at_arrays_and_adam_at_none() -> None:
    """Two arrays in one bucket move as they do in two; as one array they would not."""
    start, grad = model("float32", 0), model("float32", 1)
    ends: dict[str, list[Any]] = {}
    for optimizer in (Adam(0.1), AdamW(0.1), LAMB(0.1)):
        for bucket_mb in (25.0, 1e-9):
            layout = Layout.of(start, bucket_mb)
            params, grads = layout.allocate(), layout.allocate()
            layout.pack(start, params, 1.0)
            layout.pack(grad, grads, 1.0)
            memory = optimizer.remember(layout)
            optimizer.apply(layout, params, grads, memory, 0.1, 1.0)
            bits = [array.tobytes() for array in layout.named(params).values()]
            assert ends.setdefault(str(optimizer), bits) == bits
        layout = Layout.of(start)
        params, grads = layout.allocate(), layout.allocate()
        layout.pack(start, params, 1.0)
        layout.pack(grad, grads, 1.0)
        optimizer.update(params, grads, optimizer.remember(layout), 0.1, 1.0)
        same = [array.tobytes() for array in layout.named(params).values()] == bits
        assert same == optimizer.elementwise
    assert len({str(bits) for bits in ends.values()}) == 3


@pytest.mark.parametrize("size", [7, 3000])
@pytest.mark.parametrize("optimizer", [SGD(0.1), Momentum(0.1), Adam(0.1), AdamW(0.1)], ids=repr)
def test_what_moves_into_the_next_state_has_the_bits_of_an_update(
    optimizer: Optimizer, size: int
) -> None:
    """In any parts, and also in a try that comes to nothing."""
    chance = np.random.default_rng(0)
    layout = Layout.of([chance.standard_normal(size).astype("float32")])
    memory, twins = optimizer.remember(layout), optimizer.remember(layout)
    (params,) = layout.allocate()
    live = [params.copy(), *(twins[name][0] for name in optimizer.slots)]
    assert optimizer.at_once
    for _ in range(5):
        inputs = [chance.standard_normal(size).astype("float32") for _ in range(3)]
        (total,) = layout.allocate()
        reference.scaled_sum(total, inputs, [1, 2, 3])
        optimizer.apply(layout, [params], [total], memory, 0.1, 0.25)
        following = [np.full_like(flat, 77) for flat in live]
        for parts in ([slice(None)], [slice(0, 5), slice(5, None)]):
            for part in parts:
                after, before = ([flat[part] for flat in flats] for flats in (following, live))
                brought = [one[part] for one in inputs]
                optimizer.move(after, before, brought, [1, 2, 3], twins, 0.1, 0.25)
        optimizer.moved(twins)
        live = following
    assert live[0].tobytes() == params.tobytes()
    for flat, name in zip(live[1:], optimizer.slots, strict=True):
        assert flat.tobytes() == memory[name][0].tobytes()
    for name in optimizer.counts:
        assert memory[name][0].tolist() == twins[name][0].tolist() == [5]


def test_an_optimizer_of_ones_own_needs_an_update_and_the_names_of_its_slots() -> None:
    class Sign(Optimizer):
        slots = ("seen",)
        lr = 0.1

        def update(self, params: Any, grads: Any, slots: Any, rate: float, scale: float) -> None:
            for w, g, seen in zip(params, grads, slots["seen"], strict=True):
                w -= rate * np.sign(g)
                seen += 1

    layout = Layout.of([np.ones(2), np.ones(1)])
    params, mine = layout.allocate(), Sign()
    memory = mine.remember(layout)
    mine.apply(layout, params, [np.array([4.0, -4.0, 0.0])], memory, 0.5, 1.0)
    assert params[0].tolist() == [-0.5, 0.5, 0.0]
    assert memory["seen"][0].tolist() == [1, 1, 1]
    assert mine.elementwise
    assert not mine.at_once


def test_powers_are_made_of_products() -> None:
    for base in (0.0, 0.5, 0.9, 0.999, 1.0):
        for exponent in (0, 1, 2, 3, 10, 1000, 10**6, 10**9):
            assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-7)
    assert power(0.9, 5) == (0.9 * 0.9) * (0.9 * 0.9) * 0.9


def test_what_they_remember_and_what_they_were_told() -> None:
    assert SGD.slots == ()
    assert Momentum.slots == ("velocity",)
    assert repr(Momentum(lr=np.float32(0.5))) == "Momentum(lr=0.5, beta=0.9)"
    assert SGD(lr=1) == SGD(lr=1.0)
    assert repr(LAMB(lr=1)) == "LAMB(lr=1.0, beta1=0.9, beta2=0.999, eps=1e-06, decay=0.01)"
    assert Adam.counts == AdamW.counts == LAMB.counts == ("updates",)
    assert not LAMB.elementwise


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf"), "0.1", None])
def test_a_rate_that_cannot_be_meant_is_refused(lr: Any) -> None:
    with pytest.raises(UsageError, match=r"lr is .*expected"):
        SGD(lr)
    for kind in (Momentum, Adam, AdamW, LAMB):
        with pytest.raises(UsageError, match=r"lr is .*expected"):
            kind(lr)


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan"), "0.9"])
def test_a_decay_that_cannot_be_meant_is_refused(beta: Any) -> None:
    with pytest.raises(UsageError, match=r"beta is .*expected"):
        Momentum(0.1, beta)


@pytest.mark.parametrize("kind", [Adam, AdamW, LAMB])
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beta1": 1.0}, "beta1 is 1.0, expected at least 0 and less than 1, as 0.9"),
        ({"beta2": "0.9"}, "beta2 is '0.9', expected a finite number"),
        ({"eps": 0.0}, "eps is 0.0, expected more than 0, as 1e-8"),
        ({"eps": float("nan")}, "eps is nan, expected a finite number"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(kind: Any, wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}$"):
        kind(0.1, **wrong)


def test_a_weight_decay_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match=r"decay is -0\.1, expected at least 0, as 0.01"):
        AdamW(0.1, decay=-0.1)
