"""Messages that nobody waits for any more."""

from __future__ import annotations

import time
from collections import deque

from spotmpi.fabric.mpi.calls import MPI, let_go
from spotmpi.fabric.retired import QUIET

__all__ = ["GivenUp"]


class GivenUp:
    """Memory of such messages, kept as long as MPI may read or write it: until the message is
    through or, if it cannot be as a worker is lost, until nothing of it can be under way."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, MPI.Request, object]] = deque()

    def add(self, request: MPI.Request, memory: object) -> None:
        """Keep the memory of a message that nobody waits for from now on."""
        self._kept.append((time.monotonic(), request, memory))

    def free(self) -> None:
        """Forget messages that are over, and cancel those that will not come. Local."""
        before = time.monotonic() - QUIET
        for _ in range(len(self._kept)):
            since, request, memory = self._kept.popleft()
            try:
                if let_go(request):
                    continue
                if since < before:  # now Test does no harm
                    if request.Test():
                        continue
                    request.Cancel()
            except MPI.Exception:  # it has ended with an error, and MPI has freed it
                continue
            self._kept.append((since, request, memory))
