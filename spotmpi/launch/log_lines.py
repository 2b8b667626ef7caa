"""Log lines: what spotmpi itself does, in every process of a job, for whoever looks for a fault.

All loggers are named after their modules, below ``spotmpi``. What the user must know is said apart
from it. Nobody waits for a log line to be taken: those that find no room are dropped, and counted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

__all__ = ["LOGGER", "STREAM", "keep", "to_pipe"]

LOGGER = "spotmpi"
"""The root of all loggers."""

STREAM = 3
"""A worker's log lines, beside its output (1) and error (2)."""

_LONGEST = 2000
"""Bytes of a line: short enough for a pipe to take it whole or not at all (PIPE_BUF is 4096)."""

_FORMAT = "%(asctime)s.%(msecs)03d %(name)s: %(message)s"


class _LineHandler(logging.Handler):
    """Gives each record to ``write`` as one line; that returns whether there was room for it."""

    def __init__(self, write: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._write = write
        self._dropped = 0
        self.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Never blocks, never raises."""
        try:
            text = self.format(record).replace("\n", " | ")
        except Exception:  # noqa: BLE001 - a training is worth more than its log
            self.handleError(record)
            return
        line = text.encode(errors="replace")[:_LONGEST] + b"\n"
        if self._dropped:
            missing = f"{self._dropped} log lines are missing here: they came too fast\n".encode()
            if not self._write(missing):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._write(line):
            self._dropped += 1


def keep(write: Callable[[bytes], bool]) -> Callable[[], None]:
    """From now on ``write`` is given each log line of this process; returns what ends that.

    Nobody else is given them: a script that sets up logging for itself sees its own lines only.
    """
    logger, handler = logging.getLogger(LOGGER), _LineHandler(write)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False

    def end() -> None:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate

    return end


def to_pipe(descriptor: int) -> Callable[[bytes], bool]:
    """What writes lines to a pipe, and drops those for which it has no room."""
    os.set_blocking(descriptor, False)

    def write(line: bytes) -> bool:
        try:
            return os.write(descriptor, line) == len(line)
        except BlockingIOError:
            return False
        except OSError:
            return True  # nobody reads any more: nothing is missed

    return write
