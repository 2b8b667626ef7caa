"""When workers died, seen alike on both sides of the bench: by a pidfd, from outside.

A process is dead when the kernel says so, which is the moment from which anybody can know. The
kernel takes its memory down first: some 5 ms after SIGKILL for a process that has loaded little,
20 ms for one with Numba. That time is spotmpi's as little as it is the floor's, and is given
separately.
"""

from __future__ import annotations

import os
import select
import threading
import time
from pathlib import Path
from types import TracebackType

from spotmpi.launch import processes

__all__ = ["Deaths"]

_TO_DIE = 60.0
"""Seconds for those who were killed: they need a core, to take their memory down."""


class Deaths:
    """Watches the processes that name themselves in the pipe FOLDER/victims.

    Each waits until it is watched: it says ``WORKER PID`` and opens the pipe FOLDER/watched-WORKER,
    which it has made, for reading.

    A context manager. ``seen``: worker -> ``time.monotonic()`` of its death, complete when the
    context is left: all have been killed by then, and who is not dead yet is waited for, a minute
    at most.
    """

    def __init__(self, folder: Path) -> None:
        self.seen: dict[int, float] = {}
        self._folder = folder
        path = folder / "victims"
        os.mkfifo(path, 0o600)
        # For writing, too: so it never ends, and no victim waits for us to open it.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop, self._stopper = os.pipe()
        self._worker_of: dict[int, int] = {}
        self._told: list[int] = []
        """Pipes that tell victims that they are watched."""
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Deaths:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.write(self._stopper, b".")
        self._thread.join()
        for descriptor in (self._pipe, self._stop, self._stopper, *self._told, *self._worker_of):
            os.close(descriptor)

    def _watch(self) -> None:
        # This thread alone: a death that is seen late makes a recovery look too short.
        processes.raise_priority()
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        rest = b""
        end: float | None = None
        while end is None or (len(self.seen) < len(self._worker_of) and time.monotonic() < end):
            left = None if end is None else max(0.0, end - time.monotonic()) * 1e3
            ready = [descriptor for descriptor, _ in poll.poll(left)]
            now = time.monotonic()
            for descriptor in ready:
                if descriptor in self._worker_of:
                    self.seen[self._worker_of[descriptor]] = now
                    poll.unregister(descriptor)
            if self._stop in ready:
                poll.unregister(self._stop)
                end = now + _TO_DIE
            if self._pipe in ready:
                *lines, rest = (rest + os.read(self._pipe, 4096)).split(b"\n")
                for line in lines:
                    worker, pid = map(int, line.split())
                    descriptor = os.pidfd_open(pid)
                    self._worker_of[descriptor] = worker
                    poll.register(descriptor, select.POLLIN)
                    watched = self._folder / f"watched-{worker}"
                    self._told.append(os.open(watched, os.O_RDWR | os.O_CLOEXEC))
