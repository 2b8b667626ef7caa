"""``spotmpi bench memory``: what becomes of the optimizer's memory when the strategy changes.

With some strategies each worker has an optimizer memory of its own; with others all have the same.
Where workers change from one of the first kind to one of the second there are several ways
(`WAYS`), and this compares them, for each optimizer that has a memory: on the sets of `tasks`,
with 8 workers that are simulated in this process (`workers_in_one_process`). So nothing is timed,
and the same seeds give the same figures.

once   the strategy changes to ``ssgd`` after half of the steps
often  it changes to ``ssgd`` and back every 32 steps

All ways have the same start and the same samples, and change in the same steps, so they are
compared seed by seed. *Just after* a change is the loss on all samples of the training set after
1, 10, 30 and 100 more steps; *at the end* are that loss and the accuracy on the test set. The
learning rate is chosen before, of a few, with another seed and without the test set: that with
which trainings go furthest that do not change, one with each strategy. The worse of the two counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from spotmpi.bench.measuring import tasks
from spotmpi.bench.measuring.figures import Estimate, interval
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.measuring.workers_in_one_process import WAYS, Workers
from spotmpi.errors import UsageError
from spotmpi.optimizers import LAMB, Adam, AdamW, Momentum, Optimizer
from spotmpi.strategies import named

__all__ = ["OPTIMIZERS", "add_arguments", "beside_zero", "main"]

_WORKERS = 8
OPTIMIZERS: Mapping[str, tuple[type[Optimizer], Sequence[float]]] = {
    "momentum": (Momentum, (0.0125, 0.05, 0.2)),
    "adam": (Adam, (0.003, 0.01, 0.03)),
    "adamw": (AdamW, (0.003, 0.01, 0.03)),
    "lamb": (LAMB, (0.003, 0.01, 0.03)),
}
"""All that have a memory, and the learning rates to choose from."""
_PLANS = ("once", "often")
_AFTER = (1, 10, 30, 100)
"""Steps after the change."""
_OFTEN = 32
_LONGEST = 16
"""Steps: changes come after a multiple of it."""
_TO = "ssgd"
_STRATEGIES = ("localsgd:h=8", "adpsgd:control=16")

Cell = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure what is best for the optimizer's memory where it was each worker's own, and all "
        f"are to have the same: {', '.join(WAYS)}."
    )
    parser.epilog = (
        "example: spotmpi bench memory --sets digits --json memory.json\n\n"
        "About a minute for each set, optimizer and strategy, on one core."
    )
    tasks.add_arguments(parser)
    parser.add_argument(
        "--optimizers",
        nargs="+",
        choices=list(OPTIMIZERS),
        metavar="NAME",
        help=f"{', '.join(OPTIMIZERS)} (all)",
    )
    text = f"in which each worker has a memory of its own ({' '.join(_STRATEGIES)})"
    parser.add_argument("--strategies", nargs="+", metavar="NAME[:OPTION=N,..]", help=text)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for. Blocking, minutes."""
    seeds = list(options.seeds)
    sets = tasks.asked_for(options)
    tasks.check_seeds(seeds)
    strategies = options.strategies or list(_STRATEGIES)
    for name in strategies:
        one = named(name)
        if not one.local_models or _LONGEST % one.every:
            raise UsageError(
                f"{name}: each worker is to have a memory of its own, and {_LONGEST} steps are to "
                "be whole rounds"
            )
    report = Report("memory", options.json, workers=_WORKERS, seeds=seeds, after=_AFTER)
    for task, passes in sets.items():
        for strategy in strategies:
            for optimizer in options.optimizers or OPTIMIZERS:
                cell = _cell(task, strategy, optimizer, passes, seeds)
                report.add(cell, _said(cell))
    return report.close()


def beside_zero(cell: Cell, plan: str, way: str, figure: str) -> Estimate:
    """By how much ``way`` differs from a memory that begins again, seed by seed. ``figure``: the
    steps after a change, of which it is the loss, or "loss" or "accuracy", which is in points."""
    runs = cell[plan]
    times = 100.0 if figure == "accuracy" else 1.0
    known = [(run[figure], runs["zero"][seed][figure]) for seed, run in runs[way].items()]
    return interval([times * (one - zero) for one, zero in known])


