"""The GPU's kernels against the reference, to the bit save for the payload of NaNs: their own
source, run on the CPU. Whether CUDA's compiler takes it is in test_gpu_source.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from spotmpi.kernels import gpu, reference
from spotmpi.kernels.reference import FORMATS, NARROWED_BLOCK, narrowed_bytes
from tests import fake_cupy as cupy
from tests.gpu_on_cpu import KernelError, compiled
from tests.kernels import adaptive, test_cpu, test_narrow
from tests.kernels.test_cpu import DTYPES, KINDS, SCALARS, bits, make

SIZES = (0, 1, 2, 3, 7, 64, 255, 256, 257, 1001, 5000)


@pytest.fixture(scope="module", autouse=True)
def _device() -> Iterator[None]:
    with cupy.installed():
        yield
        _WHOLE.clear()  # while there is a device that they can be given back to


@pytest.fixture(autouse=True)
def _numpy_says_nothing_about_overflow() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True, params=[1, 4096], ids=["one block", "many blocks"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads have many elements each, or one."""
    monkeypatch.setattr(gpu, "_BLOCKS", request.param)


def onto(x: Any, away: int = 0) -> Any:
    """On the device, so many elements behind the beginning of its memory, beside numbers that
    nobody may touch."""
    filled = np.full(x.size + away + 3, 77, x.dtype)
    filled[away : away + x.size] = x.ravel()
    whole = cupy.asarray(filled)
    part = whole[away : away + x.size].reshape(x.shape)
    _WHOLE[part.data.ptr] = whole, away, x.size
    return part


_WHOLE: dict[int, tuple[Any, int, int]] = {}
"""By address what was made last of `onto`: in what it lies, from where on, and its size."""


def beside(x: Any) -> list[Any]:
    """What lies around it, which is to be as it was."""
    whole, away, size = _WHOLE[x.data.ptr]
    return [*whole[:away].get(), *whole[away + size :].get()]


