"""``spotmpi bench accuracy``: how long trainings take to a stated accuracy while workers die.

Fixed strategies and policies train the same small network, with momentum of 0.9, on 8 workers of
several hosts. The hosts are made for it on this machine, and their links have a stated rate. 3 of
the workers die by SIGKILL at stated times. For each seed there is one training of each kind, in an
order that is drawn, with the same start, the same order of samples, the same workers that die and
the same moments. Worker 0 does not die: it keeps the models. A training counts only if its trace
says that just these workers died and that every sample counted once in each pass.

The figure is the seconds from the first step on until the test accuracy stays at the bar or above
it, to the end of the training. It is the accuracy of `trainer.model` after each round, when all
have agreed on it: nothing is known in between. Evaluation takes none of that time: worker 0 only
copies models, within the time of a step, and they are tested after the training.

What is real: gradients, sums, messages over the limited links, deaths, recoveries. What is not: the
hosts share this machine's cores, so a step takes a stated time, in which its worker computes a
small gradient and sleeps for the rest, as if an accelerator computed for so long. The file says how
long gradients took: if that comes near the stated time there are too few cores for it. The link's
limit lets a burst of 64 kB through at once.

All train with the same learning rate, as a policy has one only. It is small, so that the bar takes
some hundreds of steps: a policy decides seldom. It is not the best one for each. DiLoCo's outer
step is longer than the mean of the workers' steps, which is an advantage where rates are small.
Synchronous SGD's rate follows the number of workers, as it always does.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from spotmpi import policies, strategies
from spotmpi.bench.convergence import FITTING, check
from spotmpi.bench.measuring import launching, tasks
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.bench.measuring.figures import Aim
from spotmpi.bench.measuring.network import Network, missing
from spotmpi.bench.measuring.on_hosts import UNLIMITED, check_rate
from spotmpi.bench.measuring.report import Report
from spotmpi.bench.scripts.reaching import MODELS, Race
from spotmpi.errors import TraceError, UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.trace import records as trace

__all__ = [
    "COURSES",
    "WAYS",
    "add_arguments",
    "agreed",
    "aims",
    "by_way",
    "is_policy",
    "main",
    "page",
    "reached",
    "victims",
]


class Course(NamedTuple):
    """How a set is trained here, and the test accuracy that is to be reached."""

    hidden: int
    """Units of the network: so many that sums between hosts take a while."""
    batch_size: int
    passes: int
    rate: float
    bar: float


COURSES = {
    "digits": Course(hidden=1024, batch_size=4, passes=16, rate=0.001, bar=0.92),
    "teacher": Course(hidden=2048, batch_size=12, passes=3, rate=0.00015, bar=0.70),
}
_PASSES = {name: one.passes for name, one in COURSES.items()}
_FIXED = ("ssgd", "localsgd", FITTING["adpsgd"], FITTING["diloco"])
WAYS = (
    *_FIXED,
    "/".join(["best:settle=1", *_FIXED]),
    f"throughputbelow:settle=1/{FITTING['adpsgd']}",
)
"""The last two are policies."""
_MOST = 1.1
"""Times the fastest fixed strategy that a policy may take."""
_BURST = "64kb"
_LIMIT = 900.0
"""Seconds that a job may take."""
_TO_END = 10.0
"""Seconds that a job gets to end by itself, once it has been told to."""

Cell = Mapping[str, Any]
"""One training."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.description = (
        "Measure how long strategies and policies train until a stated test accuracy, on hosts "
        "with slow links, while workers die. The hosts are made on this machine. Needs root."
    )
    bars = ", ".join(f"{name} {100 * one.bar:g} %" for name, one in COURSES.items())
    parser.epilog = (
        "example: spotmpi bench accuracy --json accuracy.json --plot accuracy.png\n\n"
        f"The bars are: {bars}. About 18 minutes a seed. Exit code 1 if a job failed; a target "
        "that is\nmissed is only reported."
    )
    add = parser.add_argument
    tasks.add_arguments(parser, _PASSES)
    add("--ways", nargs="+", metavar="WAY", help=f"strategies and policies ({' '.join(WAYS)})")
    add("--workers", type=int, default=8, metavar="N", help="on all hosts together (8)")
    add("--hosts", type=int, default=4, metavar="N", help="with as many workers on each (4)")
    add("--rate", metavar="R", default="50mbit", help="of a host's link, as tc has it (50mbit)")
    add("--ms", type=float, default=50.0, metavar="MS", help="that a step computes (50)")
    add(
        "--deaths",
        nargs="+",
        type=float,
        default=[3.0, 6.0, 9.0],
        metavar="S",
        help="seconds after the first step, one for each worker that dies (3 6 9)",
    )
    add("--json", type=Path, metavar="FILE", help="write all accuracies to FILE")
    add("--plot", type=Path, metavar="FILE", help="draw them into FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print the table, write what was asked for; 1 if a job failed. Blocking, minutes."""
    ways, seeds = options.ways or list(WAYS), options.seeds
    _check(options, ways, seeds)
    sets = tasks.asked_for(options, _PASSES)
    known = {name: getattr(options, name) for name in ("workers", "hosts", "rate", "ms", "deaths")}
    courses = {name: COURSES[name]._replace(passes=passes) for name, passes in sets.items()}
    report = Report(
        "accuracy",
        options.json,
        **known,
        burst=_BURST,
        courses={name: one._asdict() for name, one in courses.items()},
    )
    with temporary_job.ended_by_signals():
        for seed in seeds:
            order = random.Random(f"order {seed}").sample(ways, len(ways))
            for name, way in [(name, way) for name in sets for way in order]:
                with report.measuring(f"{name}, seed {seed}, {way}"):
                    cell = _train(options, name, courses[name], way, seed)
                    report.add(cell, [_line(cell)])
    print("", *page(report.cells), sep="\n")
    if options.plot and report.cells:
        from spotmpi.bench.measuring import drawing  # matplotlib: nobody else waits for it

        bars = {name: one.bar for name, one in COURSES.items()}
        drawing.draw_races(report.cells, _names(ways), bars, options.deaths, options.plot)
    return report.close()


def _check(options: argparse.Namespace, ways: Sequence[str], seeds: Sequence[int]) -> None:
    """UsageError for what measures nothing; nothing has been started then."""
    for way in ways:
        if is_policy(way):
            policies.named(way)
        else:
            strategies.named(way)
    if len(set(ways)) < len(ways) or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError("--ways and --seeds are each there once, and seeds are numbers from 0 on")
    if options.hosts < 2 or options.workers % options.hosts:
        raise UsageError("--hosts is 2 or more, and --workers are as many on each of them")
    if len(options.deaths) >= options.workers or min(options.deaths) < 0:
        raise UsageError("--deaths are moments from 0 on, fewer than there are workers")
    if options.ms < 0:
        raise UsageError(f"--ms is {options.ms:g}, expected 0 or more")
    if options.plot and not options.plot.resolve().parent.is_dir():
        raise UsageError(f"{options.plot}: there is no such folder; make it first")
    check_rate(options.rate)
    if why := missing():
        raise UsageError(f"this bench makes hosts of its own: {why}")


def is_policy(way: str) -> bool:
    """True for what ``--policy`` takes; ``--strategy`` takes the others."""
    return _kind(way) in policies.NAMES


def victims(workers: int, moments: Sequence[float], seed: int) -> tuple[tuple[int, float], ...]:
    """Who dies, and when: drawn workers, never worker 0, in the order of the moments."""
    drawn = random.Random(f"deaths {seed}").sample(range(1, workers), len(moments))
    return tuple(zip(drawn, sorted(moments), strict=True))


def reached(curve: Sequence[Sequence[float]], bar: float) -> float | None:
    """The first moment from which on all of a curve is at the bar or above it; None: there is
    none. A curve has moments, each with its accuracy."""
    since = None
    for seconds, accuracy in curve:
        since = None if accuracy < bar else seconds if since is None else since
    return since


def agreed(records: Sequence[trace.Record], times: Sequence[float]) -> list[int]:
    """The places of models that all had agreed on, of models that the leader copied at these times:
    the first one after each round."""
    ends = {one["committed"] for one in records if one["event"] == "step"}
    found = {bisect_left(times, end) for end in ends}
    return sorted(found - {len(times)})


def _train(options: argparse.Namespace, name: str, course: Course, way: str, seed: int) -> Cell:
    """One training. Leaves nothing behind. JobFailed."""
    race = Race(
        name,
        course.hidden,
        course.batch_size,
        course.passes,
        course.rate,
        seed,
        options.workers,
        options.ms,
        victims(options.workers, options.deaths, seed),
    )
    with tempfile.TemporaryDirectory() as folder, Network(Path(folder), options.hosts) as network:
        if options.rate != UNLIMITED:
            network.limit(options.rate, _BURST)
        slots = options.workers // options.hosts
        hosts_file = network.hosts_file(*(f"{host} slots={slots}" for host in network.names))
        kind = "--policy" if is_policy(way) else "--strategy"
        command = network.in_head(
            *(sys.executable, "-m", "spotmpi", "run", "--hosts", hosts_file, "--no-replace"),
            *(*launching.NOBODY_SILENT, kind, way, "--trace", network.folder / "trace"),
            *(launching.SCRIPTS / "reaching.py", network.folder, race.to_json()),
        )
        _run(command, network)
        try:
            records = list(trace.read(network.folder / "trace"))
            with np.load(network.folder / MODELS) as found:
                return {
                    "set": name,
                    "seed": seed,
                    "way": way,
                    "deaths": race.deaths,
                    **_followed(race, records, dict(found)),
                }
        except (OSError, ValueError, TraceError) as error:
            raise JobFailed(f"the job ended without its results: {error}") from error


def _run(command: Sequence[str], network: Network) -> None:
    """Blocking. JobFailed unless it ends well."""
    end, environ = signal.SIGTERM, network.environ
    started = temporary_job.started(command, environ, network.folder, end=end, patience_s=_TO_END)
    with started as (process, said):
        try:
            code: int | None = process.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            code = None
        if code:
            what = f"ended with code {code}" if code else f"still ran after {_LIMIT:.0f} s"
            raise JobFailed(f"{what}; its last words:\n{temporary_job.last_words(said)}")


def _followed(race: Race, records: Sequence[trace.Record], found: Mapping[str, Any]) -> Cell:
    """What came of a training, by its trace and the models of its leader. JobFailed."""
    task = race.task
    data = task.data()
    check(records, race.deaths, 0, len(data.x), race.passes)
    shapes = tasks.Network.initial(task, race.seed)
    ends = np.cumsum([one.size for one in shapes.values()])[:-1]
    began, times = float(found["began"]), found["times"]

    def accuracy(flat: Any) -> float:
        arrays = zip(shapes.items(), np.split(flat, ends), strict=True)
        model = {name: part.reshape(like.shape) for (name, like), part in arrays}
        return tasks.Network.accuracy(model, data.test_x, data.test_y)

    curve = [
        (round(float(times[at]) - began, 3), round(accuracy(found["models"][at]), 5))
        for at in agreed(records, times.tolist())
    ]
    if not curve:
        raise JobFailed("there was no round")
    steps = [record for record in records if record["event"] == "step"]
    computed = sorted((1e3 * found["computed"]).tolist())
    return {
        "seconds": reached(curve, COURSES[race.set].bar),
        "ended": round(float(times[-1]) - began, 3),
        "steps": steps[-1]["step"] + 1,
        "lost": [
            [one["lost"], round(one["at"] - began, 3)]
            for one in records
            if one["event"] == "recovery"
        ],
        "changes": [
            [one["step"], round(one["at"] - began, 3), one["strategy_name"]]
            for one in records
            if one["event"] == "strategy"
        ],
        "computed_ms": {
            "median": round(median(computed), 2),
            "p95": round(computed[19 * len(computed) // 20], 2),
        },
        "curve": curve,
    }


def _line(cell: Cell) -> str:
    took = "not reached" if cell["seconds"] is None else f"{cell['seconds']:.1f} s"
    followed = " -> ".join(f"{name} at {at:.0f} s" for _, at, name in cell["changes"])
    return (
        f"{cell['set']}, seed {cell['seed']}, {cell['way']}: {took}, at the end "
        f"{100 * cell['curve'][-1][1]:.1f} % after {cell['ended']:.0f} s and {cell['steps']} steps"
        + (f"; {followed}" if followed else "")
    )


def by_way(cells: Sequence[Cell], name: str) -> dict[str, dict[int, float]]:
    """Of a set: for each way and seed the seconds to the bar, infinity where it is not reached."""
    found: dict[str, dict[int, float]] = {}
    for one in cells:
        if one["set"] == name:
            seconds = math.inf if one["seconds"] is None else one["seconds"]
            found.setdefault(one["way"], {})[one["seed"]] = seconds
    return found


def page(cells: Sequence[Cell]) -> list[str]:
    """The tables, and what was to be reached."""
    lines = []
    for name in dict.fromkeys(one["set"] for one in cells):
        found = by_way(cells, name)
        fastest = min(median(some.values()) for some in found.values())
        bar = COURSES[name].bar
        lines += [f"{name}: seconds until the test accuracy stays at {100 * bar:g} % or above", ""]
        lines.append(f"{'median (least .. most)':28}{'of the fastest':16}{'at the end, %':15}")
        for way, some in sorted(found.items(), key=lambda one: median(one[1].values())):
            last = [one["curve"][-1][1] for one in cells if (one["set"], one["way"]) == (name, way)]
            seconds = list(some.values())
            said = f"{_said(median(seconds))} ({_said(min(seconds))} .. {_said(max(seconds))})"
            times = median(seconds) / fastest if median(seconds) < math.inf else math.inf
            never = sum(one == math.inf for one in seconds)
            text = f"{said:28}{_said(times, 2):16}{100 * median(last):<15.1f}{way}"
            lines.append(text + (f"  (not reached in {never} of {len(some)})" if never else ""))
        lines += ["", *map(str, aims(name, found)), ""]
    return lines


def aims(name: str, found: Mapping[str, Mapping[int, float]]) -> Iterator[Aim]:
    """What a policy is for, of one set: seed by seed it is never the slowest, and it takes hardly
    longer than the fastest fixed strategy, in the median."""
    fixed = {way: some for way, some in found.items() if not is_policy(way)}
    names = _names(list(found))
    if not fixed:
        return
    fastest = min(fixed, key=lambda way: median(fixed[way].values()))
    least = median(fixed[fastest].values())
    for way in [way for way in found if is_policy(way)]:
        slow = [seed for seed, one in found[way].items() if _slowest(seed, one, fixed)]
        said = f"in {len(slow)} of {len(found[way])} seeds"
        yield Aim(f"{name}: {names[way]} is never the slowest: it is {said}", not slow)
        took = median(found[way].values())
        times = took / least if took < math.inf else math.inf
        yield Aim(
            f"{name}: {names[way]} takes at most {_MOST} times as long as the fastest, "
            f"{names[fastest]}: {_said(times, 2)}",
            times <= _MOST,
        )


def _slowest(seed: int, seconds: float, fixed: Mapping[str, Mapping[int, float]]) -> bool:
    """Whether no fixed strategy took longer with this seed; one that never got there, did."""
    others = [some[seed] for some in fixed.values() if seed in some]
    return bool(others) and (seconds == math.inf or seconds > max(others))


def _names(ways: Sequence[str]) -> dict[str, str]:
    """What each is called for short: without options, where no other one is called so."""
    kinds = [_kind(way) for way in ways]
    return {
        way: kind if kinds.count(kind) == 1 else way for way, kind in zip(ways, kinds, strict=True)
    }


def _kind(way: str) -> str:
    return way.partition("/")[0].partition(":")[0]


def _said(number: float, digits: int = 1) -> str:
    return "never" if number == math.inf else f"{number:.{digits}f}"
