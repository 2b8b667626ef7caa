"""Work that goes on beside the training, and that nobody has to wait for."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Background", "InThread"]

T = TypeVar("T")


class Background(ABC, Generic[T]):
    """Something that was begun. It must touch nothing that changes meanwhile."""

    @property
    @abstractmethod
    def through(self) -> bool:
        """Whether it has ended, well or badly."""

    @abstractmethod
    def wait(self) -> T:
        """Block until it is `through`; what came of it, or raise what went wrong."""


class InThread(Background[T]):
    """In a thread of this process, which ends with it, or is ended with it."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._failure: BaseException | None = None
        # No daemon: a process that ends by itself waits for it.
        self._thread = threading.Thread(target=self._perform, name=name)
        self._thread.start()

    def _perform(self) -> None:
        try:
            self._result = self._work()
        except BaseException as failure:  # noqa: BLE001 - whoever waits for it raises it
            self._failure = failure

    @property
    def through(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def wait(self) -> T:
        """Join the thread."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._result
