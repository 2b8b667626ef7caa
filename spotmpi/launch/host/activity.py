"""Whether the processes of a worker do anything while it is in its script.

Who computes, reads or writes is at work, however long that takes. Who waits for a lock, for a file
system that does not answer, or for ever, does none of it: for that no clock is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spotmpi.launch import processes
from spotmpi.launcher_channel import IN_SCRIPT, Busy, Progress

__all__ = ["Activities", "Process", "Quiet", "Use", "read"]

_UNDONE_BY_SECOND = 200.0
"""Seconds of quiet that a second of computing undoes: to work a two-hundredth of the time is
enough. A wait that looks every tenth of a second takes a fifth of that, and one that looks every
second takes a third where waking up is slow, as on some virtual machines."""

_UNDONE_BY_BYTE = 1.0 / (1 << 16)
"""Seconds of quiet that a byte read or written undoes: 64 KiB a second are enough."""

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """One that lives, for good: ids are given again."""

    pid: int
    began: int


class Use(NamedTuple):
    """What a process has done since it began."""

    seconds: float
    """Of computing, by all its threads and by the children that it has waited for."""
    moved: int
    """Bytes that it read or wrote."""


class Quiet:
    """One worker's, in one stay in its script. Pure: whoever looks says what it sees."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """For which nothing was done."""
        self._before: dict[Process, Use] = {}
        self._beats = 0

    @property
    def known(self) -> Iterable[int]:
        """The processes that were seen at the last look."""
        return [one.pid for one in self._before]

    def go_by(self, elapsed: float) -> None:
        """So much time has passed."""
        self.seconds += elapsed

    def see(self, used: Mapping[Process, Use]) -> bool:
        """Take what processes have done; returns whether there is still quiet to be explained."""
        for process, use in used.items():
            before = self._before.get(process, Use(0.0, 0))
            done = max(0.0, use.seconds - before.seconds) * _UNDONE_BY_SECOND
            done += max(0, use.moved - before.moved) * _UNDONE_BY_BYTE
            self.seconds = max(0.0, self.seconds - done)
        self._before = dict(used)
        return self.seconds > 0

    def hear(self, busy: Busy) -> None:
        """Take what the script says: it vouches for itself, from its first beat on by beats."""
        if busy.on and (not busy.beats or busy.beats != self._beats):
            self.seconds = 0.0
        self._beats = busy.beats


class Activities:
    """Of all workers of this host. ``now`` is time in which their agent was awake."""

    def __init__(self) -> None:
        self._quiet: dict[tuple[int, float], Quiet] = {}
        self._looked = 0.0

    def look(
        self,
        now: float,
        workers: Mapping[int, Progress],
        busy: Mapping[int, Busy],
        wrappers: Mapping[int, int],
    ) -> dict[int, float]:
        """Return for how long each worker was quiet that is in its script; 0 for the others."""
        elapsed, self._looked = now - self._looked, now
        inside = {
            (worker, one.since): worker
            for worker, one in workers.items()
            if one.doing == IN_SCRIPT and worker in wrappers
        }
        parents: list[tuple[int, int]] | None = None
        old, self._quiet = self._quiet, {}
        for stay, worker in inside.items():
            quiet = self._quiet[stay] = old.get(stay) or Quiet()
            if stay in old:
                quiet.go_by(elapsed)
            # Those that were known are cheap to ask. Only when they were idle is it worth while to
            # look through all processes of the host for others.
            if quiet.see(read(quiet.known)):
                parents = parents or list(processes.parents())
                quiet.see(read(processes.below(wrappers[worker], parents)))
            quiet.hear(busy.get(worker, Busy()))
        return dict.fromkeys(workers, 0.0) | {
            worker: self._quiet[stay].seconds for stay, worker in inside.items()
        }


def read(pids: Iterable[int]) -> dict[Process, Use]:
    """What those of these processes have done that are there."""
    found = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        seconds = sum(map(int, fields[11:15])) * _TICK
        found[Process(pid, int(fields[19]))] = Use(seconds, _moved(pid))
    return found


def _moved(pid: int) -> int:
    """Bytes that it has read and written; 0 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            lines = dict(line.split(b": ") for line in file)
    except OSError:
        return 0
    counted = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
    return sum(int(lines.get(name, b"0")) for name in counted)
