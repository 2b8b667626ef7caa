"""The Numba kernels against the reference, to the bit save for the payload of NaNs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from spotmpi.kernels import cpu, loops, reference
from tests.kernels import adaptive

DTYPES = ("float32", "float64")
SIZES = (0, 1, 2, 3, 7, 64, 1001, 2 * loops.BLOCK, 3 * loops.BLOCK + 5)
KINDS = ("random", "odd", "broken")
SCALARS = (0.3, -1.0, 1.0, 0.0, 1e30, float("inf"), float("nan"))


@pytest.fixture(autouse=True, params=["compiled", "past the cache", "as users have it"])
def _who_does_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is compiled, and may go past the cache; or what is small is not."""
    if request.param != "as users have it":
        monkeypatch.setattr(cpu, "FEW", 0)
    if request.param == "past the cache":
        monkeypatch.setattr(cpu, "PAST_CACHE", 0)


@pytest.fixture(autouse=True)
def _numpy_says_nothing_about_overflow() -> Any:
    with np.errstate(all="ignore"):
        yield


def make(dtype: str, size: int, kind: str, seed: int) -> Any:
    """Ordinary numbers; or of every magnitude, zeros of both signs; or broken ones as well."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size)
    if kind != "random":
        x *= 10.0 ** rng.integers(-46, 39, size)
        x[rng.random(size) < 0.1] = -0.0
    if kind == "broken":
        bad = rng.random(size) < 0.2
        x[bad] = rng.choice([np.nan, np.inf, -np.inf], int(bad.sum()))
    return x.astype(dtype)


def bits(x: Any) -> Any:
    """The bits of ``x``, with one NaN for all NaNs."""
    x = x.copy()
    x[np.isnan(x)] = np.nan
    return x.view(np.uint8)


def compare(run: Callable[[Any, list[Any]], Any], arrays: list[Any]) -> None:
    """``run(kernels, arrays)`` does the same to all arrays, and returns the same."""
    expected, got = ([x.copy() for x in arrays] for _ in range(2))
    assert run(reference, expected) == run(cpu, got)
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_equals_the_reference_to_the_bit(dtype: str, kind: str) -> None:
    for seed, n in enumerate(SIZES):
        x = [make(dtype, n, kind, 10 * seed + i) for i in range(3)]
        compare(lambda k, a: k.accumulate(a[0], a[1]), x)
        compare(lambda k, a: k.exchange(a[0], a[1], a[2]), x)
        compare(lambda k, a: (k.digest(a[0]), k.digest(a[0], 12345)), x)
        compare(lambda k, a: k.finite(a[0]), x)
        for s in SCALARS:
            compare(lambda k, a, s=s: k.blend(a[0], a[1], s, 0.7), x)
            compare(lambda k, a, s=s: k.blend(a[0], a[1], 0.3, s), x)
            compare(lambda k, a, s=s: k.sgd(a[0], a[1], 0.1, s), x)
            compare(lambda k, a, s=s: k.momentum(a[0], a[1], a[2], s, 0.9, 0.7), x)
            compare(lambda k, a, s=s: k.momentum(a[0], a[1], a[2], 0.1, s, 1.0), x)
            compare(lambda k, a, s=s: k.pack(a[0], [a[1][:1], a[1][1:]], s), x)


@pytest.mark.parametrize("_who_does_it", ["compiled", "as users have it"], indirect=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_moments_and_sums_of_squares_equal_the_reference_to_the_bit(dtype: str, kind: str) -> None:
    for seed, n in enumerate(adaptive.SIZES):
        x = [make(dtype, n, kind, 10 * seed + i) for i in range(4)]
        x[2] = np.abs(x[2])
        for call in adaptive.calls(odd=n <= 1001):
            compare(call, x)


def test_sums_of_squares_are_cut_where_the_reference_cuts_them() -> None:
    assert (loops.LANES, loops.STRETCH) == (reference.LANES, reference.STRETCH)


def test_sums_of_whole_numbers_are_exact_and_go_round_at_2_to_the_32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "PAST_CACHE", 4 * 5000)
    for n in (0, 1, 1001, 5003, loops.BLOCK + 5):
        for count in (1, 2, 4, 5, 9):
            rng = np.random.default_rng(n + count)
            inputs = [rng.integers(2**32, size=n, dtype=np.uint32) for _ in range(count)]
            scales = [int(one) for one in rng.integers(4, size=count)]
            expected = sum(
                one.astype(np.uint64) * np.uint64(scale)
                for one, scale in zip(inputs, scales, strict=True)
            )
            for kernels in cpu, reference:
                room = np.zeros(n + 3, np.uint32)
                kernels.scaled_sum(room[3:], inputs, scales)
                np.testing.assert_array_equal(room[3:], np.array(expected).astype(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_of_any_number_of_inputs_is_added_from_left_to_right(dtype: str, kind: str) -> None:
    for n in (0, 1, 1001, loops.BLOCK + 5):
        for count in (*range(1, 11), 33):
            x = [make(dtype, n, kind, i) for i in range(count + 1)]
            scales = [SCALARS[i % 4] for i in range(count)]
            compare(lambda k, a, s=scales: k.scaled_sum(a[0], a[1:], s), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_goes_past_the_cache_is_the_same_wherever_it_lies(
    dtype: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "PAST_CACHE", 0)
    for n in (1, 15, 16, 17, 1024, 1001, loops.BLOCK + 5):
        for first in (0, 1, 7, 16):
            for count in (1, 2, 5):
                x = [make(dtype, n, kind, i) for i in range(count)]
                scales = [SCALARS[i % 4] for i in range(count)]
                expected, room = np.zeros(n, dtype), np.zeros(n + 40, dtype)
                reference.scaled_sum(expected, x, scales)
                cpu.scaled_sum(room[first : first + n], x, scales)
                np.testing.assert_array_equal(bits(room[first : first + n]), bits(expected))
                assert not room[:first].any()
                assert not room[first + n :].any()
            pieces = [x[0][: n // 2], x[0][n // 2 :]]
            expected, got = np.zeros(n, dtype), np.zeros(n + first, dtype)
            reference.pack(expected, pieces, 0.3)
            cpu.pack(got[first:], pieces, 0.3)
            np.testing.assert_array_equal(bits(got[first:]), bits(expected))


def test_what_is_large_goes_past_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    x, out = (np.ones(cpu.PAST_CACHE // 4, "float32") for _ in range(2))
    cpu.warm()
    kernels, gone = cpu._KERNELS[x.dtype], []
    monkeypatch.setattr(kernels, "scaled_sum_past_cache", lambda *given: gone.append(given[0].size))
    cpu.scaled_sum(out, [x], [1.0])
    cpu.scaled_sum(out[1:], [x[1:]], [1.0])
    cpu.pack(out, [x], 1.0)
    assert gone == [x.size, x.size]
    for of in (cpu.PAST_CACHE, cpu.PAST_CACHE - 1):
        cpu.scaled_sum(out[:5000], [x[:5000]], [1.0], of=of)
    assert gone == [x.size, x.size, 5000]


def test_a_sum_of_negative_zeros_stays_negative() -> None:
    out, x = np.ones(1, "float32"), np.full(1, -0.0, "float32")
    for count in (1, 2, 3, 4, 5):
        cpu.scaled_sum(out, [x] * count, [1.0] * count)
        assert np.signbit(out[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_any_shape_are_packed_and_unpacked(dtype: str) -> None:
    source = make(dtype, 2000, "odd", 1)
    shapes = [(), (0, 3), (1,), (7,), (5, 3, 2), (30, 20)]
    tensors, start = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        tensors.append(source[start : start + size].reshape(shape))
        start += size
    tensors += [source[:60].reshape(6, 10).T, source[:20:3], source[5:6][0]]
    size = sum(t.size for t in tensors)
    for scale in (1.0, 0.3):
        expected, got = np.zeros(size, dtype), np.zeros(size, dtype)
        reference.pack(expected, tensors, scale)
        cpu.pack(got, tensors, scale)
        np.testing.assert_array_equal(bits(expected), bits(got))
    backwards = np.zeros((10, 6), dtype).T
    fresh = [np.zeros((2, 3), dtype), np.zeros((), dtype), backwards]
    cpu.unpack(source[:67], fresh)
    repacked = np.zeros(67, dtype)
    cpu.pack(repacked, fresh, 1.0)
    np.testing.assert_array_equal(bits(repacked), bits(source[:67]))
    cpu.pack(np.zeros(0, dtype), [], 0.5)


def test_signatures_are_those_of_the_reference() -> None:
    for name in reference.__all__:
        assert inspect.signature(getattr(cpu, name)) == inspect.signature(getattr(reference, name))
    assert set(cpu.__all__) - set(reference.__all__) == {"warm"}


# The digest


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(DTYPES))
    raw = draw(st.binary(min_size=0, max_size=400))
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(raw[: len(raw) // itemsize * itemsize], dtype)


@hypothesis.given(arrays(), st.data())
def test_a_digest_is_the_sum_of_the_digests_of_pieces(x: Any, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, x.size))
    joined = cpu.digest(x[:cut]) + cpu.digest(x[cut:], cut)
    assert joined % 2**64 == cpu.digest(x) == reference.digest(x)


@hypothesis.given(arrays(), st.data())
def test_a_digest_sees_every_single_bit(x: Any, data: st.DataObject) -> None:
    hypothesis.assume(x.size)
    raw = bytearray(x.tobytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert cpu.digest(np.frombuffer(raw, x.dtype)) != cpu.digest(x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_digest_sees_where_elements_stand(dtype: str) -> None:
    x = make(dtype, 500, "random", 0)
    seen = {
        cpu.digest(x),
        cpu.digest(np.roll(x, 1)),
        cpu.digest(x[:-1]),
        cpu.digest(x[::-1].copy()),
    }
    assert len(seen) == 4
    assert cpu.digest(x) != cpu.digest(np.append(x, x.dtype.type(0)))
    swaps = set()
    for i in range(499):
        y = x.copy()
        y[[i, i + 1]] = x[[i + 1, i]]
        swaps.add(cpu.digest(y))
    assert len(swaps) == 499
    assert cpu.digest(x) not in swaps


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_digest_sees_two_changes_that_mirror_each_other(dtype: str) -> None:
    # Two flipped signs, or one unit in the last place up here and down there.
    base = np.ones(40, dtype)
    seen = {cpu.digest(base)}
    pairs = [(i, j) for i in range(40) for j in range(i)]
    for i, j in pairs:
        flipped, moved = base.copy(), base.copy()
        flipped[[i, j]] *= -1
        moved[i], moved[j] = np.nextafter(base[i], 2 * base[i]), np.nextafter(base[j], 0 * base[j])
        seen |= {cpu.digest(flipped), cpu.digest(moved)}
    assert len(seen) == 2 * len(pairs) + 1


def test_a_digest_sees_the_sign_of_zero() -> None:
    for dtype in DTYPES:
        assert cpu.digest(np.array([0.0], dtype)) != cpu.digest(np.array([-0.0], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_broken_element_anywhere_is_found(dtype: str) -> None:
    for n in (1, 8, 65, 1001):
        x = make(dtype, n, "random", n)
        x[0] = np.finfo(dtype).max
        assert cpu.finite(x)
        for where in {0, n // 2, n - 1}:
            for bad in (np.nan, np.inf, -np.inf):
                y = x.copy()
                y[where] = bad
                assert not cpu.finite(y)


# What compiled code would not survive


def refused(error: type[Exception], words: str, kernel: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(error, match=words):
        kernel(*args)


def test_arrays_that_do_not_fit_each_other_are_refused() -> None:
    x, y = np.zeros(4, "float32"), np.zeros(5, "float32")
    refused(ValueError, r"one length.*float32\[4\], float32\[5\]", cpu.accumulate, x, y)
    refused(ValueError, "one length", cpu.sgd, x, y, 0.1, 1.0)
    refused(ValueError, "one length", cpu.momentum, x, x.copy(), y, 0.1, 0.9, 1.0)
    refused(ValueError, "one length", cpu.adam, x, x.copy(), x.copy(), y, *[0.1] * 8)
    refused(ValueError, "one length", cpu.lamb_norms, x, x.copy(), y, x.copy(), *[0.1] * 7)
    refused(ValueError, "one length", cpu.lamb, x, x.copy(), y, *[0.1] * 5)
    refused(ValueError, "one length", cpu.scaled_sum, x, [x.copy(), y], [1.0, 1.0])
    refused(ValueError, "not contiguous", cpu.accumulate, x[:2], x[::2])
    refused(ValueError, "one-dimensional", cpu.accumulate, x.reshape(2, 2), x.reshape(2, 2))
    refused(TypeError, "one dtype; got float32.*float64", cpu.accumulate, x, np.zeros(4))
    refused(TypeError, "got list", cpu.accumulate, x, [0.0] * 4)
    refused(TypeError, "got list", cpu.digest, [0.0])


@pytest.mark.parametrize("dtype", ["float16", "int32", "complex64", ">f4"])
def test_other_dtypes_are_refused(dtype: str) -> None:
    x = np.zeros(4, dtype)
    refused(TypeError, "float32 and float64", cpu.accumulate, x, x.copy())
    refused(TypeError, "float32 and float64", cpu.digest, x)


def test_read_only_arrays_are_read_and_never_written() -> None:
    x, constant = np.ones(4, "float32"), np.ones(4, "float32")
    constant.flags.writeable = False
    refused(ValueError, "read-only", cpu.accumulate, constant, x)
    refused(ValueError, "read-only", cpu.momentum, x, constant, x.copy(), 0.1, 0.9, 1.0)
    refused(ValueError, "read-only", cpu.pack, constant, [x], 0.5)
    for written in range(3):
        arrays = [constant if i == written else x.copy() for i in range(4)]
        refused(ValueError, "read-only", cpu.adam, *arrays, *[0.1] * 8)
        if written:
            refused(ValueError, "read-only", cpu.lamb_norms, *arrays, *[0.1] * 7)
    refused(ValueError, "read-only", cpu.lamb, constant, x.copy(), x.copy(), *[0.1] * 5)
    cpu.lamb_norms(constant, x.copy(), x.copy(), constant, *[0.1] * 7)
    assert cpu.sum_of_squares(constant) == 4.0
    cpu.accumulate(x, constant)
    cpu.pack(x, [constant], 3.0)
    cpu.scaled_sum(x, [constant, constant], [1.0, 2.0])
    assert x.tolist() == [3, 3, 3, 3]
    assert cpu.digest(constant) == reference.digest(np.ones(4, "float32"))
    assert cpu.finite(constant)


def test_a_sum_refuses_inputs_that_overlap_its_output() -> None:
    x = np.zeros(10, "float32")
    refused(ValueError, "overlaps", cpu.scaled_sum, x[:6], [np.ones(6, "float32"), x[:6]], [1, 1])
    refused(ValueError, "overlaps", cpu.scaled_sum, x[:6], [x[4:]], [1])
    cpu.scaled_sum(x[:5], [x[5:]], [1])
    refused(ValueError, "0 inputs", cpu.scaled_sum, x, [], [])
    refused(ValueError, "1 inputs and 2 scales", cpu.scaled_sum, x, [x.copy()], [1, 1])


def test_tensors_that_do_not_fill_the_flat_array_are_refused() -> None:
    flat, small = np.zeros(4, "float32"), np.zeros(3, "float32")
    for kernel in (lambda *a: cpu.pack(*a, 1.0), lambda *a: cpu.pack(*a, 0.5), cpu.unpack):
        refused(ValueError, "3 elements, the flat array 4", kernel, flat, [small])
        refused(ValueError, "0 elements", kernel, flat, [])
        refused(TypeError, "float64, the flat array float32", kernel, flat, [np.zeros(4)])
        refused(TypeError, "got list", kernel, flat, [[0.0] * 4])


def test_an_array_in_odd_memory_is_as_good() -> None:
    raw = np.zeros(4 * 1001 + 1, np.uint8)
    x = raw[1:].view("float32")
    assert not x.flags.aligned
    x[:] = make("float32", 1001, "random", 0)
    expected = x.copy() * 2
    cpu.accumulate(x, x)
    np.testing.assert_array_equal(x, expected)
    assert cpu.digest(x) == reference.digest(expected)
