"""The structures of arrays: flat ones, and nested ones, whose arrays have names.

In a list, tuple or dict of arrays, each array is known by its index or its key. If any of it is
itself a list, tuple, dict, named tuple or dataclass, each array is known by the path to it:
"encoder/w1", "layers/0/bias". Pure: nobody asks here what an array is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from spotmpi.errors import UsageError

__all__ = ["Key", "Structure", "called", "spread"]

Key: TypeAlias = int | str

_COUNTED = (list, tuple)

_DEEPEST = 24
"""Most levels: a file of a checkpoint has not many more."""


@dataclass(frozen=True)
class _Level:
    """One level of a structure: under each key another level, or (None) an array."""

    kind: type[Any]
    """The type dict, list or tuple, or the class of a named tuple or a dataclass."""
    below: tuple[tuple[Key, _Level | None], ...]

    @cached_property
    def keys(self) -> frozenset[Key]:
        """The keys of this level, in no order."""
        return frozenset(key for key, _ in self.below)

    def __str__(self) -> str:
        words = (f"{key!r}: {'array' if one is None else one}" for key, one in self.below)
        return f"{self.kind.__qualname__}({', '.join(words)})"


@dataclass(frozen=True)
class Structure:
    """How arrays are nested, and the key of each of them. Immutable."""

    root: _Level
    keys: tuple[Key, ...]
    """The keys of the arrays, in the order of the structure."""

    @classmethod
    def of(cls, tree: Any, what: str = "params") -> tuple[Structure, dict[Key, Any]]:
        """Return the structure of ``tree``, and its arrays by key; UsageError if it can have none.

        ``what``: the name of ``tree`` in messages.
        """
        inside = _inside(tree)
        if inside is None:
            raise UsageError(
                f"{what} is a {type(tree).__name__}, expected a list, tuple or dict of arrays: "
                "put a single array into a list"
            )
        if inside and not any(_inside(one) is not None for one in inside.values()):
            if not dataclasses.is_dataclass(tree):
                _check_keys(inside, what)
            root = _Level(_kind(tree), tuple((key, None) for key in inside))
            _check_made(root.kind, inside, what)
            return cls(root, tuple(inside)), dict(inside)
        found: dict[Key, Any] = {}
        root = _level(tree, what, "", found, ())
        return cls(root, tuple(found)), found

    @cached_property
    def flat(self) -> bool:
        """True if there is one level."""
        return all(one is None for _, one in self.root.below)

    @property
    def kept_as(self) -> type[Any]:
        """The type in which a checkpoint gives the arrays back: dict, list or tuple."""
        return self.root.kind if self.flat and self.root.kind in (list, tuple) else dict

    def __str__(self) -> str:
        return str(self.root)

    def arrays(self, tree: Any, what: str) -> Any:
        """Return what ``tree`` has under each key; UsageError unless it has this structure. Dicts
        may be filled in any order, and a list passes for a tuple."""
        if self.flat and self.root.kind in (dict, list, tuple):
            _match(self.root, tree, what, "")
            return tree
        return dict(zip(self.keys, _found(self.root, tree, what, ""), strict=True))

    def build(self, arrays: Mapping[Key, Any]) -> Any:
        """Return this structure again, of the arrays under each key."""
        return _built(self.root, iter([arrays[key] for key in self.keys]))


def called(what: str, key: object) -> str:
    """Return an array's name in messages: ``grads["encoder/w1"]``."""
    return f'{what}["{key}"]' if isinstance(key, str) else f"{what}[{key!r}]"


def spread(tree: Any) -> dict[Any, Any] | None:
    """Return the content of a part of a nested structure by name; None if ``tree`` is no
    level of one, such as an array. A key may be such a name already."""
    return None if _inside(tree) is None else dict(_spread(tree, "", _DEEPEST))


def _spread(tree: Any, path: str, depth: int) -> Iterator[tuple[Any, Any]]:
    for key, one in (_inside(tree) or {}).items():
        name = f"{path}/{key}" if path else str(key)
        if depth and _inside(one) is not None:
            yield from _spread(one, name, depth - 1)
        else:
            yield name, one


