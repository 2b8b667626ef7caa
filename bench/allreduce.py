"""``spotmpi bench allreduce``: how long a sum between hosts takes, beside MPI and the line itself.

Hosts are namespaces on this machine, with links of a given rate. MPI_Allreduce and spotmpi's rings
take turns inside one job; between them stands the time that the line alone needs: no all-reduce
over n hosts sends less than 2 (n - 1) / n of its bytes over each link. Sums that are narrowed take
turns with these, if that is asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench import machine, on_hosts
from spotmpi.bench.events import JobFailed
from spotmpi.bench.network import missing
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["Measured", "add_arguments", "main"]

_HOSTS, _MB, _RATES, _TURNS = (3, 4), (10.0, 100.0), ("1gbit",), 5
_OF_LINE, _OF_MPI = 1.10, 2.0
_OF_WIDE = {"bf16": 1.8, "fp16": 1.8, "int8": 3.3}
"""How much faster sums in these formats shall be."""
_LIMIT = 60.0
"""Seconds of a run, and ..."""
_SLOWEST = 8.0
"""... so many times what the line needs for all of it."""


@dataclass(frozen=True)
class Measured:
    """One size on some hosts: seconds of each turn, on the slowest worker."""

    workers: tuple[int, ...]
    """On each host."""
    rate: str
    size: int
    """Bytes."""
    mpi: list[float]
    spotmpi: list[float]
    narrow: dict[str, list[float]]
    """The same in these formats."""

    @property
    def line(self) -> float | None:
        """Seconds that the line needs; None if nothing limits it."""
        return (
            None
            if self.rate == on_hosts.UNLIMITED
            else on_hosts.needed(len(self.workers), self.rate, self.size)
        )

    @property
    def targets(self) -> list[tuple[str, bool]]:
        """What is to be reached, and whether the medians do."""
        found = []
        if self.line is not None:
            times = median(self.spotmpi) / self.line
            found.append((f"within {_OF_LINE:.2f} of the line: {times:.2f}", times <= _OF_LINE))
        times = median(self.mpi) / median(self.spotmpi)
        found.append((f"{_OF_MPI:g} times faster than MPI: {times:.2f}", times >= _OF_MPI))
        for form, seconds in self.narrow.items():
            times, wanted = median(self.spotmpi) / median(seconds), _OF_WIDE[form]
            told = f"{form} {wanted:g} times faster than float32: {times:.2f}"
            found.append((f"{told}, in {1e3 * median(seconds):.1f} ms", times >= wanted))
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how long the sum of an array between hosts takes, beside MPI_Allreduce and what "
        "the line alone needs. The hosts are made on this machine. Needs root."
    )
    parser.epilog = (
        "example: spotmpi bench allreduce --hosts 3 --mb 10 --rates 1gbit 10gbit\n\n"
        "About 4 minutes."
    )
    add = parser.add_argument
    add("--hosts", type=int, nargs="+", metavar="N", default=_HOSTS, help="numbers of them (3 4)")
    add("--workers", type=int, nargs="+", metavar="W", default=(1,),
        help="on the first host, the second, ..; the last one is for all others (1)")  # fmt: skip
    add("--mb", type=float, nargs="+", metavar="MB", default=_MB, help="sizes (10 100)")
    add("--rates", nargs="+", metavar="R", default=_RATES,
        help="of a host's link, as tc has it, or unlimited (1gbit)")  # fmt: skip
    add("--narrow", nargs="+", choices=tuple(_OF_WIDE), default=(),
        help="sums that are narrowed like this as well")  # fmt: skip
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"of each side ({_TURNS})")
    add("--json", type=Path, metavar="FILE", help="write all times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a run failed. Blocking, minutes."""
    if (why := missing()) is not None:
        raise UsageError(f"hosts cannot be made here: {why}")
    if min(*options.hosts, 9) < 2 or min(*options.workers, options.turns) < 1:
        raise UsageError("--hosts takes 2 or more, and all other numbers are at least 1")
    if min(options.mb) < 0.0001:
        raise UsageError("--mb takes numbers of at least 0.0001")
    for rate in options.rates:
        on_hosts.check_rate(rate)
    if options.json and not options.json.resolve().parent.is_dir():
        raise UsageError(f"{options.json}: there is no such folder; make it first")
    head = machine.describe()
    found: list[Measured] = []
    failures: list[str] = []
    print(
        f"{'hosts':>5} {'rate':>10} {'MB':>6} | {'line':>8} {'spotmpi':>8} {'MPI':>8}  ms, medians"
    )
    with temporary_job.ended_by_signals():
        for rate in options.rates:
            for hosts in options.hosts:
                try:
                    for one in _run(hosts, rate, options):
                        found.append(one)
                        print(*lines(one), sep="\n", flush=True)
                except JobFailed as error:
                    failures.append(f"{hosts} hosts, {rate}: {error}")
                    print(f"FAILED {failures[-1]}", flush=True)
    if options.json:
        results = to_json(head, found, failures)
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failures else 0


def lines(one: Measured) -> Iterator[str]:
    """A row, and which targets hold."""
    line = "-" if one.line is None else f"{1e3 * one.line:.1f}"
    yield (
        f"{len(one.workers):5} {one.rate:>10} {one.size / 1e6:6g} | {line:>8} "
        f"{1e3 * median(one.spotmpi):8.1f} {1e3 * median(one.mpi):8.1f}"
    )
    for text, holds in one.targets:
        yield f"  {'holds ' if holds else 'MISSED'}  {text}"


def to_json(head: dict[str, Any], found: list[Measured], failures: list[str]) -> dict[str, Any]:
    """All times and what they were measured on, in the values of JSON."""
    cells = [
        {
            "workers": one.workers,
            "rate": one.rate,
            "bytes": one.size,
            "line_s": one.line,
            "mpi_s": one.mpi,
            "spotmpi_s": one.spotmpi,
            **{f"{form}_s": seconds for form, seconds in one.narrow.items()},
        }
        for one in found
    ]
    return {"bench": "allreduce", **head, "failures": failures, "cells": cells}


def _run(hosts: int, rate: str, options: argparse.Namespace) -> list[Measured]:
    """One job on so many hosts. Leaves nothing behind."""
    given = options.workers
    workers = tuple(given[min(host, len(given) - 1)] for host in range(hosts))
    sizes = [round(1e6 * mb) // 4 * 4 for mb in options.mb]
    limit = _LIMIT
    if rate != on_hosts.UNLIMITED:
        needed = sum(on_hosts.needed(hosts, rate, size) for size in sizes)
        limit += _SLOWEST * (options.turns + 1) * needed * (1 + len(options.narrow) / 2)
    arguments = [options.turns, ",".join(options.narrow) or "-", *sizes]
    times = on_hosts.times_of(workers, rate, "reducing.py", arguments, limit)
    found = []
    for size in sizes:
        seen = times[str(size)]
        mpi, own = seen.pop("mpi"), seen.pop("spotmpi")
        found.append(Measured(workers, rate, size, mpi, own, seen))
    return found
