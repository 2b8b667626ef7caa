"""How long each worker took for its part of a round, for the trace: it shows which one was slow.

Each worker writes its own times: how long its script took until it came to the round, and how long
it then took until the round was complete. For both together it writes how long its main thread had
a core, and how long it was ready to run without one. A line holds many rounds, so it costs little.
A line is written at once after a slow round: a worker that dies takes only usual ones along.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from spotmpi.protocol.control_word import END, SUM32
from spotmpi.protocol.membership import WorkerId
from spotmpi.trace.records import Trace

__all__ = ["CpuTime", "Timings"]

_MOST = 64
"""Most rounds in one line."""
_LONGEST = 5.0
"""Seconds after which a line is written, even with fewer rounds."""
_SLOW = 1.5
"""A round is slow if it takes this many times as long as the first quartile of the last ones."""
_LAST = 32
"""Number of last rounds that a round is compared with."""
_FIRST = 64
"""First rounds, each written at once: usual times are not known yet, and many workers die early."""
_NAMES = ("step", "mean", "once", "gather", *("sum",) * (END - SUM32), "end")
"""Names of the kinds of rounds, by number (`control_word`)."""

Cpu = Callable[[], tuple[float, float] | None]


class CpuTime:
    """Reads how long this process's main thread ran and waited for a core: one pread(2) a call."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # not all kernels count it
            self._file = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> tuple[float, float] | None:
        """Return seconds on a core and seconds ready to run without one; None if not known."""
        if self._file < 0:
            return None
        try:
            ran, waited, *_ = os.pread(self._file, 100, 0).split()
            return 1e-9 * int(ran), 1e-9 * int(waited)
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the file. Later calls return None."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


class _Took(NamedTuple):
    """What one round of steps took, in milliseconds."""

    last: int
    """The last of its steps."""
    script: float
    """Time outside of rounds before it."""
    rounds: float
    """Time in it, and in the others before it."""
    cpu: tuple[float, float] | None
    """Time on a core and time ready to run without one, in both; None if not known."""
    others: list[str]
    """Names of the other rounds before it."""


class Timings:
    """One worker's times. Local, all of it; does nothing without a trace."""

    def __init__(
        self, trace: Trace, me: WorkerId, clock: Callable[[], float], cpu: Cpu | None
    ) -> None:
        """``cpu``: a function such as `CpuTime`; None if CPU times are not known."""
        self._trace = trace
        self._me = me
        self._clock = clock
        self._cpu = cpu
        self._active = trace.active
        now = clock()
        self._committed = self._written = self._stepped = now
        self._used = None if cpu is None else cpu()
        self._entered: float | None = None
        self._script = 0.0
        """Seconds outside of rounds since the last round of steps."""
        self._others: list[str] = []
        """Names of other rounds since the last round of steps."""
        self._last: deque[float] = deque(maxlen=_LAST)
        self._rounds = 0
        self._unwritten: list[_Took] = []

    def entered(self, now: float) -> None:
        """Note that this worker enters a round. Another try after a loss does not count."""
        if self._entered is None:
            self._entered = now

    def committed(self, now: float, kind: int | None, last: int | None) -> None:
        """Note the end of a round of ``kind``. ``last``: the last step that it took, if any."""
        if not self._active:
            return
        entered = now if self._entered is None else self._entered
        self._script += max(0.0, entered - self._committed)
        self._committed, self._entered = now, None
        if last is None:
            self._others.append("learn" if kind is None else _NAMES[kind])
            return
        whole = now - self._stepped
        used, cpu = None if self._cpu is None else self._cpu(), None
        if used is not None and self._used is not None:
            cpu = _ms(used[0] - self._used[0]), _ms(used[1] - self._used[1])
        times = _ms(self._script), _ms(whole - self._script)
        self._unwritten.append(_Took(last, *times, cpu, self._others))
        self._used, self._stepped, self._script, self._others = used, now, 0.0, []
        self._rounds += 1
        self._last.append(whole)
        slow = whole > _SLOW * sorted(self._last)[len(self._last) // 4]
        if (
            slow
            or self._rounds <= _FIRST
            or len(self._unwritten) == _MOST
            or now - self._written > _LONGEST
        ):
            self.write()

    def write(self) -> None:
        """Write the rounds that are not written yet."""
        if self._unwritten:
            steps, scripts, rounds, cpus, others = zip(*self._unwritten, strict=True)
            known: dict[str, Any] = {"script_ms": scripts, "round_ms": rounds}
            if None not in cpus:
                known["cpu_ms"], known["starved_ms"] = zip(*cpus, strict=True)
            if between := {str(at): names for at, names in enumerate(others) if names}:
                known["between"] = between
            self._trace.write(
                "timing", worker=self._me, steps=steps, committed=self._stepped, **known
            )
            self._unwritten = []
        self._written = self._clock()


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
