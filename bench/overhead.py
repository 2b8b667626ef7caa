"""``spotmpi bench overhead``: what a step costs more than a bare loop that does the same work.

Same work: pack the gradient into a flat buffer, MPI_Allreduce it into another one, and update with
the same kernel. What spotmpi adds is the ledger, the control word, the commit and its checks; what
it saves is MPI's copying, as workers of one host sum where the gradients lie. The bare loop is also
timed in place, the fastest that MPI can do; and spotmpi with gradients that were computed into
`trainer.gradients`, which saves the packing. Blocks of steps of each take turns inside
one MPI job (`paired`): a turn's blocks see the same processes, the same memory and the same noise.
No trace: it costs a digest of the parameters in each step.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench import launching, machine
from spotmpi.bench.events import JobFailed
from spotmpi.bench.summary import size
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["Overhead", "add_arguments", "interval", "main"]

_WORKERS, _PARAMS, _PAIRS = (2, 4), (1_000_000, 25_600_000), 60
_PERCENT, _MS = 3.0, 0.15
_SMALL, _LARGE = 1_000_000, 25_600_000
_RESAMPLES = 2000
_LEVEL = 0.95

Pair = tuple[float, float]
"""Seconds per step: bare, spotmpi."""

Estimate = tuple[float, float, float]
"""A median, and the lower and upper end of its confidence interval."""


@dataclass(frozen=True)
class Overhead:
    """One job's pairs, and what they say: a median with its confidence interval each."""

    workers: int
    params: int
    block: int
    """Steps in a block."""
    pairs: list[Pair]
    in_place: list[float]
    """Seconds per step of the bare loop in place, in the same turns."""
    born: list[float]
    """Of spotmpi with `trainer.gradients`."""

    @property
    def percent(self) -> Estimate:
        """Of the pairs' ratios, as an excess in percent."""
        return percent(self.pairs)

    @property
    def ms(self) -> Estimate:
        """Of the pairs' differences, in ms."""
        return milliseconds(self.pairs)

    @property
    def pairs_in_place(self) -> list[Pair]:
        """The pairs with the bare loop that reduces in place."""
        return [(bare, ours) for bare, (_, ours) in zip(self.in_place, self.pairs, strict=True)]

    @property
    def pairs_born(self) -> list[Pair]:
        """The pairs of that and of spotmpi with `trainer.gradients`."""
        return list(zip(self.in_place, self.born, strict=True))

    @property
    def target(self) -> tuple[str, bool] | None:
        """The target for this size and whether the median meets it; None without one."""
        percent, ms = self.percent[0], self.ms[0]
        if self.params == _LARGE:
            return f"at most {_PERCENT:g} %", percent <= _PERCENT
        if self.params == _SMALL:
            return f"at most {_PERCENT:g} % or {_MS} ms", percent <= _PERCENT or ms <= _MS
        return None


def percent(pairs: Sequence[Pair]) -> Estimate:
    """By how much the second of a pair is longer, in percent of the first."""
    return interval(pairs, lambda pair: 100 * (pair[1] / pair[0] - 1))


def milliseconds(pairs: Sequence[Pair]) -> Estimate:
    """By how much the second of a pair is longer, in ms."""
    return interval(pairs, lambda pair: 1e3 * (pair[1] - pair[0]))


