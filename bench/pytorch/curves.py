"""``spotmpi bench curves``: how the loss of a PyTorch training falls while workers are killed.

`torch_curve`, a training by DistributedDataParallel over spotmpi, with each seed: unharmed, and
with some of its workers killed by SIGKILL in the sum of a drawn step's gradients, the first worker
among the drawn ones. Killed ones train twice: with torch's `DistributedSampler`, which loses the
samples of the dead, and with spotmpi's `ElasticSampler`, which does not. Unharmed both deal alike.

Losses are of letters that are not trained on. Two curves are compared where as many samples have
been used: time is not looked at.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from spotmpi.bench.measuring import launching
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.figures import Aim
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.scripts import gloo
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records as trace

__all__ = ["Way", "above", "add_arguments", "aims", "by_way", "deaths", "main", "ways"]

_SEEDS = (1, 2, 3, 4, 5)
_SAMPLERS = "DistributedSampler", "ElasticSampler"
_STEPS = 400
"""Steps of a pass, if one worker trains alone: there are a few more."""
_FIRST = 10
"""The first step in which a worker may die."""
_LIMIT = 300.0
"""Seconds that a job may take."""

Cell = Mapping[str, Any]
"""One training. Its curve has pairs: samples used, and the loss."""


class Way(NamedTuple):
    """What is done to a training."""

    lost: int
    """Workers that are killed."""
    sampler: str

    def __str__(self) -> str:
        return f"{self.lost} killed, {self.sampler}" if self.lost else "unharmed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how the loss of a PyTorch training falls while workers are killed, beside "
        "unharmed ones. Needs torch."
    )
    parser.epilog = (
        "example: spotmpi bench curves --json curves.json --plot curves.png\n\n"
        "About 12 minutes on 2 cores. Exit code 1 if a job failed; a target that is missed is "
        "only\nreported."
    )
    add = parser.add_argument
    add("--workers", type=int, default=4, metavar="N", help="of each training (4)")
    add("--lost", type=int, nargs="+", default=[1, 2], metavar="N", help="of them killed (1 2)")
    add("--epochs", type=int, default=2, metavar="N", help="of each training (2)")
    add("--seeds", type=int, nargs="+", default=_SEEDS, metavar="N",
        help="trainings of each kind (1 2 3 4 5)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write all curves to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw them into FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print, write what was asked for; 1 if a job failed. Blocking, minutes."""
    gloo.check()
    if min(options.epochs, *options.lost) < 1 or max(options.lost) >= options.workers:
        raise UsageError("--epochs and --lost are 1 or more, and fewer are lost than --workers")
    if len(_steps(options.workers, options.epochs)) < options.workers:
        raise UsageError("so many --workers take too few steps to die in: give more --epochs")
    if len(set(options.seeds)) < len(options.seeds) or min(options.seeds) < 0:
        raise UsageError("--seeds takes numbers from 0 on, each once")
    if options.plot and not options.plot.resolve().parent.is_dir():
        raise UsageError(f"{options.plot}: there is no such folder; make it first")
    report = Report("curves", options.json, workers=options.workers, epochs=options.epochs)
    with temporary_job.ended_by_signals():
        for seed in options.seeds:
            for way in ways(options.lost):
                with report.measuring(f"seed {seed}, {way}"):
                    cell = _train(options.workers, options.epochs, seed, way)
                    report.add(cell, [_line(cell)])
    print("", *aims(report.cells), sep="\n")
    if options.plot and report.cells:
        from spotmpi.bench.measuring.drawing import draw_losses  # matplotlib: nobody else waits

        draw_losses(report.cells, options.plot)
    return report.close()


def ways(lost: Sequence[int]) -> list[Way]:
    """All that is done with a seed."""
    return [Way(0, _SAMPLERS[0]), *(Way(many, one) for many in lost for one in _SAMPLERS)]


