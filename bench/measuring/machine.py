"""What a figure was measured on: a figure without it says nothing."""

from __future__ import annotations

import os
import platform
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from spotmpi import __version__
from spotmpi.errors import UsageError
from spotmpi.launch.processes import cores
from spotmpi.launch.start.installation import search

__all__ = ["busy", "describe", "free_memory"]

_PACKAGES = ("mpi4py", "numpy", "numba", "cupy-cuda12x", "cupy-cuda13x", "torch", "torchft")
"""Those that are installed are named."""


def describe(gpu: bool = False) -> dict[str, Any]:
    """Date, arguments, machine and versions, for the head of a file of results. Blocking, 0.1 s.

    ``gpu``: with CuPy's current device, too. UsageError if it finds none.
    """
    mpi = search(os.environ).found
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "argv": [Path(one).name if os.path.isabs(one) else one for one in sys.argv[1:]],
        "machine": {
            "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
            "cores": cores(),
            "memory_gib": round(
                os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1
            ),
            "kernel": platform.release(),
            "load": os.getloadavg()[0],
            **({"gpu": _gpu()} if gpu else {}),
        },
        "versions": {
            "spotmpi": __version__,
            "Open MPI": mpi.version if mpi else None,
            "Python": platform.python_version(),
            **{name: found for name in _PACKAGES if (found := _version(name))},
        },
    }


def busy(seconds: float) -> float:
    """The share of the cores' time that anybody uses, 0 to 1, over ``seconds``. Blocking."""
    before = _times()
    time.sleep(seconds)
    idle, total = (after - first for after, first in zip(_times(), before, strict=True))
    return 1 - idle / total if total else 0.0


def free_memory() -> int:
    """Bytes that new processes can have without anything being swapped out."""
    kib = _field("/proc/meminfo", "MemAvailable") or "0 kB"
    return int(kib.split()[0]) * 1024


def _gpu() -> str:
    try:
        import cupy

        told = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    except Exception as error:  # whatever keeps it from working is what is to be said
        raise UsageError(f"--gpu: CuPy finds no GPU ({error}); see spotmpi doctor") from error
    name: str = told["name"].decode()
    return name


def _times() -> tuple[int, int]:
    """Of all cores since they started: idle, and all of it."""
    with open("/proc/stat", encoding="ascii") as file:
        times = [int(part) for part in file.readline().split()[1:9]]
    return times[3] + times[4], sum(times)


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
