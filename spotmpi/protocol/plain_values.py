"""Values as bytes, for `Trainer.once`: numbers, strings, arrays, and containers of them. Pure.

A JSON text that describes the value comes first, and then the bytes of its arrays. Reading can
execute nothing: values are made of the types below and of no others.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable
from typing import Any

import numpy as np

from spotmpi.errors import UsageError

__all__ = ["NONSENSE", "pack", "unpack"]

NONSENSE = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(RecursionError, ArithmeticError, UsageError, struct.error),
)
"""What it raises to read values that spotmpi has not written."""

_LENGTH = struct.Struct("<Q")

_KINDS = frozenset("?biufcSUmM")
"""Kinds of NumPy types whose values are their bytes."""

_EXPECTED = (
    "numbers, strings, bytes, booleans, None, arrays of such, and lists, tuples and dicts of these"
)

_DEEPEST = 100
"""Most levels of lists in lists."""


def pack(value: object) -> bytes:
    """Return ``value`` as bytes; UsageError if it holds anything of another type."""
    blobs: list[bytes] = []
    text = json.dumps(_describe(value, blobs, 0), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *blobs])


def unpack(data: bytes) -> Any:
    """Return what `pack` was given, in Python's and NumPy's own types. Arrays are copies."""
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    return _Reader(data, begin).value(json.loads(data[_LENGTH.size : begin]))


def _describe(value: object, blobs: list[bytes], depth: int) -> Any:
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
        blobs.append(bytes(value))
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


def _describe_array(array: np.ndarray[Any, Any], scalar: bool, blobs: list[bytes]) -> Any:
    if array.dtype.kind not in _KINDS:
        raise UsageError(f"arrays of {array.dtype} cannot be passed on; give {_EXPECTED}")
    blobs.append(array.tobytes())
    return ["scalar" if scalar else "array", array.dtype.str, list(array.shape)]


class _Reader:
    """Walks through a description and takes the bytes in the same order."""

    def __init__(self, data: bytes, begin: int) -> None:
        self._data = data
        self._at = begin

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
                return self._take(rest[0])
        dtype, shape = np.dtype(rest[0]), tuple(rest[1])
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(self._take(size), dtype).reshape(shape).copy()
        return array[()] if kind == "scalar" else array

    def _key(self, said: Any) -> Hashable:
        key: Hashable = self.value(said)
        return key

    def _take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        self._at += size
        return found
