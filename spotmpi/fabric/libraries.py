"""Libraries that this process has loaded: MPI's own, which others brought."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["loaded"]

_PATH = 5
"""The field of a line of /proc/self/maps that is a path; it may hold spaces."""


def loaded(*names: str) -> Iterator[Any]:
    """Those whose files begin with one of these names and ``.so``, in the order of their places in
    memory."""
    lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    fields = [line.split(maxsplit=_PATH) for line in lines]
    for path in dict.fromkeys(one[_PATH] for one in fields if len(one) > _PATH):
        if Path(path).name.startswith(tuple(f"{name}.so" for name in names)):
            yield ctypes.CDLL(path)
