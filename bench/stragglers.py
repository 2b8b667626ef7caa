"""``spotmpi bench stragglers``: what a slow worker costs the others, and what a dead one does.

Each strategy trains three times, by turns with the others: undisturbed, with one worker that is
five times slower, and with one that dies by SIGKILL half-way. Workers are on this host. A step
takes a given time in which its worker sleeps, as if an accelerator computed: so the workers of a
machine with few cores do not slow each other down.

*speed* is what the other workers keep of theirs: steps a second in the second half of the training,
beside the same worker's when nobody is slow. *gap* is the longest time between the ends of two
steps of a survivor, from the death on, less a usual step: with synchronous SGD that is the
recovery. Beside it stands the same of a training in which nobody dies, from its middle on: what
rounds cost that come now and then.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from spotmpi.bench.measuring import figures, launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.scripts.pacing import SLOW, VICTIM
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.strategies import named

__all__ = ["Run", "add_arguments", "gaps", "main", "page", "speeds"]

_USUAL = (
    *("ssgd", "localsgd:h=16", "diloco:h=16", "diloco:h=16,quorum=0.75,grace=0.02"),
    *("adpsgd:control=16", "gossip:control=16", "hogwild:control=16"),
)
TIMES = 5
"""So much slower is the slow one."""
_LIMIT = 120.0
_SCRIPT = launching.SCRIPTS / "pacing.py"
KINDS = ("undisturbed", "slow", "death")

Over = Mapping[int, Sequence[float]]
"""When each worker's steps were over, in seconds."""


class Run(NamedTuple):
    """One turn of one strategy: what its three trainings came to."""

    undisturbed: Over
    slow: Over
    death: Over


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the bench."""
    parser.description = "Measure what a slow worker and a dead one cost the others."
    parser.epilog = "example: spotmpi bench stragglers --workers 4 --turns 5 --json stragglers.json"
    for name, usual, text in (
        ("--workers", 4, "workers"),
        ("--params", 1_000_000, "size of the model, in float32"),
        ("--steps", 320, "steps of a training"),
        ("--turns", 5, "trainings of each kind"),
    ):
        parser.add_argument(name, type=int, default=usual, metavar="N", help=f"{text} ({usual})")
    parser.add_argument(
        "--strategies", nargs="+", default=[*_USUAL], metavar="NAME", help=" ".join(_USUAL)
    )
    parser.add_argument("--ms", type=float, default=10.0, metavar="MS", help="of a step (10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for. Blocking, minutes."""
    if options.workers < 3 or min(options.params, options.turns) < 1 or options.steps < 32:
        raise UsageError("--workers is 3 or more, --steps 32 or more, the others 1 or more")
    head = {"bench": "stragglers", **machine.describe()}
    runs: dict[str, list[Run]] = {str(named(one).name): [] for one in options.strategies}
    with temporary_job.ended_by_signals():
        for _, strategy in itertools.product(range(options.turns), runs):
            runs[strategy].append(Run(*(_train(options, strategy, kind) for kind in KINDS)))
            print(".", end="", flush=True)
    print("", *page(runs), sep="\n")
    if options.json:
        known = {name: getattr(options, name) for name in ("workers", "params", "steps", "ms")}
        samples = {name: [run._asdict() for run in some] for name, some in runs.items()}
        options.json.write_text(json.dumps({**head, **known, "runs": samples}) + "\n")
    return 0


def _train(options: argparse.Namespace, strategy: str, kind: str) -> Over:
    slow, dies = (TIMES if kind == "slow" else 1), int(kind == "death")
    known = [str(one) for one in (options.params, options.ms, options.steps, slow, dies)]
    with temporary_job.private_folder(options.workers) as folder:
        found = folder / "over"
        found.mkdir()
        program = ["--strategy", strategy, str(_SCRIPT), str(found), *known]
        launching.by_spotmpi(options.workers, program, folder / "trace.jsonl", folder, _LIMIT)
        said = {int(one.name): json.loads(one.read_text()) for one in sorted(found.iterdir())}
    if len(said) != options.workers:
        raise JobFailed(f"{strategy}, {kind}: only workers {[*said]} say what they did")
    first = min(over[0] for over in said.values())
    return {worker: [round(at - first, 5) for at in over] for worker, over in said.items()}


def speeds(run: Run) -> list[float]:
    """What each worker but the slow one keeps of its speed."""
    return [
        _speed(run.slow[worker]) / _speed(run.undisturbed[worker])
        for worker in run.slow
        if worker != SLOW
    ]


def _speed(over: Sequence[float]) -> float:
    half = over[len(over) // 2 :]
    return (len(half) - 1) / (half[-1] - half[0])


def gap(over: Over, since: float) -> float:
    """The longest of all workers but the victim, from a moment on, less a usual step; seconds."""
    longest = 0.0
    for worker, steps in over.items():
        if worker != VICTIM:
            pairs = itertools.pairwise(steps)
            between = [after - before for before, after in pairs if after > since]
            longest = max(longest, max(between) - median(between))
    return longest


def gaps(run: Run) -> tuple[float, float]:
    """After the death, and where nobody dies, from the middle on."""
    steps = run.undisturbed[VICTIM]
    return gap(run.death, run.death[VICTIM][-1]), gap(run.undisturbed, steps[len(steps) // 2])


def page(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """The table, and what was to be reached."""
    rows = [("strategy", "speed beside a slow one", "gap after a death, ms", "without, ms")]
    for strategy, some in runs.items():
        kept = [median(speeds(run)) for run in some]
        after, without = zip(*([1e3 * one for one in gaps(run)] for run in some), strict=True)
        rows.append((strategy, _said(kept, 2), _said(after, 1), _said(without, 1)))
    return [*(f"{a:34} {b:24} {c:24} {d}" for a, b, c, d in rows), "", *map(str, aims(runs))]


def _said(values: Sequence[float], digits: int) -> str:
    ends = f"{min(values):.{digits}f} .. {max(values):.{digits}f}"
    return f"{median(values):.{digits}f} ({ends})"


def aims(runs: Mapping[str, Sequence[Run]]) -> Iterable[figures.Aim]:
    """What asynchrony is for."""
    for strategy, some in runs.items():
        if named(strategy).asynchronous:
            kept = median(median(speeds(run)) for run in some)
            yield figures.Aim(f"{strategy} keeps 0.90 of its speed: {kept:.2f}", kept >= 0.9)
