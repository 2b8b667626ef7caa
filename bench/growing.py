"""``spotmpi bench growing``: what a training that begins with one worker and gets more comes to.

As in "Speeding up deep learning with transient servers" (Li, Walls, Xu and Guo, 2019, section
III-F): a training has room for 4 workers and begins with one, and after each quarter of its samples
one comes. Synchronous SGD with momentum of 0.9, on the sets of `tasks`:

one       one worker from the beginning to the end, with the learning rate that is best for it
naive     1 to 4 workers, with the rate of 4 all the time: four times that of one
adaptive  1 to 4 workers, with a rate that follows their number: what spotmpi does by itself

All go through the same samples as often, from the same start in the same order, so they are
compared seed by seed. The rate of one worker is chosen before, of a few, with another seed and
without the test set. A training that grows counts only if its trace says that the workers have come
when they should, and that every sample counted once in each pass. Newcomers are awaited with slow
steps; how fast steps are is not looked at here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import IO, Any

from spotmpi.bench.measuring import launching, tasks
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.figures import Aim, middle_and_ends
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.scripts.growing import Growth, to_json
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.commands import client
from spotmpi.launch.control_messages import AskMore, Said
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once

__all__ = ["WAYS", "add_arguments", "aims", "check", "difference", "main"]

WORKERS = 4
WAYS = ("one", "naive", "adaptive")
_RATES = (0.003125, 0.0125, 0.05, 0.2)
_NEAR = 1.0
"""Points, in percent of the test set, that growing may cost."""
_LIMIT = 240.0
"""Seconds that a job may take, and a fifth of that for each of its trainings."""
_LOOK = 0.02

Cell = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how accurate a training is that begins with one worker and gets three more, with "
        "a naive and an adaptive learning rate, beside one of one worker."
    )
    parser.epilog = (
        "example: spotmpi bench growing --json growing.json\n\n"
        "About 3 minutes on 2 cores. Exit code 1 if a job failed; a target that is missed is "
        "only\nreported."
    )
    tasks.add_arguments(parser)
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        metavar="R",
        help=f"learning rates of one worker to choose from ({' '.join(map(str, _RATES))})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accuracies to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for; 1 if a job failed. Blocking, minutes."""
    seeds, rates = list(options.seeds), options.rates or list(_RATES)
    if not all(rate > 0 for rate in rates):
        raise UsageError("--rates takes numbers of more than 0")
    tasks.check_seeds(seeds)
    sets = tasks.asked_for(options)
    report = Report("growing", options.json, workers=WORKERS, seeds=seeds)
    print(_HEAD, flush=True)
    with temporary_job.ended_by_signals():
        for task, passes in sets.items():
            with report.measuring(task):
                cell = _cell(task, passes, seeds, rates)
                report.add(cell, [_row(cell)])
    print("", *aims(report.cells), sep="\n")
    return report.close()


def difference(cell: Cell, way: str, other: str) -> list[float]:
    """By how many points ``way`` is better than ``other``, seed by seed."""
    return [100 * (one - cell[other][seed]) for seed, one in cell[way].items()]


def aims(cells: Sequence[Cell]) -> Iterator[Aim]:
    """What is to be reached, on each set: the median of its seeds counts."""
    for cell in cells:
        for other, least in (("one", -_NEAR), ("naive", 0.0)):
            points = difference(cell, "adaptive", other)
            yield Aim(
                f"{cell['set']}: the adaptive rate is {median(points):+.1f} points against {other} "
                f"({min(points):+.1f} .. {max(points):+.1f}), aim {least:+.1f}",
                median(points) >= least,
            )


def check(records: Sequence[trace.Record], samples: int, passes: int) -> list[int]:
    """The steps before which workers came. JobFailed unless one came after the other until there
    were all, and each of so many samples counted once in each pass."""
    sizes = [len(record["workers"]) for record in records if record["event"] == "step"]
    came = [at for at in range(1, len(sizes)) if sizes[at] != sizes[at - 1]]
    if [sizes[0], *(sizes[at] for at in came)] != list(range(1, WORKERS + 1)):
        raise JobFailed(f"the training was to have 1 to {WORKERS} workers, and had {set(sizes)}")
    try:
        check_exactly_once(records, samples, passes)
    except TraceError as error:
        raise JobFailed(f"not every sample counted once: {error}") from error
    return came


