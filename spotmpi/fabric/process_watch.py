"""Which workers of this host are dead: the kernel tells it at once, and for certain."""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Collection

from spotmpi.protocol.membership import WorkerId

__all__ = ["ProcessWatch"]


class ProcessWatch:
    """The processes of other workers. One is dead once its memory is gone, reaped or not."""

    def __init__(self) -> None:
        self._ends = select.epoll()  # closed with this object
        self._descriptors: dict[WorkerId, int] = {}
        weakref.finalize(self, _close, self._descriptors)

    def follow(self, worker: WorkerId, process: int) -> None:
        """Watch this process as that worker's from now on. OSError if there is none."""
        self.forget([worker])
        descriptor = os.pidfd_open(process)
        self._descriptors[worker] = descriptor
        self._ends.register(descriptor, select.EPOLLIN)

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Watch these workers no more, if they were watched."""
        for worker in self._descriptors.keys() & set(workers):
            descriptor = self._descriptors.pop(worker)
            self._ends.unregister(descriptor)
            os.close(descriptor)

    def keep(self, workers: Collection[WorkerId]) -> None:
        """Watch no workers but these."""
        self.forget(self._descriptors.keys() - set(workers))

    @property
    def dead(self) -> list[WorkerId]:
        """The workers whose process is over. Local, returns at once."""
        if not (over := [descriptor for descriptor, _ in self._ends.poll(0)]):
            return []
        return [worker for worker, one in self._descriptors.items() if one in over]


def _close(descriptors: dict[WorkerId, int]) -> None:
    for descriptor in descriptors.values():
        os.close(descriptor)
