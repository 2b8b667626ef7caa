"""Values as bytes: what goes in comes out, bit by bit, and nothing else does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotmpi.errors import UsageError
from spotmpi.protocol.plain_values import NONSENSE, pack, pack_in_place, unpack, unpack_in_place

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
    | st.binary()
)
KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.lists(inner, min_size=1, max_size=3).map(lambda many: ["list", *many])
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same([*one.items()], [*other.items()])
    return bool(one == other)


@given(VALUES)
def test_what_goes_in_comes_out(value: Any) -> None:
    assert same(unpack(pack(value)), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1],
        np.array([math.nan, -0.0, math.inf]),
        np.zeros((0, 4), np.int16),
        np.array(7.5),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.array(["ä", "long"]),
        np.array([b"x"]),
        np.arange(3, dtype=">i4"),
        np.array(["2026-11-22"], "M8[D]"),
    ],
)
def test_arrays_keep_their_type_shape_and_bits(array: np.ndarray) -> None:
    (found,) = unpack(pack([array]))
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()
    found[...] = found  # it is the caller's to change


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(0.1), np.int8(-3), np.bool_(True)])
def test_numbers_of_numpy_keep_their_type(number: Any) -> None:
    found = unpack(pack(number))
    assert type(found) is type(number)
    assert found == number


def test_numbers_that_are_not_finite_come_through() -> None:
    found = unpack(pack([math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def itself() -> list[Any]:
    """A list that holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "values of <class 'object'> cannot be passed on; give numbers, strings"),
        ([{"a": {1, 2}}], "values of <class 'set'> cannot"),
        (len, "builtin_function_or_method'> cannot"),
        (np.array([None]), "arrays of object cannot"),
        (np.zeros(2, [("a", "f4")]), "cannot be passed on"),
        (itself(), "nested more than 100 levels deep"),
    ],
)
def test_nothing_else_does(value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        pack(value)


def test_its_bytes_stay_what_they_are() -> None:
    """Checkpoints have them, and the course of a script is a checksum of some."""
    assert pack((64, 1)) == b"\x0e\0\0\0\0\0\0\0" + b'["tuple",64,1]'
    array = np.array([1, 2], np.int16)
    text = b'["dict",["a",["array","<i2",[2]]],["b",["bytes",3]]]'
    data = len(text).to_bytes(8, "little") + text + b"\1\0\2\0xyz"
    assert pack({"a": array, "b": b"xyz"}) == data


def test_in_place_the_arrays_are_where_they_were() -> None:
    array, other = np.arange(5.0), np.arange(6).reshape(2, 3)
    first, *_ = parts = pack_in_place({"a": array, "b": b"xyz", "c": [other, other.T]})
    assert len(first) % 16 == 0
    found = unpack_in_place(parts)
    assert np.shares_memory(found["a"], array)
    assert np.shares_memory(found["c"][0], other)
    assert not np.shares_memory(found["c"][1], other), "it is not contiguous"
    assert found["b"] == b"xyz"
    assert np.array_equal(found["c"][1], other.T)
    whole = memoryview(bytearray().join(parts))
    again = unpack_in_place([whole])
    assert np.shares_memory(again["a"], whole)
    assert again["a"].flags.aligned
    assert np.array_equal(again["a"], array)
    assert np.array_equal(again["c"][1], other.T)
    assert not np.shares_memory(unpack(bytes(whole))["a"], whole)


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"{", b'["bytes",4]', b'["array","<i4",[1]]', b'["array","i4,,",[1]]'),
        *(b'["array","<i4",[-1]]', b'["array","<i4"]', b'["bytes","a"]', b'["dict",1]'),
    ],
)
def test_what_nobody_has_packed_is_nonsense(said: bytes) -> None:
    data = len(said).to_bytes(8, "little") + said + b"xyz"
    for read in (unpack, lambda whole: unpack_in_place([memoryview(whole)])):
        with pytest.raises(NONSENSE):
            read(data)
        with pytest.raises(NONSENSE):
            read(data[:5])
