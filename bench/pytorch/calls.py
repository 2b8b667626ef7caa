"""``spotmpi bench calls``: what calls of PyTorch scripts that others wait for take, and gloo's.

Sums, maxima, gathers and broadcasts of tensors, objects and barriers, of all workers or in groups
of some. Blocks of calls over spotmpi and over gloo take turns inside one job, without a script's
own work and without losses. All workers are on this host, or on hosts that are made on this
machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench.measuring import figures, launching, on_hosts
from spotmpi.bench.measuring.figures import Aim, Estimate
from spotmpi.bench.measuring.network import missing
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.scripts import gloo
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["CALLS", "Measured", "add_arguments", "main"]

CALLS = (
    *("sum of 1", "sum, 4 MB", "maximum of 1", "maximum, 4 MB", "sum of int64, 4 MB"),
    *("all_gather, 4 KB", "all_gather, 4 MB", "reduce_scatter, 4 MB", "broadcast, 4 MB"),
    *("all_gather_object", "barrier"),
)
"""Those that are measured, by the names that the script has for them."""

_WORKERS, _TURNS = (2, 4, 8), 9
_RATE = "1gbit"
_MOST = 1.0
"""A call takes at most so many times that of gloo's."""
_LIMIT, _SLOWEST = 60.0, 2.0
"""Seconds of a job, and so many more for each turn of a worker."""
_NEEDED = 400_000_000
"""Bytes of a worker: torch, and some tensors."""


@dataclass(frozen=True)
class Measured:
    """One call: seconds that it took each side, turn by turn, on the slowest worker."""

    workers: int
    hosts: int
    groups: int
    """They make calls at the same time, each of its own workers."""
    call: str
    sides: Mapping[str, Sequence[float]]
    """``spotmpi`` and ``gloo``."""

    @property
    def of_gloo(self) -> Estimate:
        """How long it takes in times that of gloo's."""
        return figures.times(self.sides, "spotmpi", "gloo")

    @property
    def aim(self) -> Aim:
        """What is to be reached, and whether the median does."""
        return Aim.at_most(_MOST, f"gloo's {self.call}", self.of_gloo)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure what calls of torch.distributed take with spotmpi, beside gloo's: sums, maxima, "
        "gathers and broadcasts of tensors, objects and barriers. Needs torch."
    )
    parser.epilog = "example: spotmpi bench calls --workers 4 --hosts 2\n\nAbout 3 minutes."
    add = parser.add_argument
    add("--workers", type=int, nargs="+", metavar="N", default=_WORKERS, help="numbers (2 4 8)")
    add(
        "--hosts", type=int, metavar="H", default=1, help="spread workers over H hosts, as root (1)"
    )
    add("--groups", type=int, metavar="G", default=1, help="calls in G groups at the same time (1)")
    add("--rate", metavar="R", default=_RATE, help=f"of a host's link, as tc has it ({_RATE})")
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"blocks of each side ({_TURNS})")
    add("--json", type=Path, metavar="FILE", help="write all times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a job failed. Blocking, minutes."""
    gloo.check()
    if min(*options.workers, options.turns) < 1:
        raise UsageError("--workers and --turns take numbers of at least 1")
    if options.hosts > 1 and (why := missing()) is not None:
        raise UsageError(f"hosts cannot be made here: {why}")
    if options.hosts < 1 or any(one % options.hosts for one in options.workers):
        raise UsageError("--hosts takes a number that divides each of --workers")
    if options.groups < 1 or any(one % options.groups for one in options.workers):
        raise UsageError("--groups takes a number that divides each of --workers")
    on_hosts.check_rate(options.rate)
    line = {} if options.hosts == 1 else {"rate": options.rate}
    report = Report("calls", options.json, **line)
    print("workers call                 |  spotmpi      gloo, ms | times gloo's (95 % interval)")
    with temporary_job.ended_by_signals():
        for workers in options.workers:
            job = f"{workers} workers"
            if not report.has_room(_NEEDED * workers, job):
                continue
            with report.measuring(job):
                for found in _measure(workers, options):
                    report.add(to_json(found), lines(found))
    return report.close()


def lines(found: Measured) -> Iterator[object]:
    """A row, and whether the aim is reached."""
    ms = [f"{1e3 * median(times):9.2f}" for times in found.sides.values()]
    yield f"{found.workers:7} {found.call:20} |{' '.join(ms)}     | {found.of_gloo.say()}"
    yield found.aim


def to_json(found: Measured) -> dict[str, Any]:
    """All times, in the values of JSON."""
    times = {f"{side}_s": seconds for side, seconds in found.sides.items()}
    known = {"workers": found.workers, "hosts": found.hosts, "groups": found.groups}
    return {**known, "call": found.call, "times_gloo": found.of_gloo, **times}


def _measure(workers: int, options: argparse.Namespace) -> list[Measured]:
    """One job with all calls. Leaves nothing behind."""
    limit = _LIMIT + _SLOWEST * workers * options.turns
    program, hosts = [str(options.turns), str(options.groups), *CALLS], options.hosts
    if hosts == 1:
        times = launching.times_of(workers, "torch_calls.py", program, limit)
    else:
        each = [workers // hosts] * hosts
        times = on_hosts.times_of(
            each, options.rate, "torch_calls.py", program, limit, ("--torch", "off")
        )
    groups = options.groups
    return [Measured(workers, hosts, groups, call, sides) for call, sides in times.items()]
