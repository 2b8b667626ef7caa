"""Values as bytes, for `Trainer.once`: numbers, strings, arrays, and containers of them. Pure.

A JSON text that describes the value comes first, and then the bytes of its arrays. Reading can
execute nothing: values are made of the types below and of no others.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np

from spotmpi.errors import UsageError

__all__ = ["NONSENSE", "pack", "pack_in_place", "unpack", "unpack_in_place"]

NONSENSE = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(RecursionError, ArithmeticError, SyntaxError, UsageError, struct.error),
)
"""What it raises to read values that spotmpi has not written."""

_Numbers: TypeAlias = np.ndarray[Any, Any]

_LENGTH = struct.Struct("<Q")

_KINDS = frozenset("?biufcSUmM")
"""Kinds of NumPy types whose values are their bytes."""

_EXPECTED = (
    "numbers, strings, bytes, booleans, None, arrays of such, and lists, tuples and dicts of these"
)

_ALIGNED = 16
"""Bytes: arrays are read faster from multiples of it."""

_DEEPEST = 100
"""Most levels of lists in lists."""


def pack(value: object) -> bytes:
    """Return ``value`` as bytes; UsageError if it holds anything of another type."""
    text, blobs = _described(value)
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def pack_in_place(value: object) -> list[memoryview]:
    """Do the same in parts. Those after the first are the memory of the value's arrays, where these
    are contiguous."""
    text, blobs = _described(value)
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNED)  # JSON skips blanks
    return [memoryview(_LENGTH.pack(len(text)) + text), *blobs]


def _described(value: object) -> tuple[bytes, list[memoryview]]:
    """Return a text that describes a value, and the bytes of its arrays."""
    blobs: list[memoryview] = []
    return json.dumps(_describe(value, blobs, 0), separators=(",", ":")).encode(), blobs


def unpack(data: bytes) -> Any:
    """Return what `pack` was given, in Python's and NumPy's own types. Arrays are copies."""
    return _read([memoryview(data)], np.copy)


def unpack_in_place(parts: Sequence[memoryview]) -> Any:
    """Do the same with parts of these bytes. The arrays have the memory of the parts."""
    return _read(parts, lambda array: array)


def _read(parts: Sequence[memoryview], own: Callable[[_Numbers], _Numbers]) -> Any:
    """Return a value from parts of its bytes. ``own``: see `_Reader`."""
    first, *others = parts
    (length,) = _LENGTH.unpack_from(first)
    begin = _LENGTH.size + length
    said = json.loads(bytes(first[_LENGTH.size : begin]))
    return _Reader([first[begin:], *others], own).value(said)


def _describe(value: object, blobs: list[memoryview], depth: int) -> Any:
    """Return a JSON value: plain values as they are, others as a list that begins with a kind."""
    if depth > _DEEPEST:
        raise UsageError(f"a value is nested more than {_DEEPEST} levels deep, or holds itself")
    if isinstance(value, np.ndarray | np.generic):
        return _describe_array(np.asarray(value), isinstance(value, np.generic), blobs)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        blobs.append(memoryview(value))
        return ["bytes", len(value)]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, *(_describe(one, blobs, depth + 1) for one in value)]
    if isinstance(value, dict):
        rows = [
            [_describe(key, blobs, depth + 1), _describe(one, blobs, depth + 1)]
            for key, one in value.items()
        ]
        return ["dict", *rows]
    raise UsageError(f"values of {type(value)} cannot be passed on; give {_EXPECTED}")


def _describe_array(array: _Numbers, scalar: bool, blobs: list[memoryview]) -> Any:
    if array.dtype.kind not in _KINDS:
        raise UsageError(f"arrays of {array.dtype} cannot be passed on; give {_EXPECTED}")
    flat = np.ascontiguousarray(array).reshape(-1)
    blobs.append(flat.view(np.uint8).data if flat.nbytes else memoryview(b""))
    return ["scalar" if scalar else "array", array.dtype.str, list(array.shape)]


class _Reader:
    """Walks through a description and takes the bytes in the same order."""

    def __init__(self, parts: Sequence[memoryview], own: Callable[[_Numbers], _Numbers]) -> None:
        """``own``: returns an array to keep, from one with the memory of a part."""
        self._parts = deque(parts)
        self._own = own

    def value(self, said: Any) -> Any:
        """Return the value that is described here."""
        if not isinstance(said, list):
            return said
        kind, *rest = said
        match kind:
            case "list":
                return [self.value(one) for one in rest]
            case "tuple":
                return tuple(self.value(one) for one in rest)
            case "dict":
                return {self._key(key): self.value(one) for key, one in rest}
            case "complex":
                return complex(*rest)
            case "bytes":
                return bytes(self._take(rest[0]))
        dtype, shape = np.dtype(rest[0]), tuple(rest[1])
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        array = self._own(np.frombuffer(self._take(size), dtype).reshape(shape))
        return array[()] if kind == "scalar" else array

    def _key(self, said: Any) -> Hashable:
        key: Hashable = self.value(said)
        return key

    def _take(self, size: int) -> memoryview:
        """Return the next bytes, which one part has."""
        while size and not self._parts[0]:
            self._parts.popleft()
        found = self._parts[0][:size]
        if len(found) != size:
            raise ValueError(f"{size} bytes were to come, and there are {len(found)}")
        self._parts[0] = self._parts[0][size:]
        return found
