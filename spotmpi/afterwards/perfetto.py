"""A training for a viewer of timelines (ui.perfetto.dev, chrome://tracing): workers and rounds.

A host is a process there, and a worker a thread of it. Times are whole microseconds since the first
thing that is drawn: viewers drop what is before 0. The clocks of hosts are aligned by the rounds
that all were in (`trace.clocks`), and each host's name says by how much that may be wrong.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from spotmpi.trace.clocks import Clock
from spotmpi.trace.interruptions import Story
from spotmpi.trace.recoveries import parts
from spotmpi.trace.timeline import Run

__all__ = ["perfetto"]

Event = dict[str, Any]

_TRAINING = 1
"""The process of what is nobody's own."""
_KEEPING = 1 << 21
"""What is added to a worker for the thread that writes its checkpoints; above all workers."""


def perfetto(told: Story) -> str:
    """The file's text."""
    found = list(_of_training(told))
    for number, run in enumerate(told.runs):
        found += _Workers(run, number, len(told.runs)).events()
    drawn = _from_zero(_in_turn(found))
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": drawn}, allow_nan=False)


def _in_turn(found: Sequence[Event]) -> Iterator[Event]:
    """All events; on each thread the slices in the order of their beginning, without overlaps."""
    threads: dict[tuple[int, int], list[Event]] = {}
    for event in found:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
        else:
            yield event
    for slices in threads.values():
        yield from _nested(slices)


def _nested(slices: Iterable[Event]) -> Iterator[Event]:
    """The slices of one thread, cut so that of two that meet one holds the other.

    Viewers drop a slice that overlaps with another one. What begins shortly before another one's
    end, because times are rounded, begins at that end; what ends after that in which it began ends
    with it.
    """
    waiting = [(one["ts"], -one["dur"], place, one) for place, one in enumerate(slices)]
    heapq.heapify(waiting)
    ends: list[int] = []
    """Of the slices that are open, the innermost one last."""
    while waiting:
        at, _, place, one = heapq.heappop(waiting)
        while ends and ends[-1] <= at:
            ends.pop()
        took = one["dur"]
        if ends and at + took > ends[-1]:
            within = ends[-1] - at
            if 2 * within < took:
                took -= within
                later = {**one, "ts": ends[-1], "dur": took}
                heapq.heappush(waiting, (ends[-1], -took, place, later))
                continue
            took = within
        ends.append(at + took)
        yield {**one, "dur": took}


def _from_zero(found: Iterable[Event]) -> list[Event]:
    """The same, and the first at 0."""
    kept = list(found)
    first = min((one["ts"] for one in kept if "ts" in one), default=0)
    return [{**one, "ts": one["ts"] - first} if "ts" in one else one for one in kept]


def _of_training(told: Story) -> Iterator[Event]:
    yield _named("process_name", _TRAINING, 0, "training")
    yield _named("thread_name", _TRAINING, 1, "interruptions")
    for one in told.interruptions:
        fields = {"step": one.step, "workers": list(one.workers), "why": one.why, **one.parts}
        took = max(one.cost, 0.0)
        yield _slice(_TRAINING, 1, one.cause, one.at - took, took, fields)
    for run in told.runs:
        for each in run.rounds:
            yield {
                "ph": "C",
                "pid": _TRAINING,
                "name": "workers",
                "ts": _us(each.at),
                "args": {"workers": len(each.workers)},
            }


class _Workers:
    """Those of one run."""

    def __init__(self, run: Run, number: int, runs: int) -> None:
        self._run = run
        self._of = f", run {number + 1}" if runs > 1 else ""
        names = dict.fromkeys([*run.hosts.values(), ""])
        first = _TRAINING + 1 + number * (1 << 12)
        self._pids = {name: first + place for place, name in enumerate(names)}
        self._seen: set[int] = set()

    def events(self) -> Iterator[Event]:
        """All of theirs."""
        run = self._run
        for name, pid in self._pids.items():
            if name in run.hosts.values():
                clock = run.clocks.get(name, Clock(0.0, None))
                said = f"host {name}{self._of} ({_precision(clock)})"
                yield _named("process_name", pid, 0, said)
        for step, told in run.own.items():
            for worker, own in told.items():
                yield from self._meet(worker)
                over = run.moment(own.committed, worker)
                came = over - 1e-3 * own.within
                fields = {"step": step, "cpu_ms": own.ran, "without_core_ms": own.starved}
                began = came - 1e-3 * own.script
                known = self._pid(worker), worker
                yield _slice(*known, "script", began, 1e-3 * own.script, fields)
                yield _slice(*known, "round", came, 1e-3 * own.within, fields)
        for record in run.of("recovered"):
            yield from self._recovered(record)
        for record in run.of("checkpoint"):
            yield from self._kept(record)
        if "" in self._pids and any(run.hosts.get(one) is None for one in self._seen):
            yield _named("process_name", self._pids[""], 0, f"host not told{self._of}")

    def _recovered(self, record: Event) -> Iterator[Event]:
        if record["total_ms"] is None or record.get("at") is None:
            return
        worker = int(record["worker"])
        yield from self._meet(worker)
        at = self._run.moment(float(record["at"]), worker) - 1e-3 * float(record["total_ms"])
        for part, ms in parts(record).items():
            fields = {"generation": record["generation"], "step": record["step"]}
            if part != "computing":  # the script's slice shows it
                yield _slice(self._pid(worker), worker, part, at, 1e-3 * ms, fields)
            at += 1e-3 * ms

    def _kept(self, record: Event) -> Iterator[Event]:
        if record.get("began") is None:
            return
        worker = int(record["worker"])
        pid, thread = self._pid(worker), worker + _KEEPING
        yield _named("thread_name", pid, thread, f"checkpoints of worker {worker}")
        began = self._run.moment(float(record["began"]), worker)
        fields = {"step": record["step"], "copy_ms": record.get("copy_ms")}
        yield _slice(pid, thread, "checkpoint", began, float(record["seconds"]), fields)

    def _pid(self, worker: int) -> int:
        return self._pids[self._run.hosts.get(worker, "")]

    def _meet(self, worker: int) -> Iterator[Event]:
        if worker not in self._seen:
            self._seen.add(worker)
            yield _named("thread_name", self._pid(worker), worker, f"worker {worker}")


def _precision(clock: Clock) -> str:
    if clock.error is None:
        return "its clock is not known"
    return "its clock counts" if not clock.error else f"its clock \u00b1{1e3 * clock.error:.2f} ms"


def _slice(pid: int, thread: int, name: str, at: float, took: float, fields: Event) -> Event:
    known = {"ph": "X", "pid": pid, "tid": thread, "name": name}
    began = _us(at)
    return {**known, "ts": began, "dur": max(0, _us(at + took) - began), "args": fields}


def _named(what: str, pid: int, thread: int, name: str) -> Event:
    return {"ph": "M", "pid": pid, "tid": thread, "name": what, "args": {"name": name}}


def _us(seconds: float) -> int:
    """Whole ones: a viewer multiplies them, and what only touches must not overlap then."""
    return round(1e6 * seconds)
