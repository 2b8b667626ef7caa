"""What a trace tells about the time of a step: undisturbed steps, and who took them together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spotmpi.economy.models.calibration import Measured
from spotmpi.errors import TraceError
from spotmpi.trace.records import Record

__all__ = ["SSGD", "WARM_UP", "Told", "read"]

SSGD = "GradientAverage() >> Apply()"
"""How a trace calls the strategy of `spotmpi.strategies.SSGD`, which would bring in Numba."""

WARM_UP = 5
"""Steps that do not count: the first, and those behind a recovery or a change. Kernels are compiled
and caches filled in them."""

_FLOAT_MB = 4e-6
"""A trace tells how many floats there are, and not of which size: float32."""


@dataclass
class Told:
    """What one trace says."""

    gradient_mb: float = 0.0
    strategy: str = ""
    runs: list[Measured] = field(default_factory=list)
    """One for each stretch of steps whose workers did not change."""
    iterations: list[float] = field(default_factory=list)
    """Batches of one worker that were done before a step ..."""
    losses: list[float] = field(default_factory=list)
    """... and the loss that it saw; steps that gave none are left out."""
    workers: float = 1.0
    """In a step, on average."""


def read(records: Iterable[Record], name: str) -> Told:
    """Read a trace called ``name``. Pure.

    Left out: `WARM_UP`; steps of workers whose host the trace does not tell (who joined later, in
    traces of old); steps in which somebody learns. TraceError for a trace without a beginning, or
    whose records lack what they should have.
    """
    told = Told()
    reader = _Reader(told)
    try:
        for record in records:
            reader.take(record)
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"{name}: a record lacks what a trace of spotmpi has ({error!r}); is it one?"
        ) from error
    if not reader.begun:
        raise TraceError(
            f"{name} has no start record, so nobody knows how many floats the model has; "
            "give the trace of a whole run"
        )
    reader.close()
    return told


class _Reader:
    def __init__(self, told: Told) -> None:
        self.begun = False
        self._told = told
        self._hosts: dict[int, str] = {}
        self._learning: set[int] = set()
        self._workers: tuple[int, ...] = ()
        self._seconds: list[float] = []
        self._since = 0
        """Steps since something happened."""
        self._done = 0.0
        self._steps: list[tuple[int, float, float, float]] = []
        """Step, iterations before and after it, its loss (NaN for none)."""

    def take(self, record: Record) -> None:
        event = record["event"]
        if event == "start":
            self._start(record)
        elif event in ("recovery", "change"):
            self._stretch()
            joined = [int(worker) for worker in record.get("joined", ())]
            self._hosts.update(zip(joined, map(str, record.get("hosts", ())), strict=False))
            self._learning |= set(joined)
            self._learning -= {*record.get("lost", ()), *record.get("left", ())}
        elif event == "resume":
            self._stretch()
            self._steps = [one for one in self._steps if one[0] < record["step"]]
            self._done = self._steps[-1][2] if self._steps else 0.0
        elif event == "step":
            self._step(record)

    def close(self) -> None:
        self._stretch()
        if self._steps:
            self._told.workers = self._steps[-1][2] / len(self._steps)
        for _, iterations, _, loss in self._steps:
            if not math.isnan(loss):
                self._told.iterations.append(iterations)
                self._told.losses.append(loss)

    def _start(self, record: dict[str, Any]) -> None:
        self._stretch()  # a run that was resumed begins again in the same trace
        self.begun = True
        workers = [int(worker) for worker in record["workers"]]
        hosts = record.get("hosts") or ["localhost"] * len(workers)
        self._hosts = dict(zip(workers, map(str, hosts), strict=True))
        self._learning = set()
        self._told.gradient_mb = int(record["params"]) * _FLOAT_MB
        self._told.strategy = str(record.get("strategy", ""))

    def _step(self, record: dict[str, Any]) -> None:
        workers = tuple(int(worker) for worker in record["workers"])
        if workers != self._workers:
            self._stretch()
            self._workers = workers
        self._since += 1
        self._learning -= set(workers)
        if self._since > WARM_UP and not self._learning and set(workers) <= self._hosts.keys():
            self._seconds.append(float(record["seconds"]))
        loss = record.get("loss")
        before, self._done = self._done, self._done + len(workers)
        number = math.nan if loss is None else float(loss)
        self._steps.append((int(record["step"]), before, self._done, number))

    def _stretch(self) -> None:
        """What follows does not belong to what was before."""
        if self._seconds:
            on = Counter(self._hosts[worker] for worker in self._workers)
            run = Measured(len(on), max(on.values()), tuple(self._seconds))
            self._told.runs.append(run)
        self._seconds = []
        self._since = 0
