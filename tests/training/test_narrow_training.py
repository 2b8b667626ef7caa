"""What narrowing costs a training: the digits of `jobs/digits.py`, four workers on three hosts.

The sums are those of the rings, to the bit (tests/fabric/test_rings.py); all workers are here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from spotmpi.arrays.layout import Layout
from spotmpi.arrays.narrowing import FORMATS, Narrowing, narrowed_sum
from spotmpi.jobs import digits
from spotmpi.jobs.digits import Network
from spotmpi.optimizers import Momentum

HOSTS = [[0, 1], [2], [3]]
PASSES, BATCH, RATE = 10, 48, 0.05


@cache
def trained(form: str | None, keeps: bool = True) -> tuple[float, float]:
    """The loss over all images, and the share of those kept apart that is recognised.

    ``keeps``: what narrowing takes away comes with the next sum.
    """
    (x, y), held_out = digits.data()
    params = Network.initial(x.shape[1], 0)
    layout = Layout.of(params)
    flats = layout.allocate()
    layout.pack(params, flats, 1.0)
    now, slots = layout.views(flats), {"velocity": layout.allocate()}
    size = flats[0].size
    kept = {
        one: Narrowing(form or "int8", np.zeros(size, np.float32), np.zeros(size, np.float32))
        for one in range(4)
    }
    order = np.random.default_rng(0)
    for _ in range(PASSES):
        everything = order.permutation(len(x))
        for start in range(0, len(x) - BATCH, BATCH):
            brought = {}
            for one in range(4):
                batch = everything[start + one : start + BATCH : 4]
                _, grads = Network.gradient(now, x[batch], y[batch])  # type: ignore[arg-type]
                packed = layout.allocate()
                layout.pack(grads, packed, float(len(batch)))  # type: ignore[arg-type]
                brought[one] = packed[0]
            if form is None:
                total = sum(brought.values())
            else:
                total = narrowed_sum(brought, HOSTS, kept)
                for one in kept.values():
                    one.turn()
                    if not keeps:
                        one.rest[:] = 0
            Momentum(lr=RATE).update(flats, [total], slots, RATE, 1.0 / BATCH)
    loss, _ = Network.gradient(now, x, y)  # type: ignore[arg-type]
    return loss, Network.accuracy(now, *held_out)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMATS)
def test_a_training_with_narrowed_sums_comes_to_what_it_does_without(form: str) -> None:
    loss, accuracy = trained(None)
    narrow, recognised = trained(form)
    assert narrow == pytest.approx(loss, rel=0.01)
    assert abs(recognised - accuracy) < 0.01


def test_what_int8_takes_away_is_missed_less_if_it_comes_with_the_next_sum() -> None:
    loss, _ = trained(None)
    assert abs(trained("int8")[0] - loss) < abs(trained("int8", keeps=False)[0] - loss)
