"""``spotmpi bench convergence``: how accurate each strategy is, with and without revocations.

The sets (`tasks`) are scikit-learn's digits, a harder one that is generated, and, only if asked
for, images of MNIST. Each strategy trains a small network on 8 workers, for the same passes over
the same samples, with momentum of 0.9:

without  nobody is lost
with     3 of the 8 die by SIGKILL, drawn workers at drawn steps, between a gradient and its step;
         2 spares join after the first two deaths, whenever they have come in
         (--workers, --lost and --spares take other numbers)

Both have the same start and the same order of samples for the same seed, so they are compared seed
by seed. The learning rate of each strategy and set is chosen before, once, of a few, with another
seed and without the test set. A run with revocations counts only if its trace says that just these
workers died, that all spares joined, and that every sample counted once in each pass.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from spotmpi.bench.measuring import launching, tasks
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.figures import Aim, middle_and_ends
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.scripts.converging import Training, to_json
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.strategies import NAMES, named
from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once

__all__ = ["FITTING", "Shape", "add_arguments", "against", "aims", "check", "deaths", "main"]

_RATES = (0.0125, 0.05, 0.2)
FITTING = {
    "diloco": "diloco:h=16,momentum=0.5",
    "adpsgd": "adpsgd:control=16",
    "gossip": "gossip:control=16",
    "parameterserver": "parameterserver:control=16",
    "hogwild": "hogwild:control=16",
}
"""Options for so small a training, where a strategy's own are not for that."""
_BASE = "ssgd"
_NEAR = 1.0
"""Points, in percent of the test set, that revocations may cost."""
_LIMIT = 240.0
"""Seconds that a job may take, and a fifth of that for each of its trainings."""

Cell = Mapping[str, Any]


class Shape(NamedTuple):
    """Workers of a training, how many of them are lost, and how many others join after that."""

    workers: int = 8
    lost: int = 3
    spares: int = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how accurate each strategy is on several sets, with 8 workers, and with 3 of them "
        "killed while 2 others join."
    )
    parser.epilog = (
        "example: spotmpi bench convergence --json convergence.json --plot convergence.png\n\n"
        "About 3 minutes a strategy and set on 2 cores. Exit code 1 if a job failed; a target that "
        "is\nmissed is only reported."
    )
    tasks.add_arguments(parser)
    parser.add_argument(
        "--strategies",
        nargs="+",
        metavar="NAME[:OPTION=N,..]",
        help="as --strategy of spotmpi run takes them (all that there are, with "
        f"{', '.join(FITTING.values())})",
    )
    for name, usual, text in zip(
        ("--workers", "--lost", "--spares"),
        Shape(),
        (
            "that train",
            "how many of them are killed",
            "how many others join after the first deaths",
        ),
        strict=True,
    ):
        parser.add_argument(name, type=int, default=usual, metavar="N", help=f"{text} ({usual})")
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        metavar="R",
        help=f"learning rates to choose from ({' '.join(map(str, _RATES))})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the accuracies to FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them into FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for; 1 if a job failed. Blocking, minutes."""
    seeds, rates = list(options.seeds), options.rates or list(_RATES)
    if not all(rate > 0 for rate in rates):
        raise UsageError("--rates takes numbers of more than 0")
    tasks.check_seeds(seeds)
    strategies = options.strategies or [FITTING.get(name, name) for name in NAMES]
    for strategy in strategies:
        named(strategy)  # or it says what there is
    if options.plot and not options.plot.resolve().parent.is_dir():
        raise UsageError(f"{options.plot}: there is no such folder; make it first")
    shape, sets = _shape(options), tasks.asked_for(options)
    report = Report(
        "convergence",
        options.json,
        workers=shape.workers,
        lost=shape.lost,
        joined=shape.spares,
        seeds=seeds,
    )
    print(_HEAD, flush=True)
    with temporary_job.ended_by_signals():
        for task, passes in sets.items():
            for strategy in strategies:
                if cell := _cell(report, shape, task, strategy, passes, seeds, rates):
                    report.add(cell, [_row(cell, report.cells)])
    print("", *aims(report.cells), sep="\n")
    if options.plot and report.cells:
        from spotmpi.bench.measuring import drawing  # matplotlib: nobody else waits for it

        drawing.draw_accuracies(report.cells, options.plot)
    return report.close()


