"""Work that runs beside the training, without anybody having to wait for it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Background", "InThread"]

T = TypeVar("T")


class Background(ABC, Generic[T]):
    """Work that has begun. It must not touch anything that changes meanwhile."""

    @property
    @abstractmethod
    def through(self) -> bool:
        """True if the work has ended, well or badly."""

    @abstractmethod
    def wait(self) -> T:
        """Block until the work has ended. Returns its result, or raises its error."""


class InThread(Background[T]):
    """Work in a thread of this process. If the process dies, the work ends with it."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._failure: BaseException | None = None
        # The thread is no daemon, so a process that ends by itself waits for it.
        self._thread = threading.Thread(target=self._perform, name=name)
        self._thread.start()

    def _perform(self) -> None:
        try:
            self._result = self._work()
        except BaseException as failure:  # noqa: BLE001 - `wait` raises it
            self._failure = failure

    @property
    def through(self) -> bool:
        """True if the thread has ended."""
        return not self._thread.is_alive()

    def wait(self) -> T:
        """Join the thread. Returns the result of the work, or raises its error."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._result
