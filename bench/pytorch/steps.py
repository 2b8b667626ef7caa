"""``spotmpi bench torch``: what a step of a PyTorch script takes, beside gloo's DDP and none.

The same script three times: without any communication, with `DistributedOptimizer` or
`DistributedDataParallel` over spotmpi, and with `DistributedDataParallel` over gloo; and, where
torchft is installed, with that. Or with `fully_shard` over spotmpi and over gloo. Blocks of steps
take turns inside one job.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench.measuring import figures, launching
from spotmpi.bench.measuring.figures import Aim, Estimate
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.pytorch import with_torchft
from spotmpi.bench.scripts import gloo
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["Measured", "add_arguments", "main"]

_WORKERS, _PARAMS, _TURNS = (2, 4, 8), (1_000_000, 25_600_000), 9
_WAYS = "optimizer", "overlap", "ddp", "fsdp", "hsdp"
_SHARDED = "fsdp", "hsdp"
_OF_GLOO, _AT_LARGE, _LARGE = 1.0, 0.6, 25_000_000
"""A step takes at most so many times that of gloo's DDP, and with so many parameters fewer."""
_LIMIT, _SLOWEST = 90.0, 4e-7
"""Seconds of a job, and so many more for each parameter of each worker and turn."""
_COPIES, _OF_TORCHFT = 18, 6
"""Of the parameters' size, that each worker has: three modules with gradients and the two moments
of AdamW, what DDP and spotmpi send, and what a backward pass makes; and torchft's."""


@dataclass(frozen=True)
class Measured:
    """One job: seconds of a step of each side, turn by turn, on the slowest worker."""

    workers: int
    params: int
    way: str
    """What spotmpi's side is (``--by``)."""
    sides: Mapping[str, Sequence[float]]
    """``alone``, ``spotmpi``, ``gloo`` and, where it is installed, ``torchft``."""

    @property
    def of_gloo(self) -> Estimate:
        """How long a step takes in times that of gloo's side."""
        return figures.times(self.sides, "spotmpi", "gloo")

    @property
    def aim(self) -> Aim:
        """What is to be reached, and whether the median does."""
        if self.way in _SHARDED:
            return Aim.at_most(_OF_GLOO, "the same step over gloo", self.of_gloo)
        most = _AT_LARGE if self.params >= _LARGE else _OF_GLOO
        return Aim.at_most(most, "a step of gloo's DDP", self.of_gloo)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure what a step of a PyTorch script takes: by itself, with spotmpi, and with "
        "DistributedDataParallel over gloo. The optimizer is AdamW. Needs torch. Where torchft is "
        "installed, it is measured, too, but not with --gpu."
    )
    parser.epilog = (
        "example: spotmpi bench torch --workers 2 4 --params 1000000\n\nAbout 8 minutes."
    )
    add = parser.add_argument
    add("--workers", type=int, nargs="+", metavar="N", default=_WORKERS, help="numbers (2 4 8)")
    add("--params", type=int, nargs="+", metavar="N", default=_PARAMS,
        help="sizes of the module, in float32 (1 M, 25.6 M)")  # fmt: skip
    add("--gpu", action="store_true", help="modules of all workers are on one GPU")
    add("--by", choices=_WAYS, default=_WAYS[0],
        help="spotmpi's side: DistributedOptimizer, the same with overlap=True, "
        "DistributedDataParallel over spotmpi, or fully_shard over it and over gloo, "
        "with one replica or two (optimizer)")  # fmt: skip
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"blocks of each side ({_TURNS})")
    add("--json", type=Path, metavar="FILE", help="write all times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a job failed. Blocking, minutes."""
    gloo.check()
    if min(*options.workers, *options.params, options.turns) < 1:
        raise UsageError("--workers, --params and --turns take numbers of at least 1")
    if options.gpu and options.by in ("overlap", *_SHARDED):
        raise UsageError(f"--by {options.by} is for modules in memory of the host: leave out --gpu")
    if options.by == "hsdp" and any(one % 2 for one in options.workers):
        raise UsageError("--by hsdp takes even numbers of workers: they are two replicas")
    if options.gpu and not gloo.sees_devices():
        raise UsageError("--gpu: torch finds no GPU here")
    report = Report("torch", options.json, gpu=options.gpu, by=options.by)
    torchft = with_torchft.is_measured(options.gpu)
    names = ("alone", "spotmpi", "gloo", *["torchft"] * torchft)
    columns = " ".join(f"{name:>9}" for name in names)
    print(f"workers  floats |{columns}, ms | times gloo's (95 % interval)")
    room = partial(needed, torchft)
    with temporary_job.ended_by_signals():
        for workers, params, job in report.with_room(options.workers, options.params, room):
            with report.measuring(job):
                found = _measure(workers, params, options)
                report.add(to_json(found), lines(found))
    return report.close()


def needed(torchft: bool, workers: int, params: int) -> int:
    """Bytes of memory for such a job: of the host, or of the GPU's, which mostly is larger.
    ``torchft``: True if it is measured."""
    return 4 * (_COPIES + _OF_TORCHFT * torchft) * params * workers


def lines(found: Measured) -> Iterator[object]:
    """A row, and whether the aim is reached."""
    ms = [f"{1e3 * median(times):9.2f}" for times in found.sides.values()]
    of = f"{found.workers:7} {figures.size(found.params):>7}"
    yield f"{of} |{' '.join(ms)}     | {found.of_gloo.say()}"
    yield found.aim


def to_json(found: Measured) -> dict[str, Any]:
    """All times, in the values of JSON."""
    times = {f"{side}_s": seconds for side, seconds in found.sides.items()}
    known = {"workers": found.workers, "params": found.params, "times_gloo": found.of_gloo}
    if "torchft" in found.sides:
        known["times_torchft"] = figures.times(found.sides, "spotmpi", "torchft")
    return {**known, **times}


def _measure(workers: int, params: int, options: argparse.Namespace) -> Measured:
    """One job. Leaves nothing behind."""
    limit = _LIMIT + 4 * workers + _SLOWEST * params * workers * (options.turns + 3)
    device = "cuda" if options.gpu else "cpu"
    program = [str(options.turns), str(params), device, options.by]
    times = launching.times_of(workers, "torch_stepping.py", program, limit)
    return Measured(workers, params, options.by, times)
