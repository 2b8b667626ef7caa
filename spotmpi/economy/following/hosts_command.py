"""The user's own command that gets hosts or returns them: run beside the watching, no shell.

``COMMAND get TYPE N spot|on-demand`` gets N hosts and may print their names, a line each.
``COMMAND return TYPE spot|on-demand HOST...`` returns these. It has ten minutes; what fails is
tried again later and later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from spotmpi.errors import UsageError
from spotmpi.launch import processes

__all__ = ["Done", "HostsCommand"]

_LIMIT_S = 600.0
_TO_END_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 15.0, 1800.0
_SHOWN = 1 << 16


@dataclass(frozen=True)
class Done:
    """How it went."""

    words: Sequence[str]
    """What it was told, behind the user's own words."""
    problem: str
    """Why it failed; empty: it did not."""
    names: Sequence[str]
    """What it has printed, line by line."""


class HostsCommand:
    """One at a time. Nothing of it is left after `close`, but what it has started on purpose."""

    def __init__(self, words: Sequence[str], limit_s: float = _LIMIT_S) -> None:
        self._own, self._limit_s = list(words), limit_s
        self._words: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._files: tuple[int, ...] = ()
        """What it prints on its two streams."""
        self._until = self._not_before = 0.0
        self._ending = False
        self._failures = 0

    @property
    def ready(self) -> bool:
        """Whether it may begin: it does not run, and has not failed just now."""
        return self._process is None and time.monotonic() >= self._not_before

    def begin(self, *words: str) -> None:
        """Start it. UsageError if there is no such program."""
        self._words, self._ending = list(words), False
        said, complaint = os.memfd_create("said"), os.memfd_create("complaint")
        self._files = (said, complaint)
        try:
            self._process = subprocess.Popen(
                [*self._own, *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complaint,
                start_new_session=True,
                preexec_fn=partial(processes.die_with_parent, os.getpid(), signal.SIGTERM),
            )
        except (OSError, ValueError) as error:
            self._forget()
            raise UsageError(f"--apply {self._own[0]} cannot be run: {error}") from error
        self._until = time.monotonic() + self._limit_s

    def look(self) -> Done | None:
        """How it went, once it has ended; it is ended when its time is over. Does not block."""
        process = self._process
        if process is None:
            return None
        code = process.poll()
        if code is None:
            if time.monotonic() >= self._until:
                self._signal(signal.SIGKILL if self._ending else signal.SIGTERM)
                self._ending, self._until = True, time.monotonic() + _TO_END_S
            return None
        names, last = map(_lines, self._files)
        problem = ""
        if self._ending:
            problem = f"it took more than {self._limit_s:.0f} s, and was ended"
        elif code < 0:
            problem = f"{signal.Signals(-code).name} killed it"
        elif code > 0:
            problem = f"it ended with code {code}"
        if problem and last:
            problem += f": {last[-1][:500]}"
        self._failures = self._failures + 1 if problem else 0
        if problem:
            pause = min(_FIRST_PAUSE_S * 2 ** (self._failures - 1), _LONGEST_PAUSE_S)
            self._not_before = time.monotonic() + pause
        self._forget()
        return Done(self._words, problem, names)

    def close(self) -> None:
        """End it, if it runs."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(_TO_END_S)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
            self._forget()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _forget(self) -> None:
        for file in self._files:
            os.close(file)
        self._process, self._files = None, ()


def _lines(file: int) -> list[str]:
    text = os.pread(file, _SHOWN, 0).decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]