def _said(cell: Cell) -> Iterator[str]:
    """A cell for people: medians, and by how much each way differs from ``zero``."""
    yield f"\n{cell['set']}, {cell['strategy']}, {cell['optimizer']}, rate {cell['rate']:g}"
    for plan in _PLANS:
        for way, runs in cell[plan].items():
            found = []
            for figure in next(iter(runs.values())):
                times, digits = (100.0, 1) if figure == "accuracy" else (1.0, 4)
                middle = times * median(run[figure] for run in runs.values())
                beside = beside_zero(cell, plan, way, figure)
                more = "" if way == "zero" else f" [{beside.middle:+.{digits}f}]"
                what = figure if not figure.isdigit() else f"after {figure}"
                found.append(f"{what} {middle:.{digits}f}{more}")
            yield f"  {plan:5} {way:6} " + "  ".join(found)


def _cell(task: str, strategy: str, optimizer: str, passes: int, seeds: Sequence[int]) -> Cell:
    """All ways and plans of an optimizer."""
    rates = OPTIMIZERS[optimizer][1]
    tuned = {
        rate: [_Training(task, optimizer, passes, tasks.TUNING_SEED).whole(one, rate)
               for one in (strategy, _TO)]
        for rate in rates
    }  # fmt: skip
    rate = max(rates, key=lambda one: min(tuned[one]))
    found: dict[str, dict[str, dict[str, Any]]] = {
        plan: {way: {} for way in WAYS} for plan in _PLANS
    }
    steps = 0
    for seed in seeds:
        training = _Training(task, optimizer, passes, seed)
        steps = len(training.batches)
        for plan, run in (("once", training.once), ("often", training.often)):
            for way, figures in run(strategy, rate).items():
                found[plan][way][str(seed)] = figures
    known = {"set": task, "strategy": strategy, "optimizer": optimizer, "rate": rate}
    return {**known, "tuned": {str(one): both for one, both in tuned.items()}, "passes": passes,
            "steps": steps, **found}  # fmt: skip


class _Training:
    """One seed: the same start and the same batches for all ways."""

    def __init__(self, task: str, optimizer: str, passes: int, seed: int) -> None:
        known = tasks.TASKS[task]
        data = known.data()
        self.data = data.for_tuning() if seed == tasks.TUNING_SEED else data
        self._initial = tasks.Network.initial(known, seed)
        self._optimizer = OPTIMIZERS[optimizer][0]
        self.batches = list(_batches(len(self.data.x), known.batch_size, passes, seed))

    def whole(self, strategy: str, rate: float) -> float:
        """The accuracy of a training that does not change."""
        workers = self._workers(strategy, rate)
        for batches in self.batches:
            workers.step(batches, rate)
        return float(self._end(workers)["accuracy"])

    def once(self, strategy: str, rate: float) -> dict[str, dict[str, float]]:
        """The figures of each way, after one change."""
        before = self._workers(strategy, rate)
        at = len(self.batches) // 2 // _LONGEST * _LONGEST
        for batches in self.batches[:at]:
            before.step(batches, rate)
        found = {}
        for way in WAYS:
            workers, figures = before.copied(), {}
            workers.follow(named(_TO), way)
            for number, batches in enumerate(self.batches[at:], 1):
                workers.step(batches, rate)
                if number in _AFTER:
                    figures[str(number)] = self._loss(workers)
            found[way] = {**figures, **self._end(workers)}
        return found

    def often(self, strategy: str, rate: float) -> dict[str, dict[str, float]]:
        """The figures of each way at the end, after many changes."""
        found = {}
        for way in WAYS:
            workers = self._workers(strategy, rate)
            for number, batches in enumerate(self.batches):
                if number and number % _OFTEN == 0:
                    workers.follow(named((strategy, _TO)[number // _OFTEN % 2]), way)
                workers.step(batches, rate)
            found[way] = self._end(workers)
        return found

    def _workers(self, strategy: str, rate: float) -> Workers:
        make: Any = self._optimizer
        x, y = self.data.x, self.data.y
        gradient = partial(_gradient, x, y)
        return Workers(self._initial, make(lr=rate), named(strategy), gradient, _WORKERS)

    def _end(self, workers: Workers) -> dict[str, float]:
        accuracy = tasks.Network.accuracy(workers.model, self.data.test_x, self.data.test_y)
        return {"loss": self._loss(workers), "accuracy": round(accuracy, 6)}

    def _loss(self, workers: Workers) -> float:
        return round(tasks.Network.loss(workers.model, self.data.x, self.data.y), 6)


def _gradient(x: tasks.Array, y: tasks.Array, params: Any, batch: Any) -> tasks.Params:
    return tasks.Network.gradient(params, x[batch], y[batch])


def _batches(samples: int, size: int, passes: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """The batches of all workers, step by step, all of the same size: what remains of a pass is
    left out."""
    draw = np.random.default_rng(seed)
    many = samples // (size * _WORKERS)
    for _ in range(passes):
        order = draw.permutation(samples)[: many * size * _WORKERS]
        yield from order.reshape(many, _WORKERS, size)
