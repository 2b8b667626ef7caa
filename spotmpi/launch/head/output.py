"""The launcher's two output streams, shared by all workers and the launcher itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spotmpi.launch.decoding import shown
from spotmpi.launch.event_loop import WRITE, Loop
from spotmpi.launch.head.worker_logs import Logs
from spotmpi.launch.output_lines import PATIENCE, Lines, Outlet, Sink

__all__ = ["Output"]

_LONGEST = 1 << 16
"""Characters of what the launcher says at a time."""


class Output:
    """Passes on what workers write, line by line, and never blocks the launcher.

    ``quiet`` workers are not shown; in ``log_dir`` each worker has a file.
    """

    def __init__(self, loop: Loop, quiet: bool = False, log_dir: Path | None = None) -> None:
        self._loop = loop
        self._sinks = (Sink(1), Sink(2))
        self._quiet = quiet
        self._logs = None if log_dir is None else Logs(log_dir, self.say)
        self._held = False

    def outlet(self, worker: int, stream: int, prefix: str = "") -> Outlet:
        """Where to put what a worker wrote to stream 1 (output) or 2 (error)."""
        shown = [] if self._quiet else [Lines(self._sinks[stream - 1], prefix)]
        kept = [] if self._logs is None else [Lines(self._logs.of(worker))]
        return Outlet([*shown, *kept])

    @property
    def held(self) -> bool:
        """Whether nobody reads the launcher's own streams as fast as workers write."""
        return self._held

    def say(self, text: str) -> None:
        """Say something to the user, as the launcher: whatever it quotes moves no cursor."""
        line = shown(text, _LONGEST, lines=True)
        self._sinks[1].say(f"spotmpi: {line}\n".encode(errors="replace"))

    def adjust(self) -> None:
        """Decide what to wait for. To be called before every wait, for `pause` at most."""
        for sink in self._sinks:
            sink.look()
            if sink.ready:
                self._loop.watch(sink.descriptor, sink.push, WRITE)
            else:
                self._loop.leave(sink.descriptor)
        self._held = any(sink.full for sink in self._sinks)

    def pause(self) -> float | None:
        """Seconds until `adjust` must be called."""
        pauses = [one for sink in self._sinks if (one := sink.pause()) is not None]
        return min(pauses, default=None)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Take nothing more from workers; then, after the block, write it all.

        Blocks as long as it is read, and for seconds when it is not.
        """
        if self._logs is not None:
            self._logs.close()
        yield
        until = time.monotonic() + PATIENCE
        for sink in self._sinks:
            sink.drain(until)
            sink.close()
