"""Known answers: the definition itself, against numbers worked out by hand or in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spotmpi.kernels import reference

DTYPES = ("float32", "float64")


def array(dtype: str, *values: float) -> Any:
    return np.array(values, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_arithmetic_is_what_the_equations_say(dtype: str) -> None:
    out = array(dtype, 1, 2)
    reference.accumulate(out, array(dtype, 10, 20))
    assert out.tolist() == [11, 22]
    reference.blend(out, array(dtype, 2, 4), 0.5, 2)
    assert out.tolist() == [23, 46]
    inputs = [array(dtype, 1, 2), array(dtype, 3, 4), array(dtype, 5, 6)]
    reference.scaled_sum(out, inputs, [1, 0.5, 2])
    assert out.tolist() == [12.5, 16]
    params, velocity, grads = array(dtype, 1, 2), array(dtype, 4, 8), array(dtype, 2, 4)
    reference.sgd(params, grads, rate=0.5, scale=0.25)
    assert params.tolist() == [0.75, 1.5]
    reference.momentum(params, velocity, grads, rate=0.5, beta=0.25, scale=0.5)
    assert velocity.tolist() == [2, 4]
    assert params.tolist() == [-0.25, -0.5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_moments_move_and_parameters_along_their_ratio(dtype: str) -> None:
    params, mean, square = array(dtype, 1), array(dtype, 2), array(dtype, 8)
    given = {"beta1": 0.5, "beta2": 0.25, "first": 2.0, "second": 0.5, "eps": 1.5, "decay": 0.25}
    moments, norms = [mean.copy(), square.copy()], array(dtype, 1)
    told = reference.lamb_norms(norms, *moments, array(dtype, 4), scale=0.5, **given)
    reference.adam(params, mean, square, array(dtype, 4), rate=0.5, scale=0.5, **given)
    assert mean.tolist() == moments[0].tolist() == [2]
    assert square.tolist() == moments[1].tolist() == [5]
    direction = 2 * 2 / (0.5 * 5**0.5 + 1.5) + 0.25
    assert params[0] == pytest.approx(1 - 0.5 * direction)
    assert told == (1, pytest.approx(direction**2))
    del given["beta1"], given["beta2"]
    reference.lamb(norms, *moments, rate=0.5, **given)
    assert norms.tolist() == params.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_of_squares_is_added_in_lanes_and_stretches(dtype: str) -> None:
    assert reference.sum_of_squares(array(dtype)) == 0.0
    assert reference.sum_of_squares(array(dtype, 3, -4)) == 25.0
    x = np.random.default_rng(0).standard_normal(2 * reference.STRETCH + 1001).astype(dtype)
    total = 0.0
    for stretch in range(0, x.size, reference.STRETCH):
        of_stretch = 0.0
        for lane in range(reference.LANES):
            of_lane = 0.0
            for one in x[stretch : stretch + reference.STRETCH][lane :: reference.LANES].tolist():
                of_lane += one * one
            of_stretch += of_lane
        total += of_stretch
    assert reference.sum_of_squares(x) == total
    assert total == pytest.approx(float((x.astype("float64") ** 2).sum()))
    huge = array(dtype, 3e30, 4e30)
    assert reference.sum_of_squares(huge) == pytest.approx(25e60)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packing_is_scaled_and_rows_first_and_unpacking_undoes_it(dtype: str) -> None:
    tensors = [array(dtype, 1, 2, 3, 4).reshape(2, 2).T, array(dtype, 5).reshape(()), array(dtype)]
    out = array(dtype, 0, 0, 0, 0, 0)
    reference.pack(out, tensors, 2)
    assert out.tolist() == [2, 6, 4, 8, 10]
    reference.unpack(out, tensors)
    assert tensors[0].tolist() == [[2, 6], [4, 8]]
    assert float(tensors[1]) == 10


def test_scalars_are_rounded_to_the_arrays_dtype_before_anything_else() -> None:
    params, grads = array("float32", 0), array("float32", 3)
    reference.sgd(params, grads, rate=0.1, scale=1)
    assert params[0] == -(np.float32(0.1) * np.float32(3))
    assert params.dtype == np.float32


def plain_digest(words: list[int]) -> int:
    total = 0
    for i, word in enumerate(words):
        u = (word + i * 0x9E3779B1) % 2**32
        v = (u ^ u >> 16) * 0x85EBCA6B % 2**32
        total += (v ^ v >> 15) ** 2
    return total % 2**64


def test_the_digest_is_the_formula_over_32_bit_words() -> None:
    x = np.random.default_rng(0).standard_normal(33)
    assert reference.digest(x) == plain_digest(x.view(np.uint32).tolist())
    x = x.astype(np.float32)
    assert reference.digest(x) == plain_digest(x.view(np.uint32).tolist())


def test_the_digest_never_changes_its_mind() -> None:
    # Workers of one job compare digests, and a checkpoint may keep one.
    assert reference.digest(array("float32")) == 0
    assert reference.digest(array("float32", 1.0, -2.5)) == plain_digest([0x3F800000, 0xC0200000])
    assert reference.digest(array("float64", 1.0)) == plain_digest([0, 0x3FF00000])
    assert reference.digest(array("float32", 1.0, -2.5)) == 0x61B3D5F0DED58249


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_means_neither_nan_nor_infinite(dtype: str) -> None:
    assert reference.finite(array(dtype))
    assert reference.finite(array(dtype, 0, -1, 1e30))
    for bad in (np.nan, np.inf, -np.inf):
        assert not reference.finite(array(dtype, 0, bad, 1))
