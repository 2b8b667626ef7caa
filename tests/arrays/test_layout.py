"""Flat buckets and the user's arrays."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import hypothesis
import hypothesis.strategies as st
import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 from here on
import numpy as np
import pytest

from spotmpi.arrays.layout import HALVES, Layout
from spotmpi.arrays.views import Views
from spotmpi.arrays.word_view import WordView
from spotmpi.errors import UsageError


def params() -> dict[Any, Any]:
    return {
        "w1": np.arange(6, dtype="float32").reshape(2, 3),
        "b1": np.float64(7) * np.ones(2),
        "empty": np.zeros((0, 4), "float32"),
        "scalar": np.array(9, "float32"),
    }


def test_a_bucket_for_each_dtype_holds_arrays_in_the_order_of_the_parameters() -> None:
    layout = Layout.of(params())
    double, single = layout.buckets
    assert (single.dtype, single.size) == ("float32", 7)
    assert [(e.key, e.shape, e.start, e.stop) for e in single.entries] == [
        ("w1", (2, 3), 0, 6),
        ("empty", (0, 4), 6, 6),
        ("scalar", (), 6, 7),
    ]
    assert (double.dtype, double.size, len(double.entries)) == ("float64", 2, 1)
    swapped = Layout.of([np.zeros(1), np.zeros(1, "float32")])
    assert [bucket.dtype for bucket in swapped.buckets] == ["float32", "float64"]


def test_buckets_come_in_the_order_in_which_a_backward_pass_completes_them() -> None:
    sizes = [3, 1, 9, 2, 2, 1, 4]
    tree: dict[Any, Any] = {f"w{n}": np.zeros(size, "float32") for n, size in enumerate(sizes)}
    tree["w5"] = np.zeros(1)
    layout = Layout.of(tree, bucket_mb=20e-6)
    keys = [[entry.key for entry in bucket.entries] for bucket in layout.buckets]
    assert keys == [["w6"], ["w5"], ["w3", "w4"], ["w2"], ["w0", "w1"]]
    flats = layout.allocate()
    layout.pack({key: np.full_like(array, int(key[1])) for key, array in tree.items()}, flats, 1.0)
    assert [flat.tolist() for flat in flats] == [
        [6] * 4, [5], [3, 3, 4, 4], [2] * 9, [0, 0, 0, 1]
    ]  # fmt: skip
    assert [str(array) for array in layout.views(flats).values()] == [
        str(np.full(size, n, tree[f"w{n}"].dtype)) for n, size in enumerate(sizes)
    ]
    # What comes first and what comes last is small; what fits into one bucket is not cut.
    small = Layout.of(
        [np.zeros(size, "float32") for size in [20, 5, 1, 600, 100]], bucket_mb=2.8e-3
    )
    assert [bucket.size for bucket in small.buckets] == [100, 600, 26]
    assert [bucket.size for bucket in Layout.of([np.zeros(9), np.zeros(7)]).buckets] == [16]
    flats[3][5] = np.nan
    assert layout.check_finite(flats[2:4], [2, 3]) == 'grads["w2"]'
    assert layout.check_finite(flats[:3]) is None


def test_new_buckets_are_zero() -> None:
    second, first = Layout.of(params()).allocate()
    assert (first.size, second.size) == (7, 2)
    assert (first.dtype, second.dtype) == ("float32", "float64")
    assert not first.any()
    assert not second.any()


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_packing_fills_what_the_views_show(kind: type) -> None:
    tree = params() if kind is dict else kind(params().values())
    layout = Layout.of(tree)
    flats = layout.allocate()
    layout.pack(tree, flats, 2.0)
    assert flats[1].tolist() == [0, 2, 4, 6, 8, 10, 18]
    assert flats[0].tolist() == [14, 14]
    views: Any = layout.views(flats)
    assert type(views) is kind
    if kind is dict:
        assert list(views) == list(params())
        views = list(views.values())
    for view, original in zip(views, params().values(), strict=True):
        assert (view.shape, view.dtype) == (original.shape, original.dtype)
        np.testing.assert_array_equal(view, 2 * original)
    flats[1][0] = -1
    assert views[0][0, 0] == -1


def test_gradients_may_come_in_any_order_layout_or_kind_of_sequence() -> None:
    layout = Layout.of({"a": np.zeros((2, 3)), "b": np.zeros(())})
    flats = layout.allocate()
    transposed = np.arange(6.0).reshape(3, 2).T
    layout.pack(OrderedDict(b=np.float64(7), a=transposed), flats, 1.0)
    assert flats[0].tolist() == [0, 2, 4, 1, 3, 5, 7]
    listed = Layout.of([np.zeros(2), np.zeros(1)])
    flats = listed.allocate()
    listed.pack((np.arange(6.0)[::3], np.ones(1)), flats, 1.0)
    assert flats[0].tolist() == [0, 3, 1]


ARRAYS = st.builds(
    lambda shape, dtype: np.zeros(shape, dtype),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(["float32", "float64"]),
)


@hypothesis.given(
    st.dictionaries(st.text(max_size=3) | st.integers(0, 5), ARRAYS, min_size=1).filter(
        lambda tree: len({str(key) for key in tree}) == len(tree)
    )
)
def test_whatever_fits_comes_back_to_the_bit(tree: dict[Any, Any]) -> None:
    rng = np.random.default_rng(0)
    tree = {key: rng.standard_normal(x.shape).astype(x.dtype) for key, x in tree.items()}
    layout = Layout.of(tree)
    flats = layout.allocate()
    layout.pack(dict(reversed(tree.items())), flats, 1.0)
    views: Any = layout.views(flats)
    assert list(views) == list(tree)
    for key, x in tree.items():
        np.testing.assert_array_equal(views[key], x)
        assert views[key].dtype == x.dtype


def test_nested_arrays_lie_in_buckets_by_their_names() -> None:
    w, b = np.arange(6.0).reshape(2, 3), np.arange(2.0)
    tree = {"encoder": [{"w": w}, {"w": w + 10}], "b": b}
    layout = Layout.of(tree)
    assert layout.keys == ("encoder/0/w", "encoder/1/w", "b")
    flats = layout.allocate()
    layout.pack({"b": b, "encoder": tuple(tree["encoder"])}, flats, 2.0)
    views = layout.views(flats)
    np.testing.assert_array_equal(views["encoder"][1]["w"], 2 * (w + 10))
    assert np.shares_memory(views["b"], flats[0])
    with refused(r'grads\["encoder/1/w"\] is of shape \(2,\)', r"\(2, 3\)"):
        layout.pack({"encoder": [{"w": w}, {"w": b}], "b": b}, flats, 1.0)
    flats[0][8] = np.nan
    assert layout.check_finite(flats) == 'grads["encoder/1/w"]'


def test_gradients_are_blended_with_what_is_there() -> None:
    layout = Layout.of(params(), bucket_mb=1e-5)
    flats, room = layout.allocate(), layout.room()
    assert {dtype: buffer.size for dtype, buffer in room.items()} == {"float32": 6, "float64": 2}
    layout.pack(params(), flats, 1.0)
    layout.blend({key: np.ones_like(x) for key, x in params().items()}, flats, 3.0, 2.0, room)
    for key, array in layout.views(flats).items():
        np.testing.assert_array_equal(array, 2 * params()[key] + 3)
    with refused(r'"w1"\] is of shape'):
        layout.blend({**params(), "w1": np.zeros(2, "float32")}, flats, 1.0, 1.0, room)


@pytest.mark.parametrize("half", HALVES)
def test_arrays_of_half_precision_lie_in_buckets_of_single(half: str) -> None:
    tree = {"h": np.ones((2, 2), half), "s": np.ones(3, "float32"), "d": np.ones(1)}
    layout = Layout.of(tree, halves=True)
    _, single = layout.buckets
    assert (single.dtype, single.size) == ("float32", 7)
    assert [entry.key for entry in single.halves] == ["h"]
    assert layout.described["h"] == ("float32", (2, 2))
    assert layout.signature != Layout.of({**tree, "h": np.ones((2, 2), "float32")}).signature
    flats = layout.allocate()
    layout.pack(tree, flats, 1 / 3)
    assert (flats[1] == np.float32(1 / 3)).all()  # the product is not rounded
    views = Views(layout, flats, read_only=True)
    assert views.tree["h"].dtype == np.dtype(half)
    assert (views.tree["h"] == np.float32(1 / 3).astype(half)).all()
    with pytest.raises(ValueError, match="read-only"):
        views.tree["h"][...] = 0
    seen = views.tree["h"]
    flats[1][:4] = 5
    assert seen[0, 0] != 5
    views.round()
    assert (seen == 5).all()
    # A gradient that is not rounded is as good; one of another precision is none.
    layout.pack({**tree, "h": np.full((2, 2), 7, "float32")}, flats, 1.0)
    layout.pack_one("h", np.full((2, 2), 2, half), flats, 3.0)
    assert (layout.named(flats)["h"] == 6).all()
    with refused(r'grads\["h"\] is float64, expected a ' + half):
        layout.pack({**tree, "h": np.ones((2, 2))}, flats, 1.0)
    with refused(r'params\["h"\] is ' + half + ", expected float32 or float64: convert"):
        Layout.of(tree)
    with refused(r'"i"\] is int8, expected float32 or float64 or float16 or bfloat16: convert'):
        Layout.of({"i": np.ones(1, "int8")}, halves=True)


def test_signatures_tell_layouts_apart_and_nothing_else() -> None:
    a, b = np.zeros((2, 3)), np.zeros(4, "float32")
    different: list[Any] = [
        [a, b],
        [b, a],
        (a, b),
        {"a": a, "b": b},
        {"b": b, "a": a},
        {"a": a, "c": b},
        {0: a, 1: b},
        {"0": a, "1": b},
        [a.T, b],
        [a.ravel(), b],
        [a.astype("float32"), b],
        [a],
    ]
    signatures = [Layout.of(tree).signature for tree in different]
    assert len(set(signatures)) == len(different)
    assert all(0 <= signature < 2**32 for signature in signatures)
    assert Layout.of([a + 1, b + 1]).signature == signatures[0]


def refused(*words: str) -> Any:
    return pytest.raises(UsageError, match=".*".join(words))


def test_parameters_that_cannot_be_trained_are_refused_by_name() -> None:
    for empty in ([], (), {}):
        with refused("params is an empty", "at least one array"):
            Layout.of(empty)
    with refused("params is a ndarray", "into a list"):
        Layout.of(np.zeros(3))
    with refused(r'params\["w/0"\]: float is no array', "NumPy"):
        Layout.of({"w": [0.0, 0.0]})
    with refused(r"params\[1\]", "float is no array", "NumPy"):
        Layout.of([np.zeros(3), 0.5])
    with refused(r"params\[\(0, 1\)\] has a tuple for a key"):
        Layout.of({(0, 1): np.zeros(3)})
    for dtype in ("int64", "float16", ">f8", "object"):
        with refused(r'params\["w"\] is', "expected float32 or float64"):
            Layout.of({"w": np.zeros(3, dtype)})


def test_gradients_that_do_not_fit_are_refused_by_name() -> None:
    layout = Layout.of({"w1": np.zeros((2, 3), "float32"), "b1": np.zeros(2, "float32")})
    w, b = np.zeros((2, 3), "float32"), np.zeros(2, "float32")
    wrong: list[tuple[Any, tuple[str, ...]]] = [
        ([w, b], ("grads is a list, but params is a dict",)),
        (None, ("grads is a NoneType, but params is a dict",)),
        ({"w1": w}, (r'grads\["b1"\] is missing', "zeros")),
        ({"w1": w, "b1": b, "c": b}, (r'grads\["c"\] has no counterpart',)),
        ({"w1": w.T, "b1": b}, (r'"w1"\] is of shape \(3, 2\)', r"float32.*\(2, 3\)")),
        ({"w1": w, "b1": b.astype("float64")}, (r'"b1"\] is float64', "convert it to float32")),
        ({"w1": w, "b1": [0.0, 0.0]}, (r'"b1"\] is a list', "NumPy array with dtype=float32")),
        ({"w1": None, "b1": b}, (r'"w1"\] is a NoneType', "expected a float32 array")),
    ]
    for grads, words in wrong:
        with refused(*words):
            layout.pack(grads, layout.allocate(), 1.0)
    listed = Layout.of([w, b])
    with refused("grads has 1 entries, but params has 2"):
        listed.pack([w], listed.allocate(), 1.0)
    with refused("grads is a dict, but params is a list"):
        listed.pack({0: w, 1: b}, listed.allocate(), 1.0)
    with refused(r"params\[1\] is of shape \(3,\)"):
        listed.pack([w, np.zeros(3, "float32")], listed.allocate(), 1.0, what="params")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_broken_entry_is_named(bad: float) -> None:
    layout = Layout.of(params())
    flats = layout.allocate()
    assert layout.check_finite(flats) is None
    flats[0][1] = bad
    assert layout.check_finite(flats) == 'grads["b1"]'
    assert layout.check_finite(flats, what="params") == 'params["b1"]'
    flats[0][1] = 0
    flats[1][6] = bad
    assert layout.check_finite(flats) == 'grads["scalar"]'
    flats[1][0] = bad
    assert layout.check_finite(flats) == 'grads["w1"]'
    assert [*layout.not_finite(flats)] == ["w1", "scalar"]


def test_a_part_of_all_elements_is_finite_or_not() -> None:
    layout = Layout.of(params())
    assert [bucket.size for bucket in layout.buckets] == [2, 7]
    assert layout.size == 9
    for bucket, at, element in ((0, 1, 1), (1, 0, 2), (1, 6, 8)):
        flats = layout.allocate()
        assert layout.is_finite(flats, slice(0, 9))
        flats[bucket][at] = np.nan
        found = [one for one in range(12) if not layout.is_finite(flats, slice(one, one + 1))]
        assert found == [element]
        assert not layout.is_finite(flats, slice(0, 100))


def test_arrays_are_had_one_by_one_and_end_in_the_row_of_words_where_the_layout_says() -> None:
    shapes = {"a": ((3,), "float32"), "b": ((2, 2), "float64"), "c": ((0,), "float32")}
    shapes |= {"d": ((5,), "float32"), "e": ((), "float64")}
    layout = Layout.of({key: np.zeros(s, d) for key, (s, d) in shapes.items()}, bucket_mb=3e-5)
    flats = layout.allocate()
    assert len(flats) > 2
    for number, array in enumerate(layout.one_by_one(flats), start=1):
        assert array.ndim == 1
        array[...] = number
    assert sorted(array.size for array in layout.one_by_one(flats)) == [0, 1, 3, 4, 5]
    numbers = [set(array.ravel()) for array in layout.named(flats).values()]
    assert sorted(map(len, numbers)) == [0, 1, 1, 1, 1]
    tape = WordView(flats)
    assert layout.ends[-1] == tape.size
    begin = 0
    for end in layout.ends:
        fresh = layout.allocate()
        WordView(fresh).write(begin, np.full(end - begin, 0xFFFFFFFF, np.uint32))
        touched = [array for array in layout.one_by_one(fresh) if np.isnan(array).any()]
        assert len(touched) == (end > begin)
        assert all(np.isnan(array).all() for array in touched)
        begin = end
