"""Background work in a simulation, where time is not the machine's."""

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
        """Whether it is done."""
        return self._through

    def do(self) -> None:
        """Do it, unless it is done."""
        if self._through:
            return
        self._through = True
        try:
            self._result = self._work()
        except AssertionError:  # a check of the simulation's has failed
            raise
        except Exception as failure:  # noqa: BLE001 - whoever waits for it raises it
            self._failure = failure

    def wait(self) -> T:
        """Whoever cannot go on without it has it done now."""
        self.do()
        if self._failure is not None:
            raise self._failure
        return self._result
