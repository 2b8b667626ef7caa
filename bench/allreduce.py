"""``spotmpi bench allreduce``: how long a sum takes, beside MPI, gloo and what the machine allows.

On one host, between its workers, that is (N reads + 1 write) of all bytes at the speed at which all
of them copy. Between hosts, which are namespaces on this machine with links of a given rate, it is
what the line alone needs: no all-reduce over n hosts sends less than 2 (n - 1) / n of its bytes
over each link. All take turns inside one job (`reducing`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench.measuring import figures, launching, on_hosts
from spotmpi.bench.measuring.copies import COPIED
from spotmpi.bench.measuring.figures import Aim
from spotmpi.bench.measuring.models import MODELS
from spotmpi.bench.measuring.network import missing
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.scripts import gloo
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["Measured", "add_arguments", "main"]

_HERE, _HOSTS, _RATES, _TURNS = (2, 4, 8), (3, 4), ("1gbit",), 7
_MB_HERE, _MB_HOSTS = (0.004, 0.04, 0.4, 4.0, 40.0, 102.4, 400.0), (10.0, 100.0)
_OF_LINE, _OF_MPI = 1.10, 2.0
_OF_WIDE = {"bf16": 1.8, "fp16": 1.8, "int8": 3.3}
"""How much faster sums in these formats shall be."""
_OF_MPI_HERE, _OF_GLOO_HERE, _SMALL_OF_MPI, _OF_COPY = 4.0, 8.0, 1.05, 0.6
_SMALL, _MIDDLE, _LARGE = 40_000, 4_000_000, 100_000_000
"""Bytes: up to the first, at the second and from the third on there are aims on one host."""
_LIMIT = 60.0
"""Seconds of a run, and ..."""
_SLOWEST = 8.0
"""... so many times what the line needs for all of it, or ..."""
_SLOWEST_HERE = 5e-9
"""... so many seconds for each byte of each worker and turn."""


@dataclass(frozen=True)
class Measured:
    """One sum: seconds of each turn, on the slowest worker."""

    workers: Sequence[int]
    """On each host."""
    rate: str | None
    """Of the hosts' links; None: it was on one host."""
    what: str
    """A model's name, or a size in MB."""
    size: int
    """Bytes."""
    sides: Mapping[str, Sequence[float]]
    """By MPI, by gloo, by spotmpi, the same in narrow formats, and a copy of `COPIED` bytes."""

    @property
    def floor(self) -> float | None:
        """Seconds that the line needs, or memory; None if nothing limits it."""
        if self.rate is None:
            (count,) = self.workers
            return (count + 1) * self.size * median(self.sides["copy"]) / (2 * COPIED)
        if self.rate == on_hosts.UNLIMITED:
            return None
        return on_hosts.needed(len(self.workers), self.rate, self.size)

    @property
    def aims(self) -> list[Aim]:
        """What is to be reached, and whether the medians do."""
        return list(self._aims_here() if self.rate is None else self._aims_between())

    def _aims_here(self) -> Iterator[Aim]:
        if self.size <= _SMALL:
            ratio = 1 / self._times("mpi")
            text = f"at most {_SMALL_OF_MPI:.2f} times MPI's: {ratio:.2f}"
            yield Aim(text, ratio <= _SMALL_OF_MPI)
        if self.size == _MIDDLE or self.size >= _LARGE:
            yield self._faster("mpi", "MPI", _OF_MPI_HERE)
            if "gloo" in self.sides:
                yield self._faster("gloo", "gloo", _OF_GLOO_HERE)
        if self.size >= _LARGE:
            assert self.floor is not None
            part = self.floor / median(self.sides["spotmpi"])
            text = f"at {_OF_COPY:.0%} of the speed of copies: {part:.0%}"
            yield Aim(text, part >= _OF_COPY)

    def _aims_between(self) -> Iterator[Aim]:
        if self.floor is not None:
            times = median(self.sides["spotmpi"]) / self.floor
            yield Aim(f"within {_OF_LINE:.2f} of the line: {times:.2f}", times <= _OF_LINE)
        yield self._faster("mpi", "MPI", _OF_MPI)
        for form, wanted in _OF_WIDE.items():
            if form in self.sides:
                ms, times = 1e3 * median(self.sides[form]), self._times("spotmpi", form)
                text = f"{form} {wanted:g} times faster than float32: {times:.2f}, in {ms:.1f} ms"
                yield Aim(text, times >= wanted)

    def _faster(self, than: str, name: str, wanted: float) -> Aim:
        times = self._times(than)
        return Aim(f"{wanted:g} times faster than {name}: {times:.2f}", times >= wanted)

    def _times(self, slow: str, fast: str = "spotmpi") -> float:
        return figures.times(self.sides, slow, fast).middle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how long the sum of an array over all workers takes, beside MPI_Allreduce, "
        "PyTorch's gloo where torch is installed, and what the machine's memory or the line alone "
        "needs. Workers are on one host, or on hosts that are made on this machine, which needs "
        "root."
    )
    parser.epilog = (
        "example: spotmpi bench allreduce --here 4 --mb 4 --models resnet50\n"
        "         spotmpi bench allreduce --hosts 3 --mb 10 --rates 1gbit 10gbit\n\n"
        "With neither --here nor --hosts both are measured: about 10 minutes."
    )
    add = parser.add_argument
    add("--here", type=int, nargs="+", metavar="N", help="numbers of workers on one host (2 4 8)")
    add("--hosts", type=int, nargs="+", metavar="N", help="numbers of hosts (3 4)")
    add("--workers", type=int, nargs="+", metavar="W", default=(1,),
        help="on the first host, the second, ..; the last one is for all others (1)")  # fmt: skip
    add("--mb", type=float, nargs="+", metavar="MB",
        help="sizes (10 100; on one host 0.004 0.04 0.4 4 40 102.4 400)")  # fmt: skip
    add("--models", nargs="+", choices=tuple(MODELS), default=(),
        help="their gradients as well, in buckets")  # fmt: skip
    add("--rates", nargs="+", metavar="R", default=_RATES,
        help="of a host's link, as tc has it, or unlimited (1gbit)")  # fmt: skip
    add("--narrow", nargs="+", choices=tuple(_OF_WIDE), default=(),
        help="between hosts, sums that are narrowed like this as well")  # fmt: skip
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"of each side ({_TURNS})")
    add("--json", type=Path, metavar="FILE", help="write all times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a run failed. Blocking, minutes."""
    if options.here is None and options.hosts is None:
        options.here, options.hosts = _HERE, _HOSTS
    here, hosts = options.here or (), options.hosts or ()
    if hosts and (why := missing()) is not None:
        raise UsageError(f"hosts cannot be made here: {why}; --here measures workers of one host")
    if min(*hosts, 9, 9) < 2 or min(*here, *options.workers, options.turns) < 1:
        raise UsageError("--hosts takes 2 or more, and all other numbers are at least 1")
    if options.mb and min(options.mb) < 0.0001:
        raise UsageError("--mb takes numbers of at least 0.0001")
    for rate in options.rates:
        on_hosts.check_rate(rate)
    report = Report("allreduce", options.json, copied_bytes=COPIED)
    if not gloo.there():
        print("torch is not installed here: nothing is measured by gloo")
    print(
        f"{'workers':>8} {'rate':>9} {'what':>12} | {'floor':>8} {'spotmpi':>8} {'MPI':>8} "
        f"{'gloo':>8}  ms, medians"
    )
    with temporary_job.ended_by_signals():
        whats = *(options.mb or _MB_HERE), *options.models
        known = here, whats, lambda count, what: needed(count, _asked(what)[1])
        for count, what, job in report.with_room(*known):
            with report.measuring(job):
                _add(report, _here(count, what, options.turns))
        for rate in options.rates if hosts else ():
            for number in hosts:
                for what in (*(options.mb or _MB_HOSTS), *options.models):
                    with report.measuring(f"{number} hosts, {rate}, {what}"):
                        _add(report, _between(number, rate, what, options))
    return report.close()


def _add(report: Report, one: Measured) -> None:
    report.add(to_json(one), lines(one))


def lines(one: Measured) -> Iterator[object]:
    """A row, and which aims are reached."""
    floor = "-" if one.floor is None else f"{1e3 * one.floor:.3f}"
    row = f"{'+'.join(map(str, one.workers)):>8} {one.rate or 'memory':>9} {one.what:>12} | "
    row += f"{floor:>8}"
    for side in ("spotmpi", "mpi", "gloo"):
        row += f" {1e3 * median(one.sides[side]):8.3f}" if side in one.sides else f" {'-':>8}"
    yield row
    yield from one.aims


def to_json(one: Measured) -> dict[str, Any]:
    """All times, in the values of JSON."""
    seconds = {f"{side}_s": [round(s, 9) for s in times] for side, times in one.sides.items()}
    about = {"workers": one.workers, "rate": one.rate, "what": one.what, "bytes": one.size}
    return {**about, "floor_s": one.floor, **seconds}


def needed(workers: int, size: int) -> int:
    """Bytes of memory for sums on one host: what each worker brings, in place and apart, two
    results for all, and what is copied."""
    return (2 * workers + 2) * size + 2 * COPIED


def _asked(what: float | str) -> tuple[str, int]:
    """For the script, and how many bytes that are."""
    if isinstance(what, str):
        return what, 4 * sum(array.size for array in MODELS[what]())
    size = round(1e6 * what) // 4 * 4
    return str(size), size


def _here(workers: int, what: float | str, turns: int) -> Measured:
    """One job on this host. Leaves nothing behind."""
    asked, size = _asked(what)
    limit = _LIMIT + _SLOWEST_HERE * size * workers * (turns + 5)
    times = launching.times_of(workers, "reducing.py", ["here", str(turns), asked], limit)
    return Measured((workers,), None, _name(what), size, times)


def _between(hosts: int, rate: str, what: float | str, options: argparse.Namespace) -> Measured:
    """One job on so many hosts. Leaves nothing behind."""
    given, narrow = options.workers, options.narrow
    workers = tuple(given[min(host, len(given) - 1)] for host in range(hosts))
    asked, size = _asked(what)
    limit = _LIMIT
    if rate != on_hosts.UNLIMITED:
        line = on_hosts.needed(hosts, rate, size)
        limit += _SLOWEST * (options.turns + 4) * line * (1.5 + len(narrow) / 2)
    arguments = ["hosts", options.turns, asked, *narrow]
    times = on_hosts.times_of(workers, rate, "reducing.py", arguments, limit)
    return Measured(workers, rate, _name(what), size, times)


def _name(what: float | str) -> str:
    return what if isinstance(what, str) else f"{what:g}"
