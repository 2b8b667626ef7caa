"""``spotmpi bench overhead``: what a step costs more than a bare loop that does the same work.

Same work: pack the gradient into a flat buffer, MPI_Allreduce it into another one, and update with
the same kernel. What spotmpi adds is the ledger, the control word, the commit and its checks.
Blocks of steps of either side take turns inside one MPI job (`paired`): pairs see the same
processes, the same memory and the same noise. No trace: it costs a digest of the parameters in
each step.
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

__all__ = ["Overhead", "add_arguments", "interval", "main"]

_WORKERS, _PARAMS, _PAIRS = (2, 4), (1_000_000, 25_600_000), 60
_PERCENT, _MS = 3.0, 0.15
_SMALL, _LARGE = 1_000_000, 25_600_000
_RESAMPLES = 2000
_LEVEL = 0.95

Pair = tuple[float, float]
"""Seconds per step: bare, spotmpi."""


@dataclass(frozen=True)
class Overhead:
    """One job's pairs, and what they say: a median with its confidence interval each."""

    workers: int
    params: int
    block: int
    """Steps in a block."""
    pairs: list[Pair]

    @property
    def percent(self) -> tuple[float, float, float]:
        """(median, lower, upper) of the pairs' ratios, as an excess in percent."""
        return interval(self.pairs, lambda pair: 100 * (pair[1] / pair[0] - 1))

    @property
    def ms(self) -> tuple[float, float, float]:
        """(median, lower, upper) of the pairs' differences, in ms."""
        return interval(self.pairs, lambda pair: 1e3 * (pair[1] - pair[0]))

    @property
    def target(self) -> tuple[str, bool] | None:
        """The target for this size and whether the median meets it; None without one."""
        percent, ms = self.percent[0], self.ms[0]
        if self.params == _LARGE:
            return f"at most {_PERCENT:g} %", percent <= _PERCENT
        if self.params == _SMALL:
            return f"at most {_PERCENT:g} % or {_MS} ms", percent <= _PERCENT or ms <= _MS
        return None


def interval(pairs: Sequence[Pair], of: Callable[[Pair], float]) -> tuple[float, float, float]:
    """The median of ``of`` over the pairs, and its bootstrap interval at 95 %: whole pairs are
    drawn with replacement. The same for the same pairs."""
    values = [of(pair) for pair in pairs]
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    edge = round((1 - _LEVEL) / 2 * _RESAMPLES)
    return median(values), medians[edge], medians[-edge - 1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = "Measure what a step costs more than a bare loop that does the same work."
    parser.epilog = "example: spotmpi bench overhead --workers 2 4 --params 1000000"
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
    with launching.ended_by_signals():
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
                "pairs": one.pairs,
            }
            for one in found
        ],
    }


def _measure(workers: int, params: int, pairs: int) -> Overhead:
    limit = 60 + 2 * workers + pairs * (1 + 1e-7 * params * workers)
    with launching.private_folder(workers) as folder:
        program = [str(launching.HERE / "paired.py"), str(folder), str(params), str(pairs)]
        launching.by_mpirun(workers, program, folder, limit)
        try:
            wrote = json.loads((folder / "pairs.json").read_text())
        except (OSError, ValueError) as error:
            raise JobFailed("the job ended without a result") from error
    return Overhead(workers, params, wrote["block"], [(a, b) for a, b in wrote["pairs"]])


def _lines(result: Overhead) -> Iterator[str]:
    bare, ours = (1e3 * median(pair[side] for pair in result.pairs) for side in (0, 1))
    percent, least, most = result.percent
    ms, lower, upper = result.ms
    yield (
        f"{result.workers:7} {size(result.params):>6} | {bare:8.3f} {ours:8.3f} | "
        f"{percent:6.2f} ({least:6.2f} .. {most:6.2f}) | {ms:8.3f} ({lower:7.3f} .. {upper:7.3f})"
    )
    if result.target:
        text, holds = result.target
        yield f"  {'holds ' if holds else 'MISSED'}  {text}"
