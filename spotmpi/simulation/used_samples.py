"""Which samples of a pass have counted, as the trace has it."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.sampler import Indices

__all__ = ["UsedSamples"]


class UsedSamples:
    """The samples of the present pass; each method says what is wrong, if anything is."""

    def __init__(self, samples: int) -> None:
        self.passed = 0
        """Passes that are complete."""
        self._unused = np.ones(samples, np.bool_)
        self._pending: list[tuple[WorkerId, Indices]] = []
        """Of steps whose worker may have died before them: what it brought went ahead."""

    @property
    def between(self) -> bool:
        """No pass is begun and not complete."""
        return bool(self._unused.all())

    def begin(self, workers: Collection[WorkerId]) -> None:
        """A round begins. These take part in it: they have taken all steps of the last one."""
        for worker, samples in self._pending:
            if worker not in workers:
                self._unused[samples] = True
        self._pending.clear()

    def use(self, worker: WorkerId, samples: Indices, ahead: bool) -> str | None:
        """A worker used these in a step. ``ahead``: what it brought to the round was made before
        that."""
        again = not self._unused[samples].all()
        self._unused[samples] = False
        if ahead:
            self._pending.append((worker, samples))
        return f"worker {worker} used a sample again: {samples}" if again else None

    def step(self) -> str | None:
        """All have used theirs."""
        if self._unused.any():
            return None
        self.passed += 1
        self._unused[:] = True
        return f"a pass is over, and these may go back: {self._pending}" if self._pending else None
