"""What the workers of a job are ordered to do (`launcher_channel.Order`), as long as it holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from spotmpi.launcher_channel import Order

__all__ = ["Orders"]


class Orders:
    """All that were given; ``write(worker, order)`` puts one where the worker finds it."""

    def __init__(self, write: Callable[[int, Order], None]) -> None:
        self._write = write
        self._given: dict[int, Order] = {}

    @property
    def leaving(self) -> frozenset[int]:
        """The workers that are ordered to leave."""
        return frozenset(worker for worker, order in self._given.items() if order.leave)

    def give(self, worker: int, **changes: Any) -> bool:
        """Change what a worker is to do; returns whether it was put where the worker finds it."""
        before = self._given.get(worker, Order())
        order = before._replace(**changes)
        if order != before:
            self._given[worker] = order
            with suppress(OSError):  # no room in the folder: it stays as it was
                self._write(worker, order)
                return True
            self._given[worker] = before
            return False
        return True
