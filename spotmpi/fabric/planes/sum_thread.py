"""A thread that works through what it is given while its caller does something else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["SumThread"]

T = TypeVar("T")


class SumThread(Generic[T]):
    """A thread that lives until `end` or `halt`. The caller must call one of them."""

    def __init__(self, work: Callable[[T], bool], name: str) -> None:
        """Start the thread. It calls ``work`` with each item. If ``work`` returns False or raises,
        the thread ends, and the items that follow are left undone."""
        self._work = work
        self._given: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self.failure: Exception | None = None
        """The exception that ``work`` has raised."""
        self.halted = False
        """True if the caller wants the thread to end. ``work`` must look at this while it waits."""
        self._news = threading.Condition()
        self._over = False
        """True if the thread does nothing more."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, one: T) -> None:
        """Give the thread one more item."""
        self._given.put(one)

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until what the thread has done makes ``done`` true, or until it does nothing more.
        The thread goes on. Raises what ``work`` raised."""
        with self._news:
            self._news.wait_for(lambda: done() or self._over)
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        """Wait until the thread has done all that it can. Raises what ``work`` raised."""
        self._given.put(None)
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def halt(self) -> None:
        """Have the thread leave off, and wait until it has."""
        self.halted = True
        self._given.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self.halted and (one := self._given.get()) is not None and self._work(one):
                with self._news:
                    self._news.notify()
        except Exception as failure:  # noqa: BLE001 -- its caller raises it
            self.failure = failure
        with self._news:
            self._over = True
            self._news.notify()
