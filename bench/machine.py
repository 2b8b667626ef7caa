"""What a figure was measured on: a figure without it says nothing."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from spotmpi import __version__
from spotmpi.launch.doctor import cores
from spotmpi.launch.installation import search

__all__ = ["describe", "free_memory"]

_PACKAGES = ("mpi4py", "numpy", "numba")


def describe() -> dict[str, Any]:
    """Date, arguments, machine and versions, for the head of a file of results. Blocking, 0.1 s."""
    mpi = search(os.environ).found
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": sys.argv[1:],
        "machine": {
            "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
            "cores": cores(),
            "memory_gib": round(
                os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1
            ),
            "kernel": platform.release(),
            "load": os.getloadavg()[0],
        },
        "versions": {
            "spotmpi": __version__,
            "Open MPI": mpi.version if mpi else None,
            "Python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
    }


def free_memory() -> int:
    """Bytes that new processes can have without anything being swapped out."""
    kib = _field("/proc/meminfo", "MemAvailable") or "0 kB"
    return int(kib.split()[0]) * 1024


def _field(file: str, name: str) -> str | None:
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
