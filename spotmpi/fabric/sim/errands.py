"""Work of a simulation's workers that takes a time of its own, beside their steps or in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from spotmpi.fabric import Background, Work
from spotmpi.fabric.sim.workers import LATER, Process, Workers
from spotmpi.protocol.membership import WorkerId

__all__ = ["Errand", "Errands"]

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


class Errands:
    """All work of one simulation, which is done some time later if its worker is there then."""

    def __init__(self, workers: Workers) -> None:
        self._time, self._workers = workers.time, workers

    def begin(self, worker: WorkerId, work: Callable[[], T]) -> Background[T]:
        """Have ``work`` done in the background."""
        errand = Errand(work)
        self._time.after(self._time.delays.write, self._do, worker, errand)
        return errand

    def work(self, worker: WorkerId, process: Process, request: Work) -> Any:
        """Perform `Work`. It stays done, even if its worker dies before the reply."""
        self._time.after(self._time.delays.compute, self._work, worker, request.work)
        return LATER

    def _do(self, worker: WorkerId, errand: Errand[Any]) -> None:
        if worker in self._workers.processes:
            errand.do()

    def _work(self, worker: WorkerId, work: Callable[[], Any]) -> None:
        if worker in self._workers.processes:
            self._workers.reply(worker, work(), self._time.delays.compute)
