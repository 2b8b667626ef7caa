"""``spotmpi bench recovery``: how long training stands still when workers die (Fig. 4).

Both sides run in turn on the same machine, with the same workers dying at the same moments:

spotmpi  `training`: the real Trainer (SSGD, momentum) under ``spotmpi run --trace``; with
         ``--ddp`` `torch_training`: a script for DistributedDataParallel
floor    `floor`: bare ULFM (revoke, shrink, one MPI_Allreduce of the same size)

*total* runs from the death of the first victim, as a pidfd tells it (`deaths`), until the last
survivor has committed its first step afterwards (the floor: until it has the result of its
all-reduce). *stall* is total minus a median step, of the undisturbed ones that the survivors take
after it (the floor's step is its all-reduce). All victims of one recovery die at one moment, which
is drawn from the length of an all-reduce; a new one begins when all have gone on for a while, and
a job ends when a quarter of its workers is gone, so a cell of 16 workers holds recoveries of 13 to
16 (each sample says of how many).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spotmpi.bench.measuring import figures, hosts, launching, machine, summary
from spotmpi.bench.measuring.deaths import Deaths
from spotmpi.bench.measuring.events import (
    Cell,
    Event,
    JobFailed,
    Sample,
    recoveries,
    schedule,
    to_text,
)
from spotmpi.bench.scripts import gloo
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records as trace

__all__ = ["add_arguments", "main"]

_WORKERS, _PARAMS, _LOST = (16, 32), (1_000_000,), (1, 2, 3)
_USUAL = (
    *(Cell(workers, 1_000_000, lost) for workers in (16, 32) for lost in (1, 2, 3)),
    Cell(4, 1_000_000, 1),
    *(Cell(workers, 25_600_000, 1) for workers in (4, 8, 16)),
)
"""What is measured when nothing is asked for."""
_RUNS = 6
_COPIES = 8
"""Arrays of the size of the model that a worker holds, with one to spare."""
_WORKER = 200 << 20
"""Bytes that a worker needs for anything else."""

Results = dict[Cell, dict[summary.Side, list[Sample]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how long training stands still when workers die, and the same for bare ULFM."
    )
    parser.epilog = (
        "example: spotmpi bench recovery --workers 16 32 --lost 1 2 3 --plot recovery.png\n\n"
        "Without --workers, --params and --lost: 1 M floats on 4, 16 and 32 workers, 25.6 M on 4,\n"
        "8 and 16; about 10 minutes on 2 cores. With any of them, all combinations; those left\n"
        "out are 16 32, 1000000 and 1 2 3. --hosts 3 6 measures the loss of hosts, beside that of\n"
        "a process. Exit code 1 if a job failed; a target that is missed is only reported."
    )
    for name, text in (
        ("--workers", "numbers of workers"),
        ("--params", "sizes of the model, in float32"),
        ("--lost", "numbers of workers lost at once"),
    ):
        parser.add_argument(name, type=int, nargs="+", metavar="N", help=text)
    parser.add_argument(
        "--hosts",
        type=int,
        nargs="+",
        metavar="N",
        help="measure the loss of one of N hosts instead (needs root)",
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=_RUNS,
        metavar="R",
        help=f"recoveries of each, at least ({_RUNS})",
    )
    parser.add_argument(
        "--detect-ms", type=int, metavar="MS", help="with --hosts: as of spotmpi run (auto)"
    )
    parser.add_argument(
        "--gpu", action="store_true", help="train CuPy's arrays, on a GPU; the floor has the host's"
    )
    parser.add_argument(
        "--ddp", action="store_true", help="train by DistributedDataParallel over spotmpi"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the box plot into FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the tables, write what was asked for; 1 if a job failed. Blocking, minutes."""
    for file in filter(None, (options.json, options.plot)):
        if not file.resolve().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {file.resolve().parent}; make it first")
    if options.hosts:
        if any((options.workers, options.params, options.lost)) or any(
            (options.plot, options.gpu, options.ddp)
        ):
            raise UsageError("--hosts goes with --runs, --detect-ms and --json only")
        return hosts.main(options)
    if options.detect_ms is not None:
        raise UsageError("--detect-ms goes with --hosts")
    if options.ddp and options.gpu:
        raise UsageError("--ddp trains a module in memory of the host: leave out --gpu")
    if options.ddp:
        gloo.check()
    cells = _cells(options)
    head = {**machine.describe(options.gpu), "ddp": options.ddp}
    library = "cupy" if options.gpu else "numpy"
    script = ("torch_training.py",) if options.ddp else ("training.py", library)
    measured: Results = {cell: {"spotmpi": [], "floor": []} for cell in cells}
    with temporary_job.ended_by_signals():
        failures = _measure(measured, options.runs, script)
    if options.json:
        results = to_json(head, measured, failures)
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plot:
        from spotmpi.trace import plots  # matplotlib: nobody else waits for it

        plots.draw_boxes(to_json(head, measured, failures), options.plot)
    print(*_page(head, measured, options.ddp), sep="\n")
    return 1 if failures else 0


