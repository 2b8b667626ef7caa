"""The standing of a job as a table for people: pure. Workers of one host and one fate share a row,
so that forty need hardly more room than four."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spotmpi.launch.control_messages import Report, WorkerReport
from spotmpi.launch.showing import live_line
from spotmpi.launch.wording import duration, moment, number

__all__ = ["numbers", "table"]

_WORTH_SAYING = 1.0
"""Seconds that others wait for a worker before it gets a row of its own."""

_LONG = 10.0
"""Seconds for which one that starts does nothing before that is said: it may wait for a file."""

_PIDS = 4
"""Processes that are named in a row."""

Row = tuple[str, str, str, str]
"""Host, workers, their processes, and what is said of them."""


def table(status: Report, width: int | None = None, height: int | None = None) -> str:
    """Return lines for a report, cut to ``width`` columns.

    If there would be more than ``height`` lines, hosts where all is well share one.
    """
    head, rows = list(_head(status)), list(_rows(status.workers))
    if height is not None and len(head) + len(rows) + 2 > height:
        rows = _collapsed(rows)
    lines = head
    if rows:
        lines += ["", *_aligned([("HOST", "WORKERS", "PROCESSES", "STATE"), *rows])]
    if height is not None and len(lines) > height:
        kept = max(1, height - 1)
        lines = [*lines[:kept], f"(and {len(lines) - kept} lines more)"]
    return "\n".join(line if width is None else line[:width] for line in lines)


def numbers(workers: Iterable[int]) -> str:
    """Return ids as people write them: ``0-3,5``."""
    spans: list[list[int]] = []
    for worker in sorted(workers):
        if spans and spans[-1][1] == worker - 1:
            spans[-1][1] = worker
        else:
            spans.append([worker, worker])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _head(status: Report) -> Iterable[str]:
    workers = status.workers
    states = [worker.state for worker in workers]
    said = ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))
    kept, ending = status.checkpoint, status.ending
    script = " ".join([status.script, *status.arguments])
    yield f"job         {status.job}: {script}"
    yield (
        f"since       {moment(status.since)} ({duration(status.seconds)}), "
        f"launcher {status.launcher} on {status.host}"
    )
    step = "no step yet" if status.step is None else f"step {status.step}"
    step += "" if status.steps_in_all is None else f" of {status.steps_in_all}"
    step += "" if status.loss is None else f", loss {number(status.loss)}"
    stopping = ", stopping" if status.stopping and ending is None else ""
    yield f"training    {step}, generation {status.generation}{stopping}"
    if ending is None and (pace := live_line.pace(status)):
        yield f"pace        {pace}"
    if status.strategy is not None:
        yield f"strategy    {status.strategy}" + ("" if status.why is None else f": {status.why}")
    yield "checkpoint  " + ("none" if kept is None else f"step {kept.step} in {kept.path}")
    if status.unsaved is not None:
        yield f"            {status.unsaved}"
    if workers:
        yield f"workers     {len(workers)}: {said}"
    elif ending is None:
        yield "workers     none: it waits for hosts"
    if ending is not None:
        yield f"ended       code {ending.code}: {ending.meaning}"
        if ending.sentence:
            yield f"            {ending.sentence}"


def _rows(workers: Sequence[WorkerReport]) -> Iterable[Row]:
    hosts: dict[str, dict[str, list[WorkerReport]]] = {}
    for worker in workers:
        fates = hosts.setdefault(worker.host, {})
        fates.setdefault(_fate(worker), []).append(worker)
    for host, fates in hosts.items():
        name = host
        for fate, alike in fates.items():
            yield name, numbers(one.worker for one in alike), _pids(alike), fate
            name = ""


def _pids(workers: Iterable[WorkerReport]) -> str:
    known = [str(one.pid) for one in workers if one.pid is not None]
    return ",".join(known[:_PIDS]) + ",.." * (len(known) > _PIDS)


def _fate(worker: WorkerReport) -> str:
    fate = worker.state
    if worker.how is not None:
        fate += f" ({worker.how})"
    if worker.when is not None:
        fate += f" at {moment(worker.when)}"
    if worker.busy is not None:
        fate += f", busy: {worker.busy}"
    waited, quiet = worker.awaited_seconds, worker.quiet_seconds or 0.0
    if waited is not None and waited >= _WORTH_SAYING:
        fate += f"; others have waited {duration(waited)} for it"
        if quiet >= _WORTH_SAYING:
            fate += f", which has done nothing for {duration(quiet)}"
    elif worker.doing is None and quiet >= _LONG:
        fate += f", has done nothing for {duration(quiet)}"
    return fate


def _collapsed(rows: Sequence[Row]) -> list[Row]:
    """The same, where hosts with one row that says nothing but "training" share one."""
    plain = {
        at
        for at, (host, _, _, fate) in enumerate(rows)
        if host and fate == "training" and (at + 1 == len(rows) or rows[at + 1][0])
    }
    others = [row for at, row in enumerate(rows) if at not in plain]
    if not plain:
        return others
    ids = ",".join(rows[at][1] for at in sorted(plain))
    spans = [span.split("-") for span in ids.split(",")]
    everybody = [one for span in spans for one in range(int(span[0]), int(span[-1]) + 1)]
    hosts = "1 host" if len(plain) == 1 else f"{len(plain)} hosts"
    return [(f"({hosts})", numbers(everybody), "", "training"), *others]


def _aligned(rows: Sequence[Row]) -> list[str]:
    columns = [0, 1, *([2] if any(row[2] for row in rows[1:]) else [])]
    widths = [(column, max(len(row[column]) for row in rows)) for column in columns]
    return ["".join(f"{row[at]:<{width}}  " for at, width in widths) + row[3] for row in rows]
