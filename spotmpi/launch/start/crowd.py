"""What it takes to start many workers on this host: time and memory, as far as is known before.

The figures are of a small script on Linux: what each worker needs for itself with its wrapper and
its stand-in, beside what all of a host share. The script's own imports and arrays come on top.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from spotmpi.launch.processes import cores
from spotmpi.launch.wording import count, duration

__all__ = ["Memory", "judged", "memory", "too_many"]

_MANY = 16
"""Workers on a core that are more than somebody may have meant."""

_MUCH = 0.8
"""Of the memory that is free."""

_TO_START = 0.5
"""Seconds of a core that a worker takes to come to its training."""

_TO_JOIN = 1.0
"""Seconds that a newcomer takes to join: one does after the other."""

_EACH = 46_000_000
"""Bytes that a worker needs: measured with 2, 8 and 16 of them."""

_LEAST = 40_000_000
"""Bytes that it cannot do without."""

_MEMINFO = Path("/proc/meminfo")
_CGROUP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class Memory(NamedTuple):
    """Bytes, of this host or of the container that this process is in."""

    whole: int
    """With swap."""
    free: int


def memory() -> Memory:
    """What there is now. Local; not blocking."""
    kilobytes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE))
    there, swap = 1024 * int(kilobytes["MemTotal"]), 1024 * int(kilobytes.get("SwapTotal", 0))
    limit = _limit()
    if limit is not None and limit < there:
        there, swap = limit, 0  # that of the host is not for everybody
    return Memory(there + swap, min(there, 1024 * int(kilobytes["MemAvailable"])))


def judged(workers: int, joining: int = 0) -> str:
    """What so many workers on this host come to, if that is worth a word; else nothing.

    ``joining``: of these so many join a job that runs. Local; not blocking.
    """
    there, free = cores(), memory().free
    share = math.ceil(workers / there)
    need = (joining or workers) * _EACH
    if share <= _MANY and need <= _MUCH * free:
        return ""
    each = f", {share} to each" if share > 1 else ""
    seconds = duration(max(1.0, joining * _TO_JOIN if joining else share * _TO_START))
    time = f"to start them takes {seconds} or more, and"
    if joining:
        time = f"the new ones join one after the other, which takes {seconds} or more, and need"
    return (
        f"{count(workers)} on {there} core{'s' * (there != 1)}{each}: {time} {_gigabytes(need)} of "
        f"memory without what the script needs; {_gigabytes(free)} are free"
    )


def too_many(workers: int) -> str:
    """Why so many workers cannot be on this host, whatever else is there; else nothing. Local."""
    whole = memory().whole
    if workers * _LEAST <= whole:
        return ""
    return (
        f"{count(workers)} need {_gigabytes(workers * _EACH)} of memory without what the script "
        f"needs, and there are {_gigabytes(whole)} in all: start fewer"
    )


def _limit() -> int | None:
    """Of the container, or what else this process is in; None if there is none."""
    found = re.search(r"^0::(/.*)$", _CGROUP.read_text() if _CGROUP.exists() else "", re.MULTILINE)
    if found is None:
        return None
    inner = _CGROUPS / os.path.relpath(found[1], "/")
    files = [one / "memory.max" for one in (inner, *inner.parents) if one.is_relative_to(_CGROUPS)]
    texts = [file.read_text().strip() for file in files if file.exists()]
    return min((int(text) for text in texts if text.isdecimal()), default=None)


def _gigabytes(size: float) -> str:
    amount = size / 1e9
    return f"{amount:.0f} GB" if amount >= 10 else f"{amount:.1f} GB"