def compare(run: Callable[[Any, list[Any]], Any], arrays: list[Any], away: int = 1) -> None:
    """``run(kernels, arrays)`` does the same to all arrays, and returns the same."""
    expected = [x.copy() for x in arrays]
    got = [onto(x, away + which) for which, x in enumerate(arrays)]
    assert run(reference, expected) == run(gpu, got)
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(bits(a), bits(b.get()))
        assert set(beside(b)) == {77}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_equals_the_reference_to_the_bit(dtype: str, kind: str) -> None:
    for seed, n in enumerate(SIZES):
        x = [make(dtype, n, kind, 10 * seed + i) for i in range(3)]
        compare(lambda k, a: k.accumulate(a[0], a[1]), x)
        compare(lambda k, a: k.exchange(a[0], a[1], a[2]), x)
        compare(lambda k, a: k.finite(a[0]), x)
        compare(lambda k, a: (k.digest(a[0]), k.digest(a[0], 12345)), x)
        compare(lambda k, a: k.digest(a[0], 2**33 - 5), x)
        for s in SCALARS:
            compare(lambda k, a, s=s: k.blend(a[0], a[1], s, 0.7), x)
            compare(lambda k, a, s=s: k.blend(a[0], a[1], 0.3, s), x)
            compare(lambda k, a, s=s: k.sgd(a[0], a[1], 0.1, s), x)
            compare(lambda k, a, s=s: k.momentum(a[0], a[1], a[2], s, 0.9, 0.7), x)
            compare(lambda k, a, s=s: k.momentum(a[0], a[1], a[2], 0.1, s, 1.0), x)
            compare(lambda k, a, s=s: k.pack(a[0], [a[1][:1], a[1][1:]], s), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_moments_and_sums_of_squares_equal_the_reference_to_the_bit(dtype: str, kind: str) -> None:
    for seed, n in enumerate(adaptive.SIZES):
        x = [make(dtype, n, kind, 10 * seed + i) for i in range(4)]
        x[2] = np.abs(x[2])
        for call in adaptive.calls(odd=n <= 1001):
            compare(call, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_of_any_number_of_inputs_is_added_from_left_to_right(dtype: str, kind: str) -> None:
    for n in (0, 1, 1001):
        for count in (*range(1, 11), 16, 17, 33):
            x = [make(dtype, n, kind, i) for i in range(count + 1)]
            scales = [SCALARS[i % 4] for i in range(count)]
            compare(lambda k, a, s=scales: k.scaled_sum(a[0], a[1:], s), x)


def test_a_sum_of_negative_zeros_stays_negative() -> None:
    for count in (1, 2, 8, 9):
        out = onto(np.ones(1, "float32"))
        gpu.scaled_sum(out, [onto(np.full(1, -0.0, "float32"))] * count, [1.0] * count)
        assert np.signbit(out.get()[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_any_shape_are_packed_and_unpacked(dtype: str) -> None:
    shapes = [(), (0, 3), (1,), (7,), (5, 3, 2), (30, 20), (0,)]
    tensors = [make(dtype, int(np.prod(shape)), "broken", 1).reshape(shape) for shape in shapes]
    theirs = [onto(tensor, 2) for tensor in tensors]
    slanted = make(dtype, 60, "odd", 2).reshape(6, 10)
    tensors += [slanted.T, slanted[::2, ::3]]
    theirs += [onto(slanted).T, onto(slanted)[::2, ::3]]
    size = sum(tensor.size for tensor in tensors)
    for scale in (1.0, 0.3):
        expected, got = np.zeros(size, dtype), onto(np.zeros(size, dtype), 1)
        reference.pack(expected, tensors, scale)
        gpu.pack(got, theirs, scale)
        np.testing.assert_array_equal(bits(expected), bits(got.get()))
    # What is unpacked is copied, NaNs and all.
    flat = np.random.default_rng(3).integers(0, 2**32, size * 2, np.uint32).view(dtype)[:size]
    fresh = [onto(np.zeros(tensor.shape, dtype), 3) for tensor in tensors[:-2]]
    fresh += [onto(np.zeros((6, 10), dtype)).T, onto(np.zeros((6, 10), dtype))[::2, ::3]]
    gpu.unpack(onto(flat, 5), fresh)
    expected_tensors = [np.zeros(tensor.shape, dtype) for tensor in tensors]
    reference.unpack(flat, expected_tensors)
    for a, b in zip(expected_tensors, fresh, strict=True):
        assert a.tobytes() == b.get().tobytes()
    assert all(set(beside(one)) == {77} for one in fresh[:-2])
    gpu.pack(onto(np.zeros(0, dtype)), [], 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_broken_element_anywhere_is_found(dtype: str) -> None:
    for n in (1, 8, 65, 1001):
        x = make(dtype, n, "random", n)
        x[0] = np.finfo(dtype).max
        assert gpu.finite(onto(x))
        for where in {0, n // 2, n - 1}:
            for bad in (np.nan, np.inf, -np.inf):
                y = x.copy()
                y[where] = bad
                assert not gpu.finite(onto(y))


def summed(form: str, inputs: list[Any], rest: Any, came: Any) -> list[Any]:
    """As `test_narrow.summed`, on the device."""
    wire = cupy.asarray(np.full(narrowed_bytes(rest.size, form), 77, np.uint8))
    total, following = onto(np.full_like(rest, 77), 1), onto(np.full_like(rest, 77), 2)
    scales = [1.0, 3.0, 0.3, 7.0, 1.0, 0.5, 2.0, 1.0, 1.0][: len(inputs)]
    brought = None if came is None else cupy.asarray(came)
    inputs = [onto(one, 3) for one in inputs]
    gpu.narrow_sum(wire, total, following, onto(rest), brought, inputs, scales, form)
    return [one.get() for one in (wire, total, following)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", test_narrow.KINDS)
def test_sums_are_narrowed_to_the_same_bits(form: str, kind: str) -> None:
    """Also of NaNs: they go to all replicas, whose bits must be equal."""
    sizes = (0, 1, 7, NARROWED_BLOCK - 1, NARROWED_BLOCK, 3 * NARROWED_BLOCK + 3)
    for seed, size in enumerate(sizes):
        made = test_narrow.make(size, kind, seed)
        rest = np.where(np.isfinite(made), made, 0)
        came = None
        for count in (1, 0, 2, 5):
            inputs = [test_narrow.make(size, kind, 10 * seed + one) for one in range(count)]
            expected = test_narrow.summed(reference, form, inputs, rest, came)
            for one, other in zip(expected, summed(form, inputs, rest, came), strict=True):
                assert one.tobytes() == other.tobytes()
            came = expected[0]
            wide = onto(np.empty(size, np.float32))
            gpu.widen(wide, cupy.asarray(came), form)
            assert wide.get().tobytes() == expected[1].tobytes()


def test_every_sixteen_bits_are_widened_as_the_reference_does_it() -> None:
    every = np.arange(2**16).astype(np.uint16)
    for form in ("bf16", "fp16"):
        wire = np.zeros(narrowed_bytes(every.size, form), np.uint8)
        wire[-2 * every.size :] = every.view(np.uint8)
        if form == "fp16":
            wire[: -2 * every.size] = np.ones(every.size // NARROWED_BLOCK, "float32").view("u1")
        wide, got = np.empty(every.size, np.float32), onto(np.empty(every.size, np.float32))
        reference.widen(wide, wire, form)
        gpu.widen(got, cupy.asarray(wire), form)
        np.testing.assert_array_equal(bits(wide), bits(got.get()))


def test_signatures_are_those_of_the_reference() -> None:
    assert gpu.__all__ == reference.__all__
    for name in reference.__all__:
        mine, its = (inspect.signature(getattr(k, name)) for k in (gpu, reference))
        assert list(mine.parameters) == list(its.parameters)


# What kernels would not survive is refused as on the CPU.


def test_arrays_that_do_not_fit_each_other_are_refused() -> None:
    refused = test_cpu.refused
    x, y = (cupy.zeros(size, "float32") for size in (4, 5))
    z = cupy.zeros(4, "float32")
    refused(ValueError, r"one length.*float32\[4\], float32\[5\]", gpu.accumulate, x, y)
    refused(ValueError, "one length", gpu.scaled_sum, x, [z, y], [1.0, 1.0])
    refused(ValueError, "not contiguous", gpu.accumulate, x[:2], x[::2])
    refused(ValueError, "one-dim", gpu.accumulate, x.reshape(2, 2), x.reshape(2, 2))
    refused(TypeError, "one dtype; got float32.*float64", gpu.accumulate, x, cupy.zeros(4))
    refused(TypeError, "CuPy arrays; got ndarray", gpu.accumulate, x, np.zeros(4, "float32"))
    refused(TypeError, "got list", gpu.digest, [0.0])
    refused(TypeError, "float32 and float64", gpu.finite, cupy.zeros(4, "int32"))
    refused(ValueError, "overlaps", gpu.scaled_sum, x[:3], [x[1:]], [1])
    refused(ValueError, "0 inputs", gpu.scaled_sum, x, [], [])
    refused(ValueError, "1 inputs and 2 scales", gpu.scaled_sum, x, [z], [1, 1])
    for kernel in (lambda *a: gpu.pack(*a, 1.0), gpu.unpack):
        refused(ValueError, "5 elements, the flat array 4", kernel, x, [y])
        refused(TypeError, "float64, the flat array float32", kernel, x, [cupy.zeros(4)])
        refused(TypeError, "CuPy arrays; got list", kernel, x, [[0.0] * 4])
    wire = cupy.zeros(8, "uint8")
    refused(ValueError, "no narrow format", gpu.widen, x, wire, "fp8")
    refused(ValueError, "4 elements take 8 bytes in bf16", gpu.widen, x, wire[:7], "bf16")
    refused(TypeError, "only float32", gpu.widen, cupy.zeros(4), wire, "bf16")


# These checks can fail.


WRONG: list[Any] = [
    ("out[i] + x[i]", "out[i] + x[i + 1]", lambda k, a: k.accumulate(a[0], a[1])),
    ("b * out[i] + a", "out[i] + a", lambda k, a: k.blend(a[0], a[1], 0.3, 0.7)),
    ("(brought - own[i])", "brought", lambda k, a: k.exchange(a[0], a[1], a[2])),
    ("i < (n)", "i + 1 < (n)", lambda k, a: k.accumulate(a[0], a[1])),
    ("sum = sum + q * b[i];", "sum = q * b[i] + sum * (real)1.0000001;",
     lambda k, a: k.scaled_sum(a[0], a[1:], [0.3, 0.7])),
    ("sum = out[i] + sum", "sum = sum", lambda k, a: k.scaled_sum(a[0], [a[1]] * 9, [0.3] * 9)),
    ("(u32)i + start", "(u32)i", lambda k, a: k.digest(a[0], 3)),
    ("*broken = 1", "*broken = 0", lambda k, a: k.finite(a[2])),
    ("new2 * (gradient * gradient)", "new2 * gradient * gradient",
     lambda k, a: k.lamb_norms(a[0], a[1], a[1], a[2], *[0.3] * 7)),
    ("+ decay * param", "", lambda k, a: k.lamb(a[0], a[1], a[1], *[0.3] * 5)),
    ("i += LANES", "i += 2 * LANES", lambda k, a: k.sum_of_squares(a[0])),
    ("lanes[stretch * LANES + j]", "lanes[stretch * LANES + LANES - 1 - j]",
     lambda k, a: k.sum_of_squares(a[0])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [*WRONG[:2], *(pytest.param(*one, marks=pytest.mark.matrix) for one in WRONG[2:])],
)
def test_a_wrong_kernel_is_found(
    right: str, wrong: str, what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = gpu.source("arithmetic.cu")
    assert right in source
    texts = {"arithmetic.cu": source.replace(right, wrong), "narrow.cu": gpu.source("narrow.cu")}
    monkeypatch.setattr(gpu, "source", texts.__getitem__)
    x = [make("float32", 1001, "random", i) for i in range(3)]
    x[2][500] = np.inf
    for forgets in (gpu._kernel, gpu._module):
        forgets.cache_clear()
    try:
        with pytest.raises(AssertionError):
            compare(what, x)
    finally:
        for forgets in (gpu._kernel, gpu._module):
            forgets.cache_clear()


def test_a_kernel_that_fuses_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a device would, if the compiler were let: hence the option."""
    source = gpu.source("arithmetic.cu")
    right = "params[i] - rate * (scale * grads[i])"
    assert right in source
    fused = source.replace(right, "(real)__builtin_fma(-(double)rate, scale * grads[i], params[i])")
    texts = {"arithmetic.cu": fused, "narrow.cu": gpu.source("narrow.cu")}
    monkeypatch.setattr(gpu, "source", texts.__getitem__)
    x = [make("float64", 1001, "random", i) for i in range(2)]
    for forgets in (gpu._kernel, gpu._module):
        forgets.cache_clear()
    try:
        with pytest.raises(AssertionError):
            compare(lambda k, a: k.sgd(a[0], a[1], 0.1, 0.3), x)
    finally:
        for forgets in (gpu._kernel, gpu._module):
            forgets.cache_clear()


def test_what_the_device_would_not_launch_is_not_launched_here() -> None:
    kernels = compiled(gpu.source("arithmetic.cu"))
    x, n = np.zeros(1, "float32"), np.uint64(1)
    at = np.uint64(x.ctypes.data)
    for arguments in ([at, n], [at, at, np.uint32(1)], [at, at, n, n]):
        with pytest.raises(KernelError, match="takes arguments of"):
            kernels.launch("accumulate_float", 1, 1, arguments)
    for grid, block in ((0, 1), (1, 0), (1, 2000)):
        with pytest.raises(KernelError, match="not possible"):
            kernels.launch("accumulate_float", grid, block, [at, at, n])
    with pytest.raises(KernelError, match="error"):
        compiled('extern "C" __global__ void wrong(int* x) { y = 1; }')


def test_a_device_is_late() -> None:
    """As late as it may be: else these tests would show nothing of whoever forgets to wait."""
    x, stream = cupy.zeros(4), cupy.Stream(non_blocking=True)
    room = cupy.cuda.alloc_pinned_memory(32)
    seen = np.frombuffer(room, "float64", 4)
    x.fill(2.0)
    event = cupy.Event()
    event.record()
    stream.wait_event(event)
    x.data.copy_to_host_async(room.ptr, 32, stream)
    assert np.isnan(seen).all()
    stream.synchronize()
    assert seen.tolist() == [2.0] * 4
    with pytest.raises(AssertionError, match="pinned"):
        x.data.copy_to_host_async(np.zeros(4).ctypes.data, 32, stream)
    for attempt in (np.asarray, float, len, list, lambda one: np.zeros(4) + one):
        with pytest.raises(TypeError):
            attempt(x)
