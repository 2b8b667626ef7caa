"""What each library's backend promises, as one suite for all of them."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from mmap import PAGESIZE, mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from spotmpi.arrays.backend import (
    DEVICE,
    HOST,
    Backend,
    backend_of,
    digest_of,
    fill,
    in_host_memory,
    kernels_for,
)
from spotmpi.errors import UsageError
from spotmpi.kernels import cpu, reference
from tests import fake_cupy as cupy
from tests.boxed import BOXED, Boxed, box, boxes, unbox


class Library(NamedTuple):
    """One, with ways to and from NumPy that are not the backend's."""

    backend: Backend
    make: Callable[[Any], Any]
    look: Callable[[Any], np.ndarray]


@pytest.fixture(params=["NumPy", "Boxed", "CuPy"])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    with boxes(), cupy.installed():
        yield {
            "NumPy": Library(HOST, np.array, np.asarray),
            "Boxed": Library(BOXED, box, unbox),
            "CuPy": Library(DEVICE, cupy.asarray, cupy.ndarray.get),
        }[request.param]


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """To the bit."""
    kind = (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return kind and found.tobytes() == expected.tobytes()


def test_a_backend_knows_its_own_arrays(library: Library) -> None:
    assert backend_of(library.make(np.zeros(2))) is library.backend
    other = np.zeros(2) if library.backend is BOXED else box([0.0])
    assert not library.backend.owns(other)
    for nothing in (None, 0.5, [0.5], memoryview(b""), "w"):
        assert not library.backend.owns(nothing)


def test_an_array_is_described_by_dtype_and_shape(library: Library) -> None:
    for dtype in ("float32", "float64", "int64"):
        for shape in ((), (0, 3), (2, 3)):
            array = library.make(np.zeros(shape, dtype))
            assert library.backend.describe(array) == (dtype, shape)


def test_arrays_fit_if_all_of_them_do(library: Library) -> None:
    fit, make = library.backend.fit, library.make
    good = [make(np.zeros((2, 3))), make(np.zeros(()))]
    shapes: list[tuple[int, ...]] = [(2, 3), ()]
    assert fit(good, "float64", shapes)
    assert fit([], "float64", [])
    assert not fit(good, "float32", shapes)
    assert not fit(good, "float64", [(3, 2), ()])
    assert not fit([good[0], 0.0], "float64", shapes)
    with pytest.raises(ValueError, match="zip"):
        fit(good, "float64", [(2, 3)])


def test_new_memory_is_zero_and_a_view_of_it_shares_it(library: Library) -> None:
    backend = library.backend
    flat = backend.zeros("float32", 8)
    assert backend.describe(flat) == ("float32", (8,))
    view = backend.view(flat, 1, (2, 3))
    backend.fill(view, 2.5)
    assert library.look(flat).tolist() == [0, *[2.5] * 6, 0]
    backend.fill(flat, -1)
    assert same(library.look(view), np.full((2, 3), -1, "float32"))
    assert backend.describe(backend.view(flat, 8, (0, 4))) == ("float32", (0, 4))
    assert backend.describe(backend.view(flat, 7, ())) == ("float32", ())


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_memory_that_is_occupied_has_the_content_that_it_had(library: Library, dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 255, 1 << 16, np.uint8).view(dtype)
    flat = library.make(values)
    library.backend.occupy(flat)
    assert same(library.look(flat), values)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_is_occupied_is_there() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE

    flat = np.frombuffer(mmap(-1, 1 << 24), np.float32)  # memory of its own, unlike NumPy's
    before = resident()
    HOST.occupy(flat)
    assert resident() - before > flat.nbytes // 2


def test_what_goes_to_the_host_and_comes_back_is_the_same_to_the_bit(library: Library) -> None:
    backend = library.backend
    words = np.random.default_rng(0).integers(0, 2**32, 12, np.uint32)  # NaNs with payloads too
    values = words.view(np.float32).reshape(3, 4)
    array = library.make(values)
    copy = backend.to_host(array)
    assert same(copy, values)
    assert copy.flags.c_contiguous
    copy[...] = 0  # and nobody notices
    assert same(library.look(array), values)
    fresh = backend.zeros("float32", 12)
    backend.from_host(backend.view(fresh, 0, (3, 4)), values)
    assert same(library.look(fresh), values.ravel())
    assert same(backend.to_host(library.make(np.float64(7))), np.array(7.0))


def test_words_are_copied_from_anywhere_to_anywhere(library: Library) -> None:
    """Also halves of elements."""
    backend = library.backend
    flat = library.make(np.arange(1.0, 5.0))
    words = np.zeros(5, np.uint32)
    backend.read_words(flat, 1, words[1:4])
    assert words.tolist() == [0, *np.arange(1.0, 3.0).view(np.uint32)[1:], 0]
    other = backend.zeros("float64", 4)
    backend.write_words(other, 1, words[1:4])
    assert library.look(other).view(np.uint32).tolist() == [0, *words[1:4], 0, 0, 0, 0]
    whole = np.zeros(8, np.uint32)
    backend.read_words(flat, 0, whole)
    backend.write_words(other, 0, whole)
    assert same(library.look(other), np.arange(1.0, 5.0))


def test_its_kernels_are_the_reference_to_the_bit(library: Library) -> None:
    chance = np.random.default_rng(1)
    make, look, kernels = library.make, library.look, library.backend.kernels
    w, v, g = (chance.standard_normal(33).astype("float32") for _ in range(3))
    mine, theirs = [make(x) for x in (w, v, g)], [x.copy() for x in (w, v, g)]
    for arrays, one in ((mine, kernels), (theirs, reference)):
        p, q, r = arrays
        one.momentum(p, q, r, 0.1, 0.9, 0.5)
        one.sgd(p, r, 0.1, 0.5)
        one.accumulate(q, p)
        one.scaled_sum(r, [p, q], [0.5, 2.0])
        one.pack(r, [arrays[0]], 3.0)
    assert all(same(look(a), b) for a, b in zip(mine, theirs, strict=True))
    assert kernels.digest(mine[0]) == reference.digest(theirs[0])
    assert kernels.finite(mine[0])
    library.backend.fill(mine[0], np.nan)
    assert not kernels.finite(mine[0])


def test_what_is_asked_of_any_array_is_asked_of_its_backend(library: Library) -> None:
    flats = [library.make(np.ones(3)), library.make(np.ones(2, "float32"))]
    assert kernels_for(flats[0]) is library.backend.kernels
    assert digest_of(flats) == digest_of([np.ones(3), np.ones(2, "float32")])
    assert digest_of(flats) != digest_of(flats[::-1])
    fill(flats, 4)
    assert [library.look(flat).tolist() for flat in flats] == [[4, 4, 4], [4, 4]]
    assert same(in_host_memory(flats[0]), np.full(3, 4.0))


def test_what_lies_in_host_memory_is_not_copied() -> None:
    for x in (np.ones(3), 0.5, [1, 2], None):
        assert in_host_memory(x) is x


def test_a_view_that_is_read_only_refuses_to_be_written() -> None:
    flat = HOST.zeros("float32", 4)
    view = HOST.view(flat, 0, (4,), read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    flat[0] = 1
    assert view[0] == 1


def test_what_is_no_array_of_any_library_is_refused() -> None:
    assert kernels_for(np.zeros(1)) is cpu
    with pytest.raises(UsageError, match=r"memoryview is no array .* use NumPy or CuPy arrays"):
        backend_of(memoryview(b""))
    with pytest.raises(UsageError, match=r"tests\.boxed\.Boxed is no array"):
        backend_of(box([1.0]))
    with boxes(), pytest.raises(UsageError, match=r"float is no .* NumPy or CuPy or Boxed arrays"):
        backend_of(0.5)


def test_a_boxed_array_refuses_whatever_numpy_tries() -> None:
    """Else the tests that use it would show nothing."""
    one, buffer = box([1.0, 2.0]), np.zeros(2)
    attempts: list[Callable[[], Any]] = [
        lambda: np.asarray(one),
        lambda: buffer + one,
        lambda: one + buffer,
        lambda: buffer.__setitem__(..., one),
        lambda: np.concatenate([buffer, one]),  # type: ignore[list-item]
        lambda: memoryview(one),  # type: ignore[arg-type]
        lambda: one[0],
        lambda: len(one),
        lambda: float(one),
        lambda: list(one),
        lambda: cpu.digest(one),  # type: ignore[arg-type]
        lambda: pickle.dumps(one),
    ]
    for attempt in attempts:
        with pytest.raises(TypeError):
            attempt()
    for name in ("dtype", "shape", "size", "nbytes", "copy", "tobytes", "__array_interface__"):
        assert not hasattr(one, name)
    assert isinstance(one, Boxed)