def _steps(workers: int, epochs: int) -> range:
    """The steps in which workers may die: all but the first ones and the last few."""
    return range(_FIRST, _STEPS * epochs // workers)


def deaths(workers: int, lost: int, epochs: int, seed: int) -> list[tuple[int, int]]:
    """Who dies, and in which step: drawn, in the order of the steps. The first that are drawn are
    the same for any number of them."""
    draw = random.Random(f"deaths {seed}")
    drawn = draw.sample(range(workers), workers)[:lost]
    steps = draw.sample(_steps(workers, epochs), workers)[:lost]
    return sorted(zip(drawn, steps, strict=True), key=lambda one: one[1])


def _train(workers: int, epochs: int, seed: int, way: Way) -> Cell:
    """One training. Leaves nothing behind. JobFailed unless those died that were to."""
    dead = deaths(workers, way.lost, epochs, seed)
    revoked = [text for worker, step in dead for text in ("--revoke", f"{worker}@{step}")]
    with temporary_job.private_folder(workers) as folder:
        file, traced = folder / "curve.jsonl", folder / "trace.jsonl"
        script = [str(launching.SCRIPTS / "torch_curve.py"), str(file)]
        program = [*revoked, *script, way.sampler, str(epochs), str(seed)]
        launching.by_spotmpi(workers, program, traced, folder, _LIMIT)
        try:
            curve = [json.loads(line) for line in file.read_text().splitlines()]
            records = list(trace.read(traced))
        except (OSError, ValueError, TraceError) as error:
            raise JobFailed(f"the job ended without its results: {error}") from error
    lost = [one for record in records if record["event"] == "recovery" for one in record["lost"]]
    if lost != [worker for worker, _ in dead]:
        raise JobFailed(f"workers {lost} were lost, and others were to be: {dead}")
    return {"seed": seed, **way._asdict(), "deaths": dead, "curve": curve}


def _way_of(cell: Cell) -> Way:
    """What was done to it."""
    return Way(cell["lost"], cell["sampler"])


def by_way(cells: Sequence[Cell]) -> dict[Way, list[Cell]]:
    """The trainings of each way."""
    found: dict[Way, list[Cell]] = {}
    for cell in cells:
        found.setdefault(_way_of(cell), []).append(cell)
    return found


def above(cell: Cell, unharmed: Sequence[Cell]) -> tuple[float, float]:
    """By how much a loss is above all those of unharmed trainings that had used as many samples:
    the most, anywhere on its curve but at the start; and at its end, against their ends. 0: it is
    not."""
    used, losses = np.transpose(cell["curve"])
    others = [np.interp(used, *np.transpose(one["curve"])) for one in unharmed]
    higher = (losses - np.max(others, axis=0))[1:]
    end = losses[-1] - max(one["curve"][-1][1] for one in unharmed)
    return max(0.0, float(higher.max())), max(0.0, float(end))


def aims(cells: Sequence[Cell]) -> Iterator[Aim]:
    """A killed training is as good as the unharmed ones."""
    found = by_way(cells)
    if not (unharmed := found.pop(Way(0, _SAMPLERS[0]), [])):
        return
    calm = [cell["curve"][-1][1] for cell in unharmed]
    for way, some in found.items():
        on_way, at_end = zip(*(above(cell, unharmed) for cell in some), strict=True)
        yield Aim(
            f"{way}: a loss is never above all of {len(unharmed)} unharmed trainings after as many "
            f"samples: so in {on_way.count(0.0)} of {len(some)}, {max(on_way):.3f} above at most",
            not any(on_way),
        )
        ends = [cell["curve"][-1][1] for cell in some]
        yield Aim(
            f"{way}: the last loss, {_said(ends)}, is not above theirs, {_said(calm)}: so in "
            f"{at_end.count(0.0)} of {len(some)}",
            not any(at_end),
        )


def _said(losses: Sequence[float]) -> str:
    return f"{median(losses):.3f} ({min(losses):.3f} .. {max(losses):.3f})"


def _line(cell: Cell) -> str:
    used, loss = cell["curve"][-1]
    died = ", ".join(f"worker {worker} at step {step}" for worker, step in cell["deaths"])
    return f"seed {cell['seed']}, {_way_of(cell)}: {loss:.4f} after {used} samples" + (
        f"; {died}" if died else ""
    )