def deaths(steps: int, seed: int, shape: Shape) -> tuple[tuple[int, int], ...]:
    """Who dies in a training of so many steps, and in which: worker and step, in their order.
    JobFailed if there are too few."""
    draw = random.Random(f"deaths {seed}")
    workers = draw.sample(range(shape.workers), shape.lost)
    # Not before the spares are there, and not when there is no time left for them to join.
    possible = range(max(4, steps // 10), 3 * steps // 4)
    if len(possible) < shape.lost:
        raise JobFailed(f"{shape.lost} deaths need more than {steps} steps; take more --passes")
    moments = sorted(draw.sample(possible, shape.lost))
    return tuple(zip(workers, moments, strict=True))


def against(cell: Cell, base: Cell | None = None) -> list[float]:
    """What revocations cost, in points and seed by seed: of ``cell``, against what it reached
    without them, or ``base`` did."""
    other = (base or cell)["without"]
    return [
        round(100 * (one - other[seed]), 9)  # 0.927 - 0.937 is a point, and not more
        for seed, one in cell["with"].items()
        if seed in other
    ]


def aims(cells: Sequence[Cell]) -> Iterator[Aim]:
    """What is to be reached, of each cell: the median of its seeds counts."""
    for cell in cells:
        base = _base(cell, cells)
        for points, words in (
            (against(cell), "without revocations"),
            (against(cell, base) if base and base is not cell else [], "SSGD without them"),
        ):
            if points:
                yield Aim(
                    f"{cell['set']}, {cell['strategy']}: {median(points):+.1f} points against "
                    f"{words} ({min(points):+.1f} .. {max(points):+.1f}), aim {-_NEAR:+.1f}",
                    median(points) >= -_NEAR,
                )


def _shape(options: argparse.Namespace) -> Shape:
    """What was asked for. UsageError if there cannot be such a training."""
    shape = Shape(options.workers, options.lost, options.spares)
    if shape.workers < 2:
        raise UsageError(f"--workers is {shape.workers}, expected 2 or more: one must remain")
    if not 1 <= shape.lost < shape.workers:
        raise UsageError(
            f"--lost is {shape.lost}, expected 1 to {shape.workers - 1}: one of "
            f"{shape.workers} workers must remain"
        )
    if not 0 <= shape.spares <= shape.lost:
        raise UsageError(
            f"--spares is {shape.spares}, expected 0 to {shape.lost}: "
            "a spare joins when a worker is lost"
        )
    return shape


def _cell(
    report: Report,
    shape: Shape,
    task: str,
    strategy: str,
    passes: int,
    seeds: Sequence[int],
    rates: Sequence[float],
) -> Cell | None:
    """All runs of a strategy on a set; None if there is nothing to compare."""
    what = f"{task}, {strategy}"
    ended: list[dict[str, Any]] = []
    with report.measuring(what):
        tuned = _tuned(shape.workers, task, strategy, passes, rates)
        rate = max(rates, key=lambda one: tuned[str(one)])
        found, _ = _job([Training(task, strategy, rate, s, passes, shape.workers) for s in seeds])
        without = {str(seed): one["accuracy"] for seed, one in zip(seeds, found, strict=True)}
        steps = found[0]["steps"]
        for seed in seeds:
            with report.measuring(f"{what}, seed {seed}, with revocations"):
                killed = deaths(steps, seed, shape)
                training = Training(
                    task, strategy, rate, seed, passes, shape.workers, shape.spares, killed
                )
                ended.append({"seed": seed, **_revoked(training)})
    if not ended:
        return None
    return {
        "set": task,
        "strategy": strategy,
        "passes": passes,
        "steps": steps,
        "rate": rate,
        "tuned": tuned,
        "without": without,
        "with": {str(run["seed"]): run.pop("accuracy") for run in ended},
        "runs": ended,
    }


def _tuned(
    workers: int, task: str, strategy: str, passes: int, rates: Sequence[float]
) -> dict[str, float]:
    """What each rate reaches, where there is a choice. JobFailed."""
    if len(rates) == 1:
        return {str(rates[0]): 1.0}
    found, _ = _job(
        [
            Training(task, strategy, rate, tasks.TUNING_SEED, passes, workers, tuning=True)
            for rate in rates
        ]
    )
    return {str(rate): one["accuracy"] for rate, one in zip(rates, found, strict=True)}


def _revoked(training: Training) -> dict[str, Any]:
    """One training with deaths and joins. JobFailed unless all of them happened, as they should."""
    (found,), records = _job([training])
    samples = len(tasks.TASKS[training.task].data().x)
    joins = check(records, training.deaths, training.spares, samples, training.passes)
    return {**found, "deaths": training.deaths, "joins": joins}


def check(
    records: Sequence[trace.Record],
    deaths: Sequence[tuple[int, float]],
    spares: int,
    samples: int,
    passes: int,
) -> list[int]:
    """The steps before which the spares were admitted. JobFailed unless the trace says that those
    died that were to, that the spares trained, and that each of these samples counted once in each
    pass. ``deaths``: who was to die, each with the moment."""
    lost = sorted(
        worker for record in records if record["event"] == "recovery" for worker in record["lost"]
    )
    if lost != sorted(worker for worker, _ in deaths):
        raise JobFailed(f"workers {lost} were lost, and others were to be: {deaths}")
    joins = {
        worker: int(record["step"])
        for record in records
        if record["event"] == "change"
        for worker in record["joined"]
    }
    trained = {
        worker for record in records if record["event"] == "step" for worker in record["workers"]
    }
    if len(came := trained.intersection(joins)) != spares:
        raise JobFailed(f"of {spares} spares {len(came)} came to train before the end")
    try:
        check_exactly_once(records, samples, passes)
    except TraceError as error:
        raise JobFailed(f"not every sample counted once: {error}") from error
    return sorted(joins.values())


def _job(trainings: Sequence[Training]) -> tuple[list[Any], list[trace.Record]]:
    """What came of each, and the trace of the first; all are of as many workers. JobFailed."""
    spares = trainings[0].spares
    workers = trainings[0].workers + spares
    with temporary_job.private_folder(workers) as folder:
        program = [str(launching.SCRIPTS / "converging.py"), str(folder), to_json(trainings)]
        if spares:
            program[:0] = ["--spares", str(spares)]
        limit = _LIMIT * (1 + len(trainings) / 5)
        launching.by_spotmpi(workers, program, folder / "trace", folder, limit)
        try:
            results = [
                json.loads((folder / f"result-{number}.json").read_text())
                for number in range(len(trainings))
            ]
            return results, list(trace.read(folder / "trace"))
        except (OSError, ValueError, TraceError) as error:
            raise JobFailed(f"the job ended without its results: {error}") from error


_HEAD = (
    "test accuracy, % (least .. most of all seeds); differences in points, seed by seed\n"
    "set     strategy      rate  | without               with                  |"
    " with - without       with - SSGD without"
)


def _row(cell: Cell, cells: Sequence[Cell]) -> str:
    base = _base(cell, cells)
    percents = [[100 * one for one in cell[kind].values()] for kind in ("without", "with")]
    return (
        f"{cell['set']:7} {cell['strategy']:12} {cell['rate']:<6g}| "
        + "  ".join(f"{middle_and_ends(one):20}" for one in percents)
        + f"  | {middle_and_ends(against(cell), '+'):20} "
        + (middle_and_ends(against(cell, base), "+") if base else "")
    )


def _base(cell: Cell, cells: Sequence[Cell]) -> Cell | None:
    """Synchronous SGD on the same set, if that was measured."""
    return next(
        (c for c in [*cells, cell] if (c["set"], c["strategy"]) == (cell["set"], _BASE)), None
    )
