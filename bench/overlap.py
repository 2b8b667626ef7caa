"""``spotmpi bench overlap``: how much of a sum between hosts a backward pass hides.

Hosts are namespaces on this machine, with links of a given rate. A backward pass of ResNet-50's
arrays lasts as long as the line needs for the sum of them. It is timed with nothing behind it but
the optimizer's update, with a step, and with gradients that are handed over as they come, by turns
inside one job. So is a script with PyTorch's `DistributedDataParallel`, over spotmpi and over gloo.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.arrays.layout import BUCKET_MB
from spotmpi.bench.measuring import on_hosts
from spotmpi.bench.measuring.figures import Aim
from spotmpi.bench.measuring.models import resnet50
from spotmpi.bench.measuring.network import missing
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.scripts import gloo
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["Measured", "add_arguments", "main"]

_HOSTS, _RATE, _TURNS = (3,), "1gbit", 5
_KINDS = ("idle", "busy")
_DDP = "ddp"
"""A pass that leaves the cores idle, too, of a script for PyTorch."""
_EXPOSED = 0.10
_LIMIT = 60.0
"""Seconds of a run, and ..."""
_SLOWEST = 12.0
"""... so many times the backward pass for each turn of each kind."""


@dataclass(frozen=True)
class Measured:
    """One kind of backward pass on some hosts: seconds of each turn, on the slowest worker."""

    hosts: int
    kind: str
    line: float
    """Seconds that the line needs."""
    alone: list[float]
    """The pass and an update of as many parameters, ..."""
    after: list[float]
    """... the pass with a whole step behind it, ..."""
    during: list[float]
    """... and with gradients that are handed over as they come, and the rest of the step."""
    gloo: list[float] | None = None
    """... and the same by gloo; None: it was not measured."""

    @property
    def exposed(self) -> float:
        """What the others add to that, as a share of it."""
        return median(self.during) / median(self.alone) - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how much of a step a backward pass hides that is as long as the line needs for "
        "the gradients: ResNet-50's, by trainer.ready(). The pass leaves the cores idle, as a "
        "GPU's does, or keeps one busy. With ddp it is a pass of PyTorch's that leaves them idle, "
        "and its DistributedDataParallel hands gradients over, to spotmpi and to gloo. The hosts "
        "are made on this machine. Needs root."
    )
    parser.epilog = "example: spotmpi bench overlap --hosts 3 --backward idle\n\nAbout 2 minutes."
    add = parser.add_argument
    add("--hosts", type=int, nargs="+", metavar="N", default=_HOSTS, help="numbers of them (3)")
    add("--rate", metavar="R", default=_RATE, help=f"of a host's link, as tc has it ({_RATE})")
    add("--backward", nargs="+", choices=(*_KINDS, _DDP), default=_KINDS,
        help="what passes do (idle busy)")  # fmt: skip
    add("--bucket-mb", type=float, metavar="MB", default=BUCKET_MB,
        help=f"as Trainer has it ({BUCKET_MB:g})")  # fmt: skip
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"of each side ({_TURNS})")
    add("--json", type=Path, metavar="FILE", help="write all times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a run failed. Blocking, minutes."""
    if (why := missing()) is not None:
        raise UsageError(f"hosts cannot be made here: {why}")
    if min(*options.hosts, 9) < 2 or options.turns < 1 or options.bucket_mb <= 0:
        raise UsageError("--hosts takes 2 or more, and all other numbers are more than 0")
    on_hosts.check_rate(options.rate)
    if options.rate == on_hosts.UNLIMITED:
        raise UsageError(
            "--rate takes a rate here: the backward pass lasts as long as the line needs"
        )
    if _DDP in options.backward:
        gloo.check()
    report = Report("overlap", options.json, rate=options.rate, bucket_mb=options.bucket_mb)
    sides = "".join(f" {side:>7}" for side in ("alone", "after", "during", "gloo"))
    print(f"{'hosts':>5} {'cores':>6} |{sides}  ms, medians")
    with temporary_job.ended_by_signals():
        for hosts in options.hosts:
            with report.measuring(f"{hosts} hosts"):
                for one in _run(hosts, options):
                    report.add(to_json(one), lines(one))
    return report.close()


def lines(one: Measured) -> Iterator[object]:
    """A row, and whether the aim is reached."""
    sides = one.alone, one.after, one.during, one.gloo
    times = "".join(f" {1e3 * median(side):7.0f}" for side in sides if side)
    yield f"{one.hosts:5} {one.kind:>6} |{times}"
    if one.gloo:
        of = median(one.during) / median(one.gloo)
        yield Aim(f"at most gloo's time: {of:.2f} of it", of <= 1)
        return
    text = f"at most {_EXPOSED:.0%} longer than alone: {one.exposed:.1%}"
    yield Aim(text, one.exposed <= _EXPOSED)


def to_json(one: Measured) -> dict[str, Any]:
    """All times, in the values of JSON."""
    return {
        "hosts": one.hosts,
        "backward": one.kind,
        "line_s": one.line,
        "alone_s": one.alone,
        "after_s": one.after,
        "during_s": one.during,
        **({} if one.gloo is None else {"gloo_s": one.gloo}),
    }


def _run(hosts: int, options: argparse.Namespace) -> list[Measured]:
    """One job on so many hosts. Leaves nothing behind."""
    line = on_hosts.needed(hosts, options.rate, 4 * sum(array.size for array in resnet50()))
    limit = _LIMIT + _SLOWEST * line * (options.turns + 1) * len(options.backward)
    scripts: list[tuple[str, list[object]]] = []
    if trainers := [kind for kind in options.backward if kind != _DDP]:
        scripts.append(("backward.py", [options.turns, options.bucket_mb, line, *trainers]))
    if _DDP in options.backward:
        scripts.append(("torch_backward.py", [options.turns, line]))
    return [
        Measured(hosts, kind, line, **sides)
        for script, arguments in scripts
        for kind, sides in on_hosts.times_of(
            [1] * hosts, options.rate, script, arguments, limit
        ).items()
    ]