def _cell(task: str, passes: int, seeds: Sequence[int], rates: Sequence[float]) -> Cell:
    """All trainings on one set. JobFailed."""
    tuned = _tuned(task, passes, rates)
    rate = max(rates, key=lambda one: tuned[str(one)])
    alone, _ = _job([Growth(task, rate, "none", seed, passes) for seed in seeds])
    accuracies = {way: dict[str, float]() for way in WAYS}
    steps: dict[str, dict[str, list[int]]] = {way: {} for way in WAYS[1:]}
    for seed, one in zip(seeds, alone, strict=True):
        accuracies["one"][str(seed)] = one["accuracy"]
        for way, training in (
            ("naive", Growth(task, WORKERS * rate, "none", seed, passes, WORKERS)),
            ("adaptive", Growth(task, rate, "linear", seed, passes, WORKERS)),
        ):
            (found,), records = _job([training])
            steps[way][str(seed)] = check(records, len(tasks.TASKS[task].data().x), passes)
            accuracies[way][str(seed)] = found["accuracy"]
    about = {"set": task, "passes": passes, "rate": rate, "tuned": tuned}
    return {**about, **accuracies, "came": steps}


def _tuned(task: str, passes: int, rates: Sequence[float]) -> dict[str, float]:
    """What each rate reaches, where there is a choice. JobFailed."""
    if len(rates) == 1:
        return {str(rates[0]): 1.0}
    trainings = [Growth(task, one, "none", tasks.TUNING_SEED, passes, tuning=True) for one in rates]
    found, _ = _job(trainings)
    return {str(rate): one["accuracy"] for rate, one in zip(rates, found, strict=True)}


def _job(trainings: Sequence[Growth]) -> tuple[list[Any], list[trace.Record]]:
    """What came of each, and the trace of the first; all have as many workers. JobFailed; leaves
    nothing behind."""
    workers = trainings[0].workers
    with temporary_job.private_folder(workers) as folder:
        file = folder / "trace"
        # --replace: a job that was started without it does not grow on its host.
        command = [
            *(sys.executable, "-m", "spotmpi", "run", "-n", "1", "--replace", "--trace", str(file)),
            *(str(launching.SCRIPTS / "growing.py"), str(folder), to_json(trainings)),
        ]
        started = temporary_job.started(
            command, os.environ, folder, end=signal.SIGTERM, patience_s=5.0
        )
        with started as (process, said):
            _let_grow(process, said, folder, workers, _LIMIT * (1 + len(trainings) / 5))
        try:
            results = [
                json.loads((folder / f"result-{number}.json").read_text())
                for number in range(len(trainings))
            ]
            return results, list(trace.read(file))
        except (OSError, ValueError, TraceError) as error:
            raise JobFailed(f"the job ended without its results: {error}") from error


def _let_grow(
    process: subprocess.Popen[bytes], said: IO[bytes], folder: Path, workers: int, limit: float
) -> None:
    """Ask for one worker more whenever one is due, until the job has ended. JobFailed."""
    deadline, due = time.monotonic() + limit, 2
    while process.poll() is None:
        if time.monotonic() > deadline:
            last = temporary_job.last_words(said)
            raise JobFailed(f"still running after {limit:.0f} s; its last words:\n{last}")
        if due <= workers and (folder / f"due-{due}").exists():
            client.ask(client.find(launching.job_of(process)), AskMore(1, None), Said)
            due += 1
        time.sleep(_LOOK)
    if process.returncode:
        last = temporary_job.last_words(said)
        raise JobFailed(f"ended with code {process.returncode}; its last words:\n{last}")


_HEAD = (
    "test accuracy, % (least .. most of all seeds); differences in points, seed by seed\n"
    "set     rate      | one                 naive               adaptive            |"
    " naive - one          adaptive - one"
)


def _row(cell: Cell) -> str:
    reached = ([100 * one for one in cell[way].values()] for way in WAYS)
    apart = (difference(cell, way, "one") for way in WAYS[1:])
    return (
        f"{cell['set']:7} {cell['rate']:<9g} | "
        + "".join(f"{middle_and_ends(one):20}" for one in reached)
        + "| "
        + "  ".join(f"{middle_and_ends(one, '+'):19}" for one in apart)
    )