def interval(pairs: Sequence[Pair], of: Callable[[Pair], float]) -> Estimate:
    """The median of ``of`` over the pairs, and its bootstrap interval at 95 %: whole pairs are
    drawn with replacement. The same for the same pairs."""
    values = [of(pair) for pair in pairs]
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    edge = round((1 - _LEVEL) / 2 * _RESAMPLES)
    return median(values), medians[edge], medians[-edge - 1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how much more a step costs than a bare loop that does the same work."
    )
    parser.epilog = (
        "example: spotmpi bench overhead --workers 2 4 --params 1000000\n\n"
        "The bare loop reduces into a buffer of its own; in the lines 'in place' it does not, and\n"
        "in the lines 'gradients' spotmpi is given trainer.gradients, against the same bare loop.\n"
        "About 5 minutes on 2 cores."
    )
    for name, usual, text in (
        ("--workers", _WORKERS, "numbers of workers (2 4)"),
        ("--params", _PARAMS, "sizes of the model, in float32 (1 M, 25.6 M)"),
    ):
        parser.add_argument(name, type=int, nargs="+", metavar="N", default=usual, help=text)
    parser.add_argument(
        "--pairs", type=int, default=_PAIRS, metavar="P", help=f"pairs of blocks ({_PAIRS})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all pairs to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a job failed. Blocking, minutes."""
    if min(*options.workers, *options.params, options.pairs) < 1:
        raise UsageError("--workers, --params and --pairs take numbers of at least 1")
    if options.json and not options.json.resolve().parent.is_dir():
        raise UsageError(f"{options.json}: there is no such folder; make it first")
    head = machine.describe()
    found, failures = [], []
    print(
        "workers floats |  bare ms  spotmpi | over %  (95 % interval)  |  over ms  (95 % interval)"
    )
    with temporary_job.ended_by_signals():
        for params in options.params:
            for workers in options.workers:
                try:
                    result = _measure(workers, params, options.pairs)
                except JobFailed as error:
                    failures.append(f"{workers} workers, {size(params)} floats: {error}")
                    print(f"FAILED {failures[-1]}", flush=True)
                    continue
                found.append(result)
                print(*_lines(result), sep="\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(to_json(head, found, failures), indent=1) + "\n")
    return 1 if failures else 0


def to_json(head: dict[str, Any], found: list[Overhead], failures: list[str]) -> dict[str, Any]:
    """All raw pairs and what they were measured on, in the values of JSON."""
    return {
        "bench": "overhead",
        **head,
        "failures": failures,
        "cells": [
            {
                "workers": one.workers,
                "params": one.params,
                "block": one.block,
                "percent": one.percent,
                "ms": one.ms,
                "percent_in_place": percent(one.pairs_in_place),
                "ms_in_place": milliseconds(one.pairs_in_place),
                "percent_born": percent(one.pairs_born),
                "ms_born": milliseconds(one.pairs_born),
                "pairs": one.pairs,
                "in_place": one.in_place,
                "born": one.born,
            }
            for one in found
        ],
    }


def _measure(workers: int, params: int, pairs: int) -> Overhead:
    limit = 60 + 2 * workers + pairs * (1 + 1e-7 * params * workers)
    with temporary_job.private_folder(workers) as folder:
        program = [str(launching.SCRIPTS / "paired.py"), str(folder), str(params), str(pairs)]
        launching.by_mpirun(workers, program, folder, limit)
        try:
            wrote = json.loads((folder / "turns.json").read_text())
        except (OSError, ValueError) as error:
            raise JobFailed("the job ended without a result") from error
    turns = list(zip(wrote["bare"], wrote["spotmpi"], strict=True))
    return Overhead(workers, params, wrote["block"], turns, wrote["in_place"], wrote["born"])


def _lines(result: Overhead) -> Iterator[str]:
    yield f"{result.workers:7} {size(result.params):>6} | " + _columns(result.pairs)
    yield f"       in place | {_columns(result.pairs_in_place)}"
    yield f"      gradients | {_columns(result.pairs_born)}"
    if result.target:
        text, holds = result.target
        yield f"  {'holds ' if holds else 'MISSED'}  {text}"


def _columns(pairs: Sequence[Pair]) -> str:
    bare, ours = (1e3 * median(pair[side] for pair in pairs) for side in (0, 1))
    more, least, most = percent(pairs)
    ms, lower, upper = milliseconds(pairs)
    return (
        f"{bare:8.3f} {ours:8.3f} | "
        f"{more:6.2f} ({least:6.2f} .. {most:6.2f}) | {ms:8.3f} ({lower:7.3f} .. {upper:7.3f})"
    )
