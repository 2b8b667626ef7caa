"""A thread that works through what it is given while its caller does something else."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["SumThread"]

T = TypeVar("T")


class SumThread(Generic[T]):
    """It lives until `end` or `halt`, which one of must be called."""

    def __init__(self, work: Callable[[T], bool], name: str) -> None:
        """``work``: on one thing; False, or what it raises, ends it, and the rest is left."""
        self._work = work
        self._given: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self.failure: Exception | None = None
        """What it has raised."""
        self.halted = False
        """To be looked at by ``work`` where that waits: its caller wants it to end."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, one: T) -> None:
        """One thing more."""
        self._given.put(one)

    def end(self) -> None:
        """Wait until it has done all that it can. Raises what it raised."""
        self._given.put(None)
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def halt(self) -> None:
        """Have it leave off, and wait until it has."""
        self.halted = True
        self._given.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self.halted and (one := self._given.get()) is not None and self._work(one):
                pass
        except Exception as failure:  # noqa: BLE001 -- its caller raises it
            self.failure = failure
