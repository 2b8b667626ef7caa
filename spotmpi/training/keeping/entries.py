"""Entries of a checkpoint file: what its values become in it, each an array under a path.

The first folder of an entry says what it was: ``array/params/0`` is an array,
``int/sampler/0/cursor``, ``float/...`` and ``bool/...`` are scalars, ``str/...`` and ``bytes/...``
are the bytes of a text (UTF-8) or of a byte string. ``about`` is a JSON object for the reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spotmpi.errors import UsageError
from spotmpi.training.keeping.file_header import refuse

__all__ = ["DEPTH", "DTYPES", "Value", "about_entry", "about_of", "entries_of", "value_of"]

Value = npt.NDArray[Any] | np.generic | bool | int | float | str | bytes
"""Values that can be kept. Arrays hold booleans, integers or floats of 1 to 8 bytes, of either byte
order. A NumPy scalar comes back as an array without dimensions, all else as the type it had."""

_NUMBERS = ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8")
DTYPES = frozenset(
    np.dtype(name)
    for name in ("?", "i1", "u1", *(order + number for order in "<>" for number in _NUMBERS))
)
"""Types of the elements of all entries."""

DEPTH = 32
"""Most folders above an entry."""

_KINDS = ("array", "bool", "bytes", "float", "int", "str")
_DIMENSIONS = 32


def entries_of(state: Mapping[str, Value]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a state by their path in the file. UsageError for other values."""
    entries: dict[str, npt.NDArray[Any]] = {}
    for name, value in state.items():
        parts = name.split("/")
        try:
            name.encode()
        except UnicodeEncodeError:
            parts = []
        if not 0 < len(parts) < DEPTH or {"", ".", ".."} & set(parts) or "\0" in name:
            raise UsageError(
                f"{name!r} cannot name a value in a checkpoint: use words separated by single "
                "slashes, such as 'momentum/velocity/0'"
            )
        above = {"/".join(parts[:i]) for i in range(1, len(parts))} & state.keys()
        if above:
            raise UsageError(
                f"a checkpoint cannot hold both {above.pop()!r} and {name!r}: rename one of them"
            )
        kind, array = _encode(name, value)
        entries[f"{kind}/{name}"] = array
    return entries


def _encode(name: str, value: object) -> tuple[str, npt.NDArray[Any]]:
    if isinstance(value, np.ndarray | np.generic):  # before float: np.float64 is one
        array = np.asarray(value)
        if array.dtype in DTYPES and array.ndim <= _DIMENSIONS:
            return "array", array
        what = f"an array of {array.dtype} with {array.ndim} dimensions"
    elif isinstance(value, bool):
        return "bool", np.array(value)
    elif isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return "int", np.array(value, dtype=np.int64)
        return "int", np.frombuffer(hex(value).encode(), dtype=np.uint8)
    elif isinstance(value, float):
        return "float", np.array(value, dtype=np.float64)
    elif isinstance(value, str):
        try:
            return "str", np.frombuffer(value.encode(), dtype=np.uint8)
        except UnicodeEncodeError:
            what = "a text that is not valid Unicode"
    elif isinstance(value, bytes):
        return "bytes", np.frombuffer(value, dtype=np.uint8)
    else:
        what = f"a {type(value).__module__}.{type(value).__qualname__}"
    raise UsageError(
        f"{name!r} is {what} and cannot be kept in a checkpoint: register NumPy arrays of booleans,"
        " integers or floats of 1 to 8 bytes, or plain int, float, bool, str, bytes"
    )


def about_entry(about: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    """Return the array of ``about``. UsageError if JSON cannot say it."""
    try:
        return np.frombuffer(json.dumps(dict(about), allow_nan=False).encode(), dtype=np.uint8)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a checkpoint's 'about' must be plain JSON: {error}") from None


def about_of(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return what the array of ``about`` says. Raises Damaged or ValueError."""
    about = json.loads(bytes(array))
    if not isinstance(about, dict):
        refuse("its 'about' is not a JSON object")
    return about


def value_of(path: str, array: npt.NDArray[Any]) -> tuple[str, Value]:
    """Return the name and the value of an entry. Raises Damaged or ValueError."""
    kind, _, name = path.partition("/")
    if kind not in _KINDS or not name:
        refuse(f"{path!r} is not something that is ever written")
    form = (array.dtype.str[1:], array.ndim)
    if kind == "array":
        return name, array
    if kind == "int" and form == ("u1", 1):
        return name, int(array.tobytes(), 16)
    if kind in ("str", "bytes") and form == ("u1", 1):
        raw = array.tobytes()
        return name, raw.decode() if kind == "str" else raw
    if form != {"bool": ("b1", 0), "int": ("i8", 0), "float": ("f8", 0)}.get(kind):
        refuse(f"{path!r} is not a {kind}")
    scalar: bool | int | float = array.item()
    return name, scalar
