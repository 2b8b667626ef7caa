"""A thread that sees to messages beside the script."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

_NAP, _NAP_UNDER_WAY = 5e-5, 1e-3
"""Limits of the pause between two looks for messages, in seconds. A pause is a tenth of the wait so
far: at least the first, and at most the second if anything is under way."""


class Messenger:
    """A thread that looks for messages again and again, until this process exits."""

    def __init__(self, name: str, look: Callable[[], tuple[bool, bool]], longest: float) -> None:
        """``look`` does what can be done now. It returns whether that was anything, and whether
        anything is under way. ``longest``: the longest pause if nothing is, in seconds."""
        self._name = name
        self._longest = longest
        self._look = look
        self._thread: threading.Thread | None = None
        self._news = threading.Event()
        """Makes the thread look at once."""
        self._ends = False
        self._failure: Exception | None = None
        """Error that has ended the thread, if any."""

    def start(self) -> None:
        """Start the thread, unless that is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
            atexit.register(self._end)

    def wake(self) -> None:
        """Have the thread look at once."""
        self._news.set()

    def check(self) -> None:
        """Raise the error that has ended the thread, if any."""
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        self._ends = True
        self._news.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        idle_since = time.monotonic()
        try:
            while not self._ends:
                moved, busy = self._look()
                now = time.monotonic()
                if moved:
                    idle_since = now
                longest = _NAP_UNDER_WAY if busy else self._longest
                self._news.wait(min(max(_NAP, 0.1 * (now - idle_since)), longest))
                self._news.clear()
        except Exception as failure:  # noqa: BLE001 -- the next request raises it
            self._failure = failure
