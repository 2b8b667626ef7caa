"""What a user sees of a job while it runs, on a terminal or in a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from spotmpi.launch.control_messages import Report
from spotmpi.launch.showing import live_line

__all__ = ["View"]

_BETWEEN_LINES = 60
"""Looks between two lines of a log ..."""

_MANY, _AT_THE_START = 16, 15
"""... and before anybody trains, if more than so many workers are to start."""


class _Console(Protocol):
    """Where the launcher speaks to its user. Never blocks."""

    @property
    def width(self) -> int | None:
        """Columns for `show`; None where nothing can be shown in place."""

    def show(self, line: str) -> None:
        """Replace the last line."""

    def say(self, text: str) -> None:
        """Say something below."""


class View:
    """One job's."""

    def __init__(self, console: _Console) -> None:
        self._console = console
        self._looks = 0

    def look(self, status: Report) -> None:
        """Show how the job stands; to be called every second."""
        width = self._console.width
        self._looks += 1
        if width is not None:
            self._console.show(live_line.line(status, width))
            return
        many = len(status.workers) > _MANY and live_line.starts(status)
        if self._looks % (_AT_THE_START if many else _BETWEEN_LINES) == 0:
            self._console.say(live_line.line(status))

    def renew(self, status: Callable[[], Report]) -> None:
        """Show it again where it is shown: something was said that may have changed it."""
        width = self._console.width
        if self._looks and width is not None:
            self._console.show(live_line.line(status(), width))
