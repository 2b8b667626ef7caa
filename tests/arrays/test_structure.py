"""Structures: arrays have names, and come back as they came."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import pytest

from spotmpi.arrays.structure import Structure, spread
from spotmpi.errors import UsageError


@dataclass(frozen=True)
class Layer:
    """As scripts have them."""

    weight: Any
    bias: Any


class Pair(NamedTuple):
    """Likewise."""

    left: Any
    right: Any


def nested() -> dict[str, Any]:
    return {
        "encoder": {"layers": [Layer("w0", "b0"), Layer("w1", "b1")], "norm": ("scale", "shift")},
        "pair": Pair("l", {"deep": "r"}),
        "head": "h",
    }


NAMES = (
    *("encoder/layers/0/weight", "encoder/layers/0/bias"),
    *("encoder/layers/1/weight", "encoder/layers/1/bias"),
    *("encoder/norm/0", "encoder/norm/1", "pair/left", "pair/right/deep", "head"),
)


def test_arrays_of_nested_structures_have_names_and_come_back_as_they_came() -> None:
    structure, arrays = Structure.of(nested())
    assert structure.keys == NAMES
    assert tuple(arrays) == NAMES
    assert arrays["encoder/layers/1/bias"] == "b1"
    assert structure.build(arrays) == nested()
    assert structure.build(dict(reversed(arrays.items()))) == nested()
    assert type(structure.build(arrays)["pair"]) is Pair
    assert structure.kept_as is dict
    assert not structure.flat


@pytest.mark.parametrize(
    ("tree", "keys", "kept_as"),
    [
        (["a", "b"], (0, 1), list),
        (("a", "b"), (0, 1), tuple),
        ({"x/y": "a", 3: "b"}, ("x/y", 3), dict),
        (OrderedDict(x="a", y="b"), ("x", "y"), dict),
        (Layer("a", "b"), ("weight", "bias"), dict),
        (Pair("a", "b"), ("left", "right"), dict),
    ],
)
def test_flat_ones_keep_their_keys_and_indices(tree: Any, keys: Any, kept_as: type) -> None:
    structure, arrays = Structure.of(tree)
    assert structure.flat
    assert structure.keys == keys
    assert arrays == dict(zip(keys, "ab", strict=True))
    assert structure.build(arrays) == tree
    assert structure.kept_as is kept_as


WORDS = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=3).filter(
    lambda word: word not in (".", "..")
)
TREES = st.recursive(
    st.integers(),
    lambda below: (
        st.dictionaries(WORDS, below, min_size=1, max_size=3)
        | st.lists(below, min_size=1, max_size=3)
        | st.lists(below, min_size=1, max_size=3).map(tuple)
        | st.builds(Layer, below, below)
        | st.builds(Pair, below, below)
    ),
).filter(lambda tree: not isinstance(tree, int))


@hypothesis.given(TREES)
def test_no_two_arrays_have_one_name_and_all_come_back(tree: Any) -> None:
    structure, arrays = Structure.of(tree)
    assert len(set(map(str, structure.keys))) == len(structure.keys)
    assert structure.build(arrays) == tree
    again = structure.arrays(tree, "grads")
    assert [again[key] for key in structure.keys] == list(arrays.values())
    same, _ = Structure.of(structure.build(arrays))
    assert str(same) == str(structure)


def test_structures_are_told_apart() -> None:
    trees: list[Any] = [
        {"a": [1, 2]},
        {"a": (1, 2)},
        {"a": {"0": 1, "1": 2}},
        {"a": Layer(1, 2)},
        {"a": Pair(1, 2)},
        {"a": [1], "b": 2},
        [[1, 2]],
        Layer(1, 2),
        {"weight": 1, "bias": 2},
    ]
    assert len({str(Structure.of(tree)[0]) for tree in trees}) == len(trees)


def refused(sentence: str) -> Any:
    return pytest.raises(UsageError, match=sentence)


@dataclass
class Picky:
    """Takes less than it has."""

    weight: Any
    made: Any = field(init=False, default="something")


@dataclass
class Copying:
    """Keeps copies."""

    weight: Any

    def __post_init__(self) -> None:
        self.weight = [*self.weight]


class Raising(NamedTuple("Raising", [("weight", Any)])):
    """Can be made only once."""

    made = 0

    def __new__(cls, weight: Any) -> Raising:
        """The first one."""
        cls.made += 1
        if cls.made > 1:
            raise RuntimeError("no more")
        return super().__new__(cls, weight)


def test_what_has_no_names_is_said_in_one_sentence() -> None:
    endless: dict[str, Any] = {"w": 1}
    endless["again"] = {"in": endless}
    circle: list[Any] = [1]
    circle.append(circle)
    deep: Any = {"w": 1}
    for _ in range(24):
        deep = {"d": deep}
    wrong: list[tuple[Any, str]] = [
        (3, "^params is a int, expected a list, tuple or dict of arrays: put a single array"),
        ({}, "^params is an empty dict: give it at least one array$"),
        ({"a": {"w": 1, "none": []}}, r'^params\["a/none"\] is an empty list: give it at least'),
        (endless, r'^params\["again/in"\] holds itself, and so has no end: leave it out$'),
        (circle, r'^params\["1"\] holds itself'),
        ({"a": {"b/c": 1}}, r"""^params\["a"\] has the key 'b/c': keys of nested .* rename it$"""),
        ({"a/b": 1, "a": {"b": 2}}, "^params has the key 'a/b': keys of nested parameters are jo"),
        ({"a": {"": 1}}, r"""^params\["a"\] has the key '': .* must be a word without one"""),
        ({"..": [1]}, "^params has the key '..': "),
        ({"a": {3: 1}}, r"""^params\["a"\] has the key 3, a int: in nested parameters keys must"""),
        ({None: [1]}, "^params has the key None, a NoneType: in nested parameters keys must be s"),
        ({(0, 1): 1}, r"^params\[\(0, 1\)\] has a tuple for a key: use strings or integers$"),
        ({1: 1, "1": 2}, "^params has the keys 1 and '1', which have one name in a checkpoint: "),
        (deep, 'd/d"] is nested 24 levels deep: give it fewer$'),
        (
            {"a": Picky(1)},
            r'^params\["a"\] is a Picky, which cannot be made again of its fields \(',
        ),
        (
            Copying((1,)),
            "^params is a Copying, which changes 'weight' when it is made: have it keep",
        ),
        ([Raising(1)], r'^params\["0"\] is a Raising, .* \(no more\): have __init__ take each'),
    ]
    for tree, sentence in wrong:
        with refused(sentence):
            Structure.of(tree)


def test_shared_parts_are_no_circle() -> None:
    layer = {"w": 1}
    structure, _ = Structure.of({"a": layer, "b": layer})
    assert structure.keys == ("a/w", "b/w")


def test_what_does_not_fit_is_said_by_its_name() -> None:
    structure, _ = Structure.of(nested())

    def other(**changed: Any) -> Any:
        return {**nested(), **changed}

    layers = nested()["encoder"]["layers"]
    wrong: list[tuple[Any, str]] = [
        (None, "^grads is a NoneType, but params is a dict: give grads the structure of params$"),
        (other(encoder="flat"), r'^grads\["encoder"\] is a str, but params\["encoder"\] is a dict'),
        (other(pair=("l", "r")), r'^grads\["pair"\] is a tuple, but params\["pair"\] is a Pair'),
        (other(pair=Pair("l", {})), r'^grads\["pair/right/deep"\] is missing, but params has it'),
        (other(more="x"), r'^grads\["more"\] has no counterpart in params'),
        (
            other(encoder={"layers": layers[:1], "norm": ("", "")}),
            r'^grads\["encoder/layers"\] has 1 entries, but params\["encoder/layers"\] has 2',
        ),
        (
            other(encoder={"layers": [layers[0], {"weight": 1, "bias": 2}], "norm": ("", "")}),
            r'^grads\["encoder/layers/1"\] is a dict, but params\["encoder/layers/1"\] is a Layer',
        ),
        (dict.fromkeys(NAMES), r'^grads\["encoder"\] is missing, but params has it'),
    ]
    for tree, sentence in wrong:
        with refused(sentence):
            structure.arrays(tree, "grads")


def test_a_list_passes_for_a_tuple_at_any_depth() -> None:
    structure, _ = Structure.of({"a": ("x", ["y"])})
    assert structure.arrays({"a": ["x", ("y",)]}, "grads") == {"a/0": "x", "a/1/0": "y"}
    flat, _ = Structure.of(("x", "y"))
    assert flat.arrays(Pair("x", "y"), "grads")[1] == "y"


def test_a_part_of_a_structure_is_named_likewise() -> None:
    assert spread({"encoder": {"layers": [Layer(1, 2)]}, "head": 3}) == {
        "encoder/layers/0/weight": 1,
        "encoder/layers/0/bias": 2,
        "head": 3,
    }
    assert spread({"encoder/norm/0": 1}) == {"encoder/norm/0": 1}
    assert spread({}) == {}
    assert spread("x") is None