def to_json(head: dict[str, Any], measured: Results, failures: list[str]) -> dict[str, Any]:
    """All raw samples and what they were measured on, in the values of JSON."""
    return {
        "bench": "recovery",
        **head,
        "failures": failures,
        "cells": [
            {
                **asdict(cell),
                **{side: [sample.to_json() for sample in got] for side, got in sides.items()},
            }
            for cell, sides in measured.items()
        ],
    }


def _cells(options: argparse.Namespace) -> list[Cell]:
    asked = (options.workers, options.params, options.lost)
    if options.runs < 1 or any(n < 1 for numbers in asked for n in numbers or ()):
        raise UsageError("--workers, --params, --lost and --runs take numbers of at least 1")
    if not any(asked):
        cells = list(_USUAL)
    else:
        cells = [
            Cell(workers, params, lost)
            for params in options.params or _PARAMS
            for workers in options.workers or _WORKERS
            for lost in options.lost or _LOST
        ]
    for cell in cells:
        if cell.lost >= cell.workers:
            raise UsageError(
                f"{cell.lost} of {cell.workers} workers cannot be lost: one must be left to recover"
            )
    return list(_fitting(cells))


def _fitting(cells: Iterable[Cell]) -> Iterator[Cell]:
    free = machine.free_memory()
    for cell in cells:
        need = cell.workers * (_WORKER + _COPIES * 4 * cell.params)
        if need <= free:
            yield cell
        else:
            _say(
                f"left out: {cell.workers} workers with {figures.size(cell.params)} floats need "
                f"{need >> 20} MiB of memory, and {free >> 20} MiB are free"
            )


def _measure(measured: Results, runs: int, script: Sequence[str]) -> list[str]:
    """Fill ``measured``, cell after cell and side by side, so that both see the same machine.
    ``script``: that of spotmpi's side, and words that it is given beside a job's."""
    failures = []
    jobs = {cell: -(-runs // cell.events) for cell in measured}
    for turn in range(max(jobs.values(), default=0)):
        for cell, sides in measured.items():
            if turn >= jobs[cell]:
                continue
            events = schedule(cell, turn)
            for side in random.Random(f"{cell} {turn}").sample(["spotmpi", "floor"], 2):
                name = (
                    f"{cell.workers} workers, {figures.size(cell.params)} floats, "
                    f"{cell.lost} lost, job {turn + 1} of {jobs[cell]}, {side}"
                )
                begin = time.monotonic()
                try:
                    got = _job(side, cell, events, script)
                except (JobFailed, TraceError) as error:
                    failures.append(f"{name}: {error}")
                    _say(f"FAILED {failures[-1]}")
                    continue
                sides[side] += got
                totals = " ".join(f"{sample.total:.0f}" for sample in got)
                _say(f"{name}: {totals} ms ({time.monotonic() - begin:.0f} s)")
    return failures


def _job(
    side: summary.Side, cell: Cell, events: list[Event], script: Sequence[str]
) -> list[Sample]:
    """One job, one recovery after the other. JobFailed or TraceError; leaves nothing behind."""
    limit = 60 + 2 * cell.workers + 2e-8 * cell.params * cell.workers * cell.steps
    with temporary_job.private_folder(cell.workers) as folder, Deaths(folder) as deaths:
        arguments = [str(folder), str(cell.params), str(cell.steps), to_text(events)]
        if side == "floor":
            program = [str(launching.SCRIPTS / "floor.py"), *arguments]
            launching.by_mpirun(cell.workers, program, folder, limit)
            records = list(trace.read(folder / "records"))
        else:
            name, *words = script
            program = [str(launching.SCRIPTS / name), *arguments, *words]
            launching.by_spotmpi(cell.workers, program, folder / "trace", folder, limit)
            records = [*trace.read(folder / "records"), *trace.read(folder / "trace")]
    return recoveries(cell, events, deaths.seen, records)


def _page(head: dict[str, Any], measured: Results, ddp: bool) -> Iterator[str]:
    yield from summary.table(measured)
    yield "\nWhere the last survivor's time goes, medians in ms (dying: from SIGKILL to death):"
    yield from summary.phases(measured)
    on, versions = head["machine"], head["versions"]
    if "gpu" not in on:  # the targets are those of arrays in the memory of the host
        yield "\nTargets:"
        for text, holds in (summary.targets_of_ddp if ddp else summary.targets)(measured):
            yield f"  {'holds ' if holds else 'MISSED'}  {text}"
    gpu = f"{on['gpu']}, " if "gpu" in on else ""
    yield (
        f"\n{gpu}{on['cpu']}, {on['cores']} cores, {on['memory_gib']} GiB, Linux {on['kernel']}, "
        f"load {on['load']:.1f} at the start; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
