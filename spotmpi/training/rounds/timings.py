"""How long each worker took for its part of a round, for the trace: the evidence of who was slow.

Each worker tells its own: what it took before it came to the round, which is its script's time, and
then until the round was complete; for how much of both its main thread had a core, and for how much
it could have run and had none. A line holds many rounds, so that it costs little, and goes out
at once after a slow one: whoever dies takes no more with it than what was usual.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spotmpi.protocol.membership import WorkerId
from spotmpi.trace.records import Trace

__all__ = ["CpuTime", "Timings"]

_MOST = 64
"""Rounds of a line."""
_LONGEST = 5.0
"""Seconds until it is written, and fewer rounds if these take so long."""
_SLOW = 1.5
"""Times what the fastest quarter of the last rounds took, from which on one counts as slow here."""
_LAST = 32
"""Rounds from which that follows."""
_FIRST = 64
"""Rounds each of which is written at once: what is usual is open, and many a worker dies young."""
_NAMES = ("step", "mean", "once", "end")
"""Of kinds of rounds (`control_word`)."""

Cpu = Callable[[], tuple[float, float] | None]


class CpuTime:
    """What the kernel's scheduler has given this process's main thread. One pread(2) a look."""

    def __init__(self) -> None:
        self._file = -1
        with suppress(OSError):  # not all kernels count it
            self._file = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> tuple[float, float] | None:
        """Seconds on a core so far, and seconds ready to run without one; None if not known."""
        if self._file < 0:
            return None
        try:
            ran, waited, *_ = os.pread(self._file, 100, 0).split()
            return 1e-9 * int(ran), 1e-9 * int(waited)
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Look no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()


class Timings:
    """One worker's. Local, all of it; without a trace it does nothing."""

    def __init__(
        self, trace: Trace, me: WorkerId, clock: Callable[[], float], cpu: Cpu | None
    ) -> None:
        """``cpu``: as `CpuTime` has it; None where it is not known."""
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
        """Seconds outside of rounds since the last step's."""
        self._others: list[str] = []
        """What other rounds there were since then."""
        self._last: deque[float] = deque(maxlen=_LAST)
        self._rounds = 0
        self._clear()

    def entered(self, now: float) -> None:
        """This worker has come to a round; what comes again, after a loss, does not count."""
        if self._entered is None:
            self._entered = now

    def committed(self, now: float, kind: int | None, last: int | None) -> None:
        """A round of this kind is over. ``last``: of the steps that were taken with it, if any."""
        if not self._active:
            return
        entered = now if self._entered is None else self._entered
        self._script += max(0.0, entered - self._committed)
        self._committed, self._entered = now, None
        if last is None:
            self._others.append("learn" if kind is None else _NAMES[kind])
            return
        whole = now - self._stepped
        used = None if self._cpu is None else self._cpu()
        if used is not None and self._used is not None:
            self._ran.append(_ms(used[0] - self._used[0]))
            self._starved.append(_ms(used[1] - self._used[1]))
        if self._others:
            self._between[str(len(self._steps))] = self._others
        self._steps.append(last)
        self._scripts.append(_ms(self._script))
        self._in_rounds.append(_ms(whole - self._script))
        self._used, self._stepped, self._script, self._others = used, now, 0.0, []
        self._rounds += 1
        self._last.append(whole)
        slow = whole > _SLOW * sorted(self._last)[len(self._last) // 4]
        if (
            slow
            or self._rounds <= _FIRST
            or len(self._steps) == _MOST
            or now - self._written > _LONGEST
        ):
            self.write()

    def write(self) -> None:
        """What has not been written yet."""
        if self._steps:
            known: dict[str, Any] = {"script_ms": self._scripts, "round_ms": self._in_rounds}
            if len(self._ran) == len(self._steps):
                known |= {"cpu_ms": self._ran, "starved_ms": self._starved}
            if self._between:
                known["between"] = self._between
            self._trace.write(
                "timing", worker=self._me, steps=self._steps, committed=self._stepped, **known
            )
        self._written = self._clock()
        self._clear()

    def _clear(self) -> None:
        self._steps: list[int] = []
        self._scripts: list[float] = []
        self._in_rounds: list[float] = []
        self._ran: list[float] = []
        self._starved: list[float] = []
        self._between: dict[str, list[str]] = {}


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