def _inside(tree: Any) -> dict[Any, Any] | None:
    """Return the content by key; None if ``tree`` is no level of a structure."""
    if isinstance(tree, dict):
        return tree
    if isinstance(tree, (list, tuple)):
        return dict(zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {one.name: getattr(tree, one.name, None) for one in dataclasses.fields(tree)}
    return None


def _kind(tree: Any) -> type[Any]:
    for kind in (dict, list, tuple):
        if isinstance(tree, kind) and not hasattr(tree, "_fields"):
            return kind
    return type(tree)


def _level(
    tree: Any, what: str, path: str, found: dict[Key, Any], above: tuple[Any, ...]
) -> _Level:
    inside, here = _inside(tree), called(what, path) if path else what
    assert inside is not None
    if any(tree is one for one in above):
        raise UsageError(f"{here} holds itself, and so has no end: leave it out")
    if len(above) == _DEEPEST:
        raise UsageError(f"{here} is nested {_DEEPEST} levels deep: give it fewer")
    if not inside:
        raise UsageError(f"{here} is an empty {_kind(tree).__name__}: give it at least one array")
    below: list[tuple[Key, _Level | None]] = []
    for key, one in inside.items():
        if isinstance(tree, dict):
            _check_word(key, here)
        name = f"{path}/{key}" if path else str(key)
        if _inside(one) is None:
            found[name] = one
            below.append((key, None))
        else:
            below.append((key, _level(one, what, name, found, (*above, tree))))
    _check_made(_kind(tree), inside, here)
    return _Level(_kind(tree), tuple(below))


def _check_word(key: object, here: str) -> None:
    if not isinstance(key, str):
        raise UsageError(
            f"{here} has the key {key!r}, a {type(key).__name__}: in nested parameters keys must "
            "be strings, which make names such as 'encoder/w1'; use strings, or a list"
        )
    if "/" in key or "\0" in key or key in ("", ".", ".."):
        raise UsageError(
            f"{here} has the key {key!r}: keys of nested parameters are joined by slashes to names "
            "such as 'encoder/w1', so each must be a word without one; rename it"
        )


def _check_keys(inside: Mapping[Any, Any], what: str) -> None:
    """Check the keys of a flat dict: they may have slashes."""
    names: dict[str, object] = {}
    for key in inside:
        if not isinstance(key, (int, str)):
            name = called(what, key)
            raise UsageError(
                f"{name} has a {type(key).__name__} for a key: use strings or integers"
            )
        if str(key) in names:
            raise UsageError(
                f"{what} has the keys {names[str(key)]!r} and {key!r}, which have one name in a "
                "checkpoint: rename one of them"
            )
        names[str(key)] = key


def _check_made(kind: type[Any], inside: Mapping[Any, Any], here: str) -> None:
    """Check that a class of the script gives back what it is made of."""
    if kind in (dict, list, tuple):
        return
    try:
        made = _inside(kind(**inside))
    except Exception as error:
        raise UsageError(
            f"{here} is a {kind.__name__}, which cannot be made again of its fields ({error}): "
            "have __init__ take each of them, and nothing else"
        ) from error
    other = next((key for key, one in inside.items() if (made or {}).get(key) is not one), None)
    if other is not None:
        raise UsageError(
            f"{here} is a {kind.__name__}, which changes {other!r} when it is made: have it keep "
            "the arrays that it is given"
        )


def _match(level: _Level, tree: Any, what: str, path: str) -> dict[Any, Any]:
    """Return the content of ``tree``; UsageError unless it has the keys of this level."""
    here, there = (called(what, path), called("params", path)) if path else (what, "params")
    wanted = level.kind
    if wanted in _COUNTED and isinstance(tree, _COUNTED):
        kind: type[Any] = wanted
        inside: dict[Any, Any] | None = dict(enumerate(tree))
    else:
        inside = _inside(tree)
        kind = type(tree) if inside is None else _kind(tree)
    if inside is None or kind is not wanted:
        raise UsageError(
            f"{here} is a {kind.__name__}, but {there} is a {wanted.__name__}: "
            f"give {what} the structure of params"
        )
    if kind is dict and inside.keys() != level.keys:
        missing = [key for key, _ in level.below if key not in inside]
        if missing:
            raise UsageError(
                f"{called(what, _joined(path, missing[0]))} is missing, but params has it: "
                "give every entry an array, of zeros if need be"
            )
        extra = next(key for key in inside if key not in level.keys)
        raise UsageError(
            f"{called(what, _joined(path, extra))} has no counterpart in params: leave it out, "
            "or give the Trainer a parameter of that name"
        )
    if len(inside) != len(level.below):
        raise UsageError(
            f"{here} has {len(inside)} entries, but {there} has {len(level.below)}: "
            "give one array for each, in the same order"
        )
    return inside


def _joined(path: str, key: Any) -> Any:
    return f"{path}/{key}" if path else key


def _found(level: _Level, tree: Any, what: str, path: str) -> Iterator[Any]:
    inside = _match(level, tree, what, path)
    for key, one in level.below:
        if one is None:
            yield inside[key]
        else:
            yield from _found(one, inside[key], what, _joined(path, str(key)))


def _built(level: _Level, arrays: Iterator[Any]) -> Any:
    inside = [
        (key, next(arrays) if one is None else _built(one, arrays)) for key, one in level.below
    ]
    if level.kind is dict:
        return dict(inside)
    if level.kind in (list, tuple):
        return level.kind(one for _, one in inside)
    return level.kind(**{str(key): one for key, one in inside})
