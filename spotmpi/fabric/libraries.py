"""Finds libraries that other code has loaded into this process, such as MPI's own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["loaded"]

_PATH = 5
"""Index of the path among the fields of a line of /proc/self/maps. It may hold spaces."""


def loaded(*names: str) -> Iterator[Any]:
    """Yield the libraries whose files begin with one of ``names`` and ``.so``, in the order of
    their addresses."""
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    fields = [line.split(maxsplit=_PATH) for line in lines]
    for path in dict.fromkeys(one[_PATH] for one in fields if len(one) > _PATH):
        if Path(path).name.startswith(tuple(f"{name}.so" for name in names)):
            yield ctypes.CDLL(path)
