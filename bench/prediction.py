"""``spotmpi bench prediction``: how far a step is off that `spotmpi profile` predicts.

Runs with 1, 2 and 4 workers are what it predicts from, one with 8 is what it is compared with; all
of them take turns, several times, and each waits a while for others to leave the cores alone: where
workers outnumber the cores, other load makes small steps four times as long. The error is that of
the prediction, beside the one that the profile states without having seen the 8.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench.measuring import launching, machine
from spotmpi.economy.models import calibration, step_times, trials
from spotmpi.economy.models.calibration import Fit, Measured
from spotmpi.errors import UsageError
from spotmpi.launch.processes import cores
from spotmpi.launch.start import temporary_job

__all__ = ["Found", "add_arguments", "main"]

_FROM, _TO, _TURNS, _STEPS = (1, 2, 4), 8, 5, 30
_TARGET = 0.15
_QUIET, _PATIENCE = 0.1, 20.0
"""A share of the cores, and seconds to wait for it."""
_KEPT = 100
"""Steps of a run that count, and are written down: from all over it."""
_LIMIT = 120.0
"""Seconds of a run."""

_SCRIPTS = {
    "digits": (str(launching.SCRIPTS.parents[1] / "jobs" / "digits.py"),),
    "4 MB": (str(launching.SCRIPTS / "computing.py"), "1000000", "300"),
    "25 MB": (str(launching.SCRIPTS / "computing.py"), "6250000", "300"),
}


@dataclass
class Found:
    """What was measured of one script: of each run in order, workers and seconds of its steps."""

    script: str
    gradient_mb: float
    runs: list[Measured] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Of each run: the share of the cores that others used just before it."""

    def fit(self, least: int) -> Fit:
        """Of the runs with fewer than ``least`` workers."""
        seen = [run for run in self.runs if run.workers_per_host < least]
        return calibration.calibrate(seen, cores(), self.gradient_mb)

    def measured(self, workers: int) -> float:
        """Seconds of a step: the median of the runs' medians."""
        return median(run.median for run in self.runs if run.workers_per_host == workers)

    def predicted(self, workers: int) -> float:
        """Seconds of a step, from the runs with fewer workers."""
        return self.fit(workers).host.step(workers, 1, self.gradient_mb)

    def error(self, workers: int) -> float:
        """0.1: predicted 10 % too slow."""
        return self.predicted(workers) / self.measured(workers) - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how far off `spotmpi profile` is: it profiles runs with few workers, predicts a "
        "run with more, runs that one and compares."
    )
    parser.epilog = (
        "example: spotmpi bench prediction --json profile.json\n\n"
        f"Scripts: {', '.join(_SCRIPTS)} of gradients. About 4 minutes on 2 cores."
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        metavar="N",
        default=_FROM,
        help="numbers of workers to predict from (1 2 4)",
    )
    parser.add_argument(
        "--predict", type=int, metavar="N", default=_TO, help=f"number to predict ({_TO})"
    )
    parser.add_argument(
        "--turns", type=int, metavar="T", default=_TURNS, help=f"runs of each ({_TURNS})"
    )
    parser.add_argument(
        "--scripts",
        nargs="+",
        choices=list(_SCRIPTS),
        metavar="NAME",
        default=list(_SCRIPTS),
        help="what to train (all)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all step times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a run failed. Blocking, minutes."""
    few = len(set(options.workers)) < 2
    if few or min(*options.workers, options.turns) < 1 or options.predict <= max(options.workers):
        raise UsageError(
            "--workers takes two numbers or more, of at least 1 as --turns, and --predict a larger "
            "one"
        )
    if options.json and not options.json.resolve().parent.is_dir():
        raise UsageError(f"{options.json}: there is no such folder; make it first")
    head = machine.describe()
    found, failures = [], []
    with temporary_job.ended_by_signals():
        for script in options.scripts:
            try:
                one = _measure(script, [*options.workers, options.predict], options.turns)
            except trials.TrialFailed as error:
                failures.append(f"{script}: {error}")
                print(f"FAILED {failures[-1]}", flush=True)
                continue
            found.append(one)
            print(*page(one, options.predict), sep="\n", flush=True)
    if options.json:
        results = to_json(head, found, failures, options.predict)
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failures else 0


def page(one: Found, workers: int) -> list[str]:
    """What was measured, predicted and stated, for people."""
    fit = one.fit(workers)
    measured = "  ".join(
        f"{number}: {1e3 * seconds:.2f}" for (_, number), seconds in fit.medians.items()
    )
    error = one.error(workers)
    off = (
        f"predicted {1e3 * one.predicted(workers):.2f}, measured {1e3 * one.measured(workers):.2f}"
    )
    stated = "nobody has compared" if fit.error is None else f"{100 * fit.error:.1f} %"
    return [
        f"{one.script}: ms a step of {measured}",
        f"  {workers} workers: {off}: {100 * error:+.1f} %; stated: {stated}",
        f"  {'holds ' if abs(error) <= _TARGET else 'MISSED'}  at most {100 * _TARGET:.0f} % off",
    ]


def to_json(
    head: dict[str, Any], found: Sequence[Found], failures: Sequence[str], workers: int
) -> dict[str, Any]:
    """All step times and what they were measured on, in the values of JSON."""
    return {
        "bench": "prediction",
        **head,
        "failures": list(failures),
        "scripts": [
            {
                "script": one.script,
                "gradient_mb": one.gradient_mb,
                "workers": workers,
                "predicted_s": one.predicted(workers),
                "measured_s": one.measured(workers),
                "error": one.error(workers),
                "stated_error": one.fit(workers).error,
                "parameters": vars(one.fit(workers).host),
                "runs": [
                    {
                        "workers": run.workers_per_host,
                        "busy_before": round(used, 3),
                        "seconds": [round(s, 7) for s in run.seconds],
                    }
                    for run, used in zip(one.runs, one.busy, strict=True)
                ],
            }
            for one in found
        ],
    }


def _measure(script: str, workers: Sequence[int], turns: int) -> Found:
    """Runs of each number of workers, in turns. TrialFailed; leaves nothing behind."""
    found = Found(script, 0.0)
    for _ in range(turns):
        for number in workers:
            used = _wait_for_quiet()
            records = trials.trial(number, _SCRIPTS[script], _STEPS, _LIMIT)
            told = step_times.read(records, f"{script} with {number} workers")
            found.gradient_mb = told.gradient_mb
            for run in told.runs:
                each = max(1, len(run.seconds) // _KEPT)
                found.runs.append(Measured(1, number, run.seconds[::each]))
                found.busy.append(used)
    return found


def _wait_for_quiet() -> float:
    """Block until nobody uses the cores, at most `_PATIENCE` seconds; the share last used."""
    deadline = time.monotonic() + _PATIENCE
    while (used := machine.busy(0.25)) > _QUIET and time.monotonic() < deadline:
        pass
    return used
