"""A stream of the launcher's with a line at its end that changes in place, if it is a terminal."""

from __future__ import annotations

import os

from spotmpi.launch.output_lines import Sink

__all__ = ["LiveLine", "can_show"]

_ERASE = b"\r\x1b[K"


def can_show(descriptor: int) -> bool:
    """Whether a line can be replaced there."""
    return os.isatty(descriptor) and os.environ.get("TERM", "dumb") != "dumb"


def _in_background(terminal: int) -> bool:
    """Whether the shell has given this terminal to somebody else."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False  # it is no shell's


class LiveLine:
    """What goes to a terminal, and the line below it. Never blocks: all is for ``sink`` to write.

    Nothing else may write to ``sink``.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._line = b""
        self._drawn = False
        self._bar = False
        """What was written last is to be written over, by who wrote it."""

    def write(self, data: bytes) -> None:
        """Take what workers wrote, whole lines."""
        self._sink.write(self._around(data))

    def say(self, data: bytes) -> None:
        """Take what the launcher says, whole lines."""
        self._sink.say(self._around(data))

    @property
    def width(self) -> int:
        """Columns for the line."""
        try:
            return max(1, os.get_terminal_size(self._sink.descriptor).columns - 1)
        except OSError:
            return 79

    def show(self, line: str) -> None:
        """Have this as the line from now on; none if it is empty."""
        self._line = b"" if _in_background(self._sink.descriptor) else line.encode(errors="replace")
        if not self._line:
            self._sink.say(self._erasing())
            self._drawn = False
        elif not (self._sink.waiting or self._bar):  # else there will be another line
            self._sink.say(_ERASE + self._line)
            self._drawn = True

    def _erasing(self) -> bytes:
        return _ERASE if self._drawn else b""

    def _around(self, data: bytes) -> bytes:
        before = self._erasing()
        self._bar = not data.endswith(b"\n")
        self._drawn = bool(self._line) and not self._bar and not self._sink.waiting
        return before + data + (self._line if self._drawn else b"")
