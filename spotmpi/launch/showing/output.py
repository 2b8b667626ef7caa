"""The launcher's two output streams, shared by all workers and the launcher itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from spotmpi.launch.decoding import shown
from spotmpi.launch.event_loop import WRITE, Loop
from spotmpi.launch.log_lines import keep
from spotmpi.launch.output_lines import Lines, Outlet, Sink, Written
from spotmpi.launch.showing.terminal import LiveLine, can_show
from spotmpi.launch.showing.worker_logs import Logs

__all__ = ["Output"]

_LONGEST = 1 << 16
"""Characters of what the launcher says at a time."""


class Output:
    """Passes on what workers write, line by line, and never blocks the launcher.

    After ``patience`` seconds without a reader what is too much is dropped. ``quiet`` workers are
    not shown; ``verbose`` shows log lines; in ``log_dir`` each worker has a file, and all log lines
    have one.
    """

    def __init__(
        self,
        loop: Loop,
        patience: float,
        quiet: bool = False,
        log_dir: Path | None = None,
        verbose: bool = False,
    ) -> None:
        self._loop = loop
        self._patience = patience
        error = Sink(2, patience)
        self._live = LiveLine(error) if can_show(2) else None
        stream = self._live or error
        # On one terminal all goes one way, so that a line that lives is below all others.
        out = None if self._live is not None and _same_terminal() else Sink(1, patience)
        self._sinks = (error,) if out is None else (out, error)
        self._streams = (out or stream, stream)
        self._quiet = quiet
        self._logs = None if log_dir is None else Logs(log_dir, self.say)
        self._held = False
        self._log_places: list[Written] = [stream] if verbose else []
        self._log_places += [] if self._logs is None else [self._logs.of("spotmpi")]
        self._log_lines: dict[str, Lines] = {}
        """Of each process, by its name."""
        self._end_log = keep(partial(self._log_own, "head")) if self._log_places else lambda: None

    def outlet(self, worker: int, stream: int, prefix: str) -> Outlet:
        """Where to put what a worker wrote to stream 1 (output) or 2 (error)."""
        shown = [] if self._quiet else [Lines(self._streams[stream - 1], prefix)]
        kept = [] if self._logs is None else [Lines(self._logs.of(f"worker-{worker}"))]
        return Outlet([*shown, *kept])

    @property
    def held(self) -> bool:
        """Whether nobody reads the launcher's own streams as fast as workers write."""
        return self._held

    def say(self, text: str) -> None:
        """Say something to the user, as the launcher: whatever it quotes moves no cursor."""
        line = shown(text, _LONGEST, lines=True)
        self._streams[1].say(f"spotmpi: {line}\n".encode(errors="replace"))

    @property
    def width(self) -> int | None:
        """Columns for `show`; None where nothing can be shown in place."""
        return None if self._live is None else self._live.width

    def show(self, line: str) -> None:
        """Have this as the last line on the terminal, in the place of the one before; none if it is
        empty."""
        if self._live is not None:
            self._live.show(shown(line, _LONGEST))

    def log(self, process: str, data: bytes) -> None:
        """Take log lines of a process of the job; nothing is their end."""
        if process not in self._log_lines:
            self._log_lines[process] = Lines(_Printable(self._log_places), f"{process}: ")
        if data:
            self._log_lines[process].feed(data)
        else:
            self._log_lines.pop(process).close()

    def _log_own(self, process: str, line: bytes) -> bool:
        self.log(process, line)
        return True

    def flush(self, seconds: float) -> None:
        """Write what waits, as far as it is read. Blocks for so long at most."""
        for sink in self._sinks:
            sink.drain(time.monotonic() + seconds)

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
        self.show("")
        self._end_log()
        self._log_places.clear()
        if self._logs is not None:
            self._logs.close()
        yield
        until = time.monotonic() + self._patience
        for sink in self._sinks:
            sink.drain(until)
            sink.close()


def _same_terminal() -> bool:
    """Whether both streams are shown in one place."""
    return os.isatty(1) and os.fstat(1).st_rdev == os.fstat(2).st_rdev


class _Printable:
    """Passes on lines from other processes to all ``places``: whatever they quote moves no
    cursor."""

    def __init__(self, places: Sequence[Written]) -> None:
        self._places = places

    def write(self, data: bytes) -> None:
        """Take lines."""
        lines = data.decode(errors="replace").splitlines()
        text = "".join(f"{shown(line, _LONGEST)}\n" for line in lines)
        for place in self._places:
            place.write(text.encode(errors="replace"))
