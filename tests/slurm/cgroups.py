"""What proctrack/cgroup needs: for each node a part of the freezer hierarchy (cgroup v1).

A node takes its part for the whole (a cgroup namespace), as it would on a machine of its own. The
hierarchy is mounted only where nobody else sees it, by processes that have their mounts for
themselves.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from pathlib import Path

__all__ = ["Cgroups", "missing"]

_numbers = itertools.count()

_PATIENCE = 60.0
"""Seconds for killed processes to leave a cgroup: until then it cannot be removed."""

_ENTER = """\
mount -t cgroup -o freezer freezer "$1" && mkdir -p "$1/$2/$3" &&
echo 0 >"$1/$2/$3/cgroup.procs" && umount "$1" &&
exec unshare --cgroup sh -c '
    mount -t cgroup -o freezer freezer "$1" && shift 3 && exec "$@"
' sh "$@"
"""
"""Of a mount point, a cluster, a node and a command: run it in the node's part."""

_REMOVE = """\
mount -t cgroup -o freezer freezer "$1" && cd "$1" || exit
for cluster in "$3"*; do
    owner=${cluster#"$3"}
    [ "$cluster" = "$2" ] || ! [ -e "/proc/${owner%%n*}" ] || continue
    ! [ -e "$cluster" ] || find "$cluster" -depth -type d -exec rmdir {} + || exit
done
"""
"""Of a mount point, a cluster and how its name begins: remove its part, and those of such names
whose owners are no more."""


def missing() -> str | None:
    """What keeps cgroups from being made here; None if nothing does."""
    known = Path("/proc/cgroups")
    if known.exists() and "freezer" in known.read_text().split():
        return None
    return "this kernel has no freezer for cgroups"


class Cgroups:
    """A cluster's. `close` removes all, also what a run that was killed has left.

    ``folder`` is what Slurm is to have as CgroupMountpoint; ``freezer`` is made in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mount = folder / "freezer"
        self._mount.mkdir()
        # All see this hierarchy, also who has process numbers of its own.
        self._prefix = f"spot{os.stat('/proc/self/ns/pid').st_ino}p"
        self._cluster = f"{self._prefix}{os.getpid()}n{next(_numbers)}"
        self._remove()

    def within(self, node: str, *command: object) -> list[str]:
        """The command, to be run on ``node``: it is in that one's part, mounted in ``folder``."""
        words = ("unshare", "--mount", "sh", "-c", _ENTER, "sh", self._mount, self._cluster, node)
        return [*map(str, words), *map(str, command)]

    def close(self) -> None:
        """Remove them. The nodes have been killed."""
        self._remove()

    def _remove(self) -> None:
        names = self._mount, self._cluster, self._prefix
        words = ("unshare", "--mount", "sh", "-c", _REMOVE, "sh", *names)
        deadline = time.monotonic() + _PATIENCE
        while True:
            done = subprocess.run(
                list(map(str, words)), capture_output=True, text=True, timeout=60, check=False
            )
            if done.returncode == 0:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"cgroups cannot be removed: {done.stderr.strip()}")
