"""Background work in a simulation, which has its own time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spotmpi.fabric.background import Background

T = TypeVar("T")


class Errand(Background[T]):
    """Work that is done at one moment: all of it, or nothing."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._through = False
        self._failure: Exception | None = None

    @property
    def through(self) -> bool:
        """True if the work is done."""
        return self._through

    def do(self) -> None:
        """Do the work, unless it is done."""
        if self._through:
            return
        self._through = True
        try:
            self._result = self._work()
        except AssertionError:  # a check of the simulation has failed
            raise
        except Exception as failure:  # noqa: BLE001 - `wait` raises it
            self._failure = failure

    def wait(self) -> T:
        """Do the work now, unless it is done. Returns its result, or raises its error."""
        self.do()
        if self._failure is not None:
            raise self._failure
        return self._result
