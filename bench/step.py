"""``spotmpi bench step``: what a whole step takes, beside a bare loop, and what safety costs of it.

The bare loop packs its gradients into flat buckets, has MPI_Allreduce sum them in place, and
updates with the same kernel: the fastest that MPI can do. spotmpi's data plane alone does what a
step of spotmpi does, without the ledger, the control word, the commit and the checks: the rest is
their price. Both also with gradients that were computed into `trainer.gradients`, which saves the
packing. Blocks of steps of each take turns inside one MPI job (`stepping`): a turn's blocks see the
same processes, the same memory and the same noise. No trace: it costs a digest of the parameters in
each step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from spotmpi.bench.measuring import figures, launching
from spotmpi.bench.measuring.figures import Aim, Estimate
from spotmpi.bench.measuring.models import MODELS
from spotmpi.bench.measuring.report import Report
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job

__all__ = ["Measured", "add_arguments", "main"]

_WORKERS, _PARAMS, _TURNS = (2, 4, 8), (1_000_000, 25_600_000), 25
_AIMS: Mapping[tuple[int, int], tuple[float, float | None]] = {
    (1_000_000, 2): (1.8, None),
    (1_000_000, 4): (3.3, None),
    (1_000_000, 8): (2.6, None),
    (25_600_000, 2): (2.6, 3.6),
    (25_600_000, 4): (3.7, 7.0),
    (25_600_000, 8): (3.7, 8.0),
}
"""By parameters and workers: how many times faster than the bare loop a step shall be, and one with
gradients that were computed in place."""
_SAFETY = 2.0
"""Percent that safety may cost a model."""
_LIMIT, _SLOWEST = 60.0, 4e-8
"""Seconds of a run, and so many more for each parameter of each worker and turn."""
_COPIES = 6
"""Of the parameters' size, that each worker has: gradients, the bare loop's replica with its
velocity, and what is brought on each of three ways."""


@dataclass(frozen=True)
class Measured:
    """One job: seconds of a step of each side, turn by turn, on the slowest worker."""

    workers: int
    what: str
    """A model's name, or a number of parameters as one says it."""
    params: int
    sides: Mapping[str, Sequence[float]]

    @property
    def safety(self) -> Estimate:
        """What the ledger, the control word and the commit add, in percent."""
        return figures.percent(self.sides, "spotmpi", "plane")

    @property
    def safety_born(self) -> Estimate:
        """The same with gradients that were computed in place."""
        return figures.percent(self.sides, "born", "plane born")

    @property
    def aims(self) -> Iterator[Aim]:
        """What is to be reached, and whether the medians do."""
        wanted = _AIMS.get((self.params, self.workers), (None, None))
        names = ("spotmpi", "born"), ("", ", gradients in place")
        for side, name, least in zip(*names, wanted, strict=True):
            if least is not None:
                times = figures.times(self.sides, "bare", side).middle
                text = f"{least:g} times faster than the bare loop{name}: {times:.2f}"
                yield Aim(text, times >= least)
        if self.what in MODELS:
            cost = self.safety.middle
            yield Aim(f"safety costs at most {_SAFETY:g} %: {cost:.2f}", cost <= _SAFETY)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure what a step takes beside a bare loop that does the same by MPI_Allreduce in "
        "place, and what the ledger, the control word and the commit cost of it."
    )
    parser.epilog = (
        "example: spotmpi bench step --workers 2 4 --params 1000000\n\n"
        "About 5 minutes on 2 cores. 'born' are steps with gradients that were computed into\n"
        "trainer.gradients; 'plane' is spotmpi's data plane without what makes it safe.\n"
        "With --gpu, bare and gloo sum in the memory of the host, and 'staged' is spotmpi where\n"
        "workers cannot open each other's memory on the device."
    )
    add = parser.add_argument
    add("--workers", type=int, nargs="+", metavar="N", default=_WORKERS, help="numbers (2 4 8)")
    add("--params", type=int, nargs="+", metavar="N",
        help="sizes of the model, in float32 (1 M, 25.6 M)")  # fmt: skip
    add("--models", nargs="+", choices=tuple(MODELS), default=(), help="these, array by array")
    add("--gpu", action="store_true", help="arrays of CuPy's on one GPU, not with --models")
    add("--turns", type=int, metavar="T", default=_TURNS, help=f"blocks of each side ({_TURNS})")
    add("--json", type=Path, metavar="FILE", help="write all times to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a job failed. Blocking, minutes."""
    if options.gpu and options.models:
        raise UsageError("--gpu goes with --workers, --params, --turns and --json only")
    asked = options.params or (() if options.models else _PARAMS)
    if min(*options.workers, *asked, options.turns) < 1:
        raise UsageError("--workers, --params and --turns take numbers of at least 1")
    report = Report("step", options.json, gpu=options.gpu)
    if options.gpu:
        return _on_gpu(options, report)
    print(
        "workers       floats | bare, ms   plane  spotmpi |   plane, spotmpi born | "
        "times faster (95 % interval) | safety, % (95 % interval)"
    )
    with temporary_job.ended_by_signals():
        known = options.workers, (*asked, *options.models), lambda n, what: needed(n, _params(what))
        for workers, what, job in report.with_room(*known):
            with report.measuring(job):
                found = _measure(workers, what, options.turns)
                report.add(to_json(found), lines(found))
    return report.close()


def _on_gpu(options: argparse.Namespace, report: Report) -> int:
    """The same for arrays of a device: every side in ms, and how many times faster than others."""
    print("workers  floats | ms of each side | spotmpi's gradients in place, times faster than ...")
    with temporary_job.ended_by_signals():
        known = options.workers, options.params or _PARAMS, needed
        for workers, params, job in report.with_room(*known):
            with report.measuring(job):
                found = _measure(workers, params, options.turns, "on_device.py")
                sides = found.sides
                best = "born" if "born" in sides else "staged born"
                ms = [f"{side} {1e3 * median(times):.2f}" for side, times in sides.items()]
                ratios = {side: figures.times(sides, side, best) for side in sides}
                said = [f"{side} {ratios[side].say()}" for side in sides if side != best]
                row = f"{workers:7} {found.what:>7} | {', '.join(ms)} | {', '.join(said)}"
                times = {f"{side.replace(' ', '_')}_s": one for side, one in sides.items()}
                cell = {"workers": workers, "params": params, "times_faster": ratios, **times}
                report.add(cell, [row])
    return report.close()


def needed(workers: int, params: int) -> int:
    """Bytes of memory for such a job, with two states of parameters and velocity for each of two
    arenas."""
    return 4 * params * (_COPIES * workers + 8)


def lines(found: Measured) -> Iterator[object]:
    """A row, and which aims are reached."""
    ms = {side: f"{1e3 * median(times):8.3f}" for side, times in found.sides.items()}
    times, born = (figures.times(found.sides, "bare", side).say() for side in ("spotmpi", "born"))
    yield (
        f"{found.workers:7} {found.what:>12} | {ms['bare']} {ms['plane']} {ms['spotmpi']} | "
        f"{ms['plane born']} {ms['born']} | {times}, {born} | "
        f"{found.safety.say()}, {found.safety_born.say()}"
    )
    yield from found.aims


def to_json(found: Measured) -> dict[str, Any]:
    """All times, in the values of JSON."""
    return {
        "workers": found.workers,
        "what": found.what,
        "params": found.params,
        "times_faster": figures.times(found.sides, "bare", "spotmpi"),
        "times_faster_born": figures.times(found.sides, "bare", "born"),
        "safety_percent": found.safety,
        "safety_percent_born": found.safety_born,
        **{f"{side.replace(' ', '_')}_s": times for side, times in found.sides.items()},
    }


def _params(what: int | str) -> int:
    return what if isinstance(what, int) else sum(array.size for array in MODELS[what]())


def _measure(workers: int, what: int | str, turns: int, script: str = "stepping.py") -> Measured:
    """One job. Leaves nothing behind."""
    params = _params(what)
    name = what if isinstance(what, str) else figures.size(what)
    limit = _LIMIT + 2 * workers + _SLOWEST * params * workers * (turns + 5)
    program = [str(turns), str(what)]
    return Measured(workers, name, params, launching.times_of(workers, script, program, limit))
