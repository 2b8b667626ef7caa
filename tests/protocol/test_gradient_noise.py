"""How noisy gradients are, by the lengths of means of few and of many samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from spotmpi.protocol.gradient_noise import WIDTH, Lengths, Noise, estimated, read, write

SIZE = 400


def lengths(rng: np.random.Generator, deviation: float, many: Sequence[int]) -> list[Lengths]:
    """Of workers with so many samples each; the gradient of all samples has a length of 2."""
    truth = np.full(SIZE, 2.0 / math.sqrt(SIZE))
    own = [
        truth + deviation * rng.normal(size=(one, SIZE)).mean(axis=0) if one else np.zeros(SIZE)
        for one in many
    ]
    whole = sum(many)
    mean = sum(one * gradient for one, gradient in zip(many, own, strict=True)) / whole
    parts = np.array_split(mean, len(many))
    return [
        Lengths(one, float(gradient @ gradient), whole, float(part @ part), len(part))
        for one, gradient, part in zip(many, own, parts, strict=True)
    ]


@pytest.mark.parametrize("many", [[8, 8], [4, 12, 8, 8], [8, 0, 8]])
def test_both_terms_are_found(many: list[int]) -> None:
    rng = np.random.default_rng(1)
    found: Noise | None = None
    for count in range(400):
        one = estimated(lengths(rng, 0.2, many), SIZE)
        assert one is not None
        found = one.after(found, count / (count + 1))
    assert found is not None
    assert found.signal == pytest.approx(4.0, rel=0.05)
    assert found.variance == pytest.approx(SIZE * 0.2**2, rel=0.05)
    assert found.scale == pytest.approx(4.0, rel=0.1)


def test_gradients_without_noise_have_none() -> None:
    found = estimated(lengths(np.random.default_rng(2), 0.0, [3, 5]), SIZE)
    assert found is not None
    assert found.signal == pytest.approx(4.0)
    assert found.scale == pytest.approx(0.0, abs=1e-9)
    assert Noise(-0.1, 3.0).scale is None


def test_each_host_may_have_summed_all_of_it() -> None:
    known = lengths(np.random.default_rng(3), 0.1, [4, 4])
    twice = [one._replace(mean=sum(each.mean for each in known), elements=SIZE) for one in known]
    assert estimated(twice, SIZE) == pytest.approx(estimated(known, SIZE))


def test_what_says_too_little_says_nothing() -> None:
    known = lengths(np.random.default_rng(4), 0.1, [4, 4, 4])
    assert estimated(known[:2], SIZE) is None  # a part of the sum went with the third
    assert estimated([known[0]._replace(elements=SIZE)], SIZE) is None  # one size of a batch alone
    assert estimated([], SIZE) is None
    assert estimated([one._replace(own=math.nan) for one in known], SIZE) is None


def test_a_table_tells_it() -> None:
    known = lengths(np.random.default_rng(5), 0.1, [4, 6])
    total = np.zeros(4 * WIDTH)
    for place, one in enumerate([*known, None]):
        own = np.ones(4 * WIDTH)
        write(own, place, 7, one)
        total += own
    assert read(total) == known
