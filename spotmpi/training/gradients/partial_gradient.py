"""Gradients that a script gives one by one, and the rest of them with its step. Local."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from spotmpi.arrays.layout import Key, Layout
from spotmpi.arrays.structure import spread
from spotmpi.errors import UsageError

__all__ = ["PartialGradient"]


class PartialGradient:
    """The gradients of one step. The script leaves its arrays alone until the step is taken."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._given: dict[Key, Any] = {}
        self._missing = [len(bucket.entries) for bucket in layout.buckets]
        """Number of arrays that each bucket lacks."""

    def __bool__(self) -> bool:
        return bool(self._given)

    def check(self, key: Any, array: Any) -> None:
        """Raise UsageError if this names no parameter, was given before, or does not fit."""
        self._layout.place(key)
        if key in self._given:
            raise UsageError(
                f"the gradient of params[{key!r}] was given twice: give each one once to ready(), "
                "or else to step()"
            )
        self._layout.check_array(key, array)

    def take(self, key: Key, array: Any) -> None:
        """Take an array that was checked."""
        self._given[key] = array
        number, _ = self._layout.place(key)
        self._missing[number] -= 1

    def items(self) -> Iterable[tuple[Key, Any]]:
        """Return the arrays given so far, by their names."""
        return self._given.items()

    @property
    def full(self) -> int:
        """Number of complete buckets before the first one that is not complete."""
        return next((n for n, some in enumerate(self._missing) if some), len(self._missing))

    def rest(self, grads: Any) -> Iterator[tuple[Key, Any]]:
        """Yield what ``grads`` adds to the arrays given so far. It is a dict of the rest, by name
        or index, or the whole structure, in which the arrays given so far are the same objects.
        Raises UsageError if it is not the rest."""
        known = self._by_key(grads)
        for key, array in known.items():
            if not (key in self._given and array is self._given[key]):
                self.check(key, array)
                yield key, array
        left = [key for key in self._layout.keys if key not in self._given and key not in known]
        if left:
            raise UsageError(
                f"step() was called without the gradient of params[{left[0]!r}], which ready() was "
                "not given either: give each one to ready() or to step(), of zeros if need be"
            )

    def _by_key(self, grads: Any) -> Mapping[Any, Any]:
        structure = self._layout.structure
        if grads is None:
            return {}
        if isinstance(grads, dict) and structure.flat:
            return grads
        if isinstance(grads, (list, tuple)) and structure.kept_as is not dict:
            return dict(enumerate(grads))
        found = None if structure.flat and structure.root.kind is dict else spread(grads)
        if found is None:
            raise UsageError(
                f"step() was given a {type(grads).__name__} after ready(): give it a dict of the "
                "gradients that ready() was not given, or nothing if it was given all"
            )
        return found

    @property
    def tree(self) -> Any:
        """All arrays, in the structure of the parameters."""
        return self._layout.structure.build(self._given)

    def clear(self) -> None:
        """Forget the arrays, as the step is taken."""
        if self._given:
            self._given = {}
            self._missing = [len(bucket.entries) for bucket in self._layout.buckets]
