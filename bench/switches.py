"""``spotmpi bench switches``: what it costs that all workers change their strategy under way.

One training follows one strategy after the other, because the worker that leads sets
``trainer.strategy``. Workers are on this host. A step takes a given time in which its worker
sleeps, as if an accelerator computed: so the workers of a machine with few cores do not slow each
other down.

The *longest* of some steps is the longest time between the ends of two steps of any worker. A
*usual* round of a strategy is the median, over all rounds where nothing changes and nothing is
asked for, of the longest in a round. What a change costs is the longest from when it was asked for
until the second round of the new strategy is over, less a usual round of the strategy before or
after, whichever is longer. Beside it stands *calm*, what no change costs: the longest in all those
other rounds until the next change is asked for, less a usual one.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from spotmpi.bench.measuring import figures, launching, machine
from spotmpi.bench.measuring.events import JobFailed
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.strategies import named

__all__ = ["Cost", "Told", "Turn", "add_arguments", "costs", "main", "page", "turn"]

_FEW = "diloco:h=8,quorum=0.75,grace=0.02"
_PARTS = "diloco:h=8,fragments=2,delay=2"
_PAIRS, _GIVEN = "adpsgd:control=8", "gossip:control=8"
_SERVED, _SHARED = "parameterserver:control=8", "hogwild:control=8"
_OTHERS = (
    *("lookahead", "sma", "localsgd:h=4", "easgd:every=4", "diloco:h=8", _PARTS, _FEW),
    *(_PAIRS, _GIVEN, _SERVED, _SHARED),
)
_USUAL = (
    *(one for other in _OTHERS for one in ("ssgd", other)),
    *(_PAIRS, _GIVEN, _SERVED, _SHARED, _PARTS, _PAIRS, _SERVED, _GIVEN, _SHARED, _FEW, _PAIRS),
    *("localsgd:h=4", _SHARED, "easgd:every=4", "sma", _PARTS, _SERVED, "lookahead", "ssgd"),
)
"""From ssgd to each other one and back, between those that wait for nobody, and to others."""
_SETTLED = 2
"""Rounds of the new strategy that count for the change to it."""
_FEWEST = _SETTLED + 2
_AIM = 1.0
"""Steps that a change may cost."""
_TO_START = 60.0


class Told(NamedTuple):
    """What one worker says: see scripts/switching.py."""

    over: Sequence[float]
    steps: Sequence[int]
    changed: Sequence[int]
    asked: Sequence[float]


class Turn(NamedTuple):
    """One training, in ms."""

    changes: Sequence[float]
    """The longest of each change."""
    calm: Sequence[Sequence[float]]
    """The longest in each of the other rounds, strategy by strategy."""


class Cost(NamedTuple):
    """Of a change, in ms, and what it is where nothing changes."""

    change: float
    calm: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the bench."""
    parser.description = "Measure what it costs to change the strategy under way."
    parser.epilog = "example: spotmpi bench switches --workers 4 --turns 5 --json switches.json"
    for name, usual, text in (
        ("--workers", 4, "workers"),
        ("--params", 1_000_000, "size of the model, in float32"),
        ("--every", 48, "steps with a strategy"),
        ("--turns", 5, "trainings"),
    ):
        parser.add_argument(name, type=int, default=usual, metavar="N", help=f"{text} ({usual})")
    text = f"one after the other ({' '.join(_USUAL)})"
    parser.add_argument("--strategies", nargs="+", default=[*_USUAL], metavar="NAME", help=text)
    parser.add_argument("--ms", type=float, default=50.0, metavar="MS", help="of a step (50)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the samples to FILE")


def main(options: argparse.Namespace) -> int:
    """Measure, print what each change costs, write what was asked for. Blocking, minutes."""
    names = list(options.strategies)
    known = [named(name) for name in names]
    if options.workers < 2 or options.turns < 1 or options.params < 4 or options.ms <= 0:
        raise UsageError("--workers is 2 or more, --params 4 or more, --turns and --ms more than 0")
    if len(names) < 2 or any(str(one) == str(two) for one, two in itertools.pairwise(known)):
        raise UsageError("--strategies are two or more, and each differs from the one before it")
    rounds = {one.every for one in known}
    if options.every < _FEWEST * max(rounds) or any(options.every % one for one in rounds):
        least = f"{_FEWEST * max(rounds)} or more, and a multiple of {sorted(rounds)}"
        raise UsageError(f"--every is {options.every}, expected {least}: the steps of rounds")
    head = {"bench": "switches", **machine.describe()}
    turns: list[Turn] = []
    with temporary_job.ended_by_signals():
        for _ in range(options.turns):
            turns.append(turn(_train(options, names), names, options.every))
            print(".", end="", flush=True)
    print("", *page(names, turns, options.ms), sep="\n")
    if options.json:
        asked = {name: getattr(options, name) for name in ("workers", "params", "every", "ms")}
        found = {"strategies": names, "turns": [one._asdict() for one in turns]}
        options.json.write_text(json.dumps({**head, **asked, **found}) + "\n")
    return 0


def _train(options: argparse.Namespace, names: Sequence[str]) -> dict[int, Told]:
    known = [str(one) for one in (options.params, options.ms, options.every)]
    limit = _TO_START + 4e-3 * options.ms * options.every * len(names)
    with temporary_job.private_folder(options.workers) as folder:
        found = folder / "told"
        found.mkdir()
        program = [str(launching.SCRIPTS / "switching.py"), str(found), *known, *names]
        launching.by_spotmpi(options.workers, program, folder / "trace.jsonl", folder, limit)
        told = {int(one.name): Told(**json.loads(one.read_text())) for one in found.iterdir()}
    if len(told) != options.workers:
        raise JobFailed(f"only workers {sorted(told)} say what they did")
    return told


def turn(told: Mapping[int, Told], names: Sequence[str], every: int) -> Turn:
    """What a training came to. JobFailed if not all have changed after the same steps."""
    when = {worker: [0, *(one.steps[at] for at in one.changed)] for worker, one in told.items()}
    since, asked = when[0], told[0].asked
    if len(since) != len(names) or any(one != since for one in when.values()):
        raise JobFailed(f"not all workers changed after the same steps: {when}")
    steps = [
        (before, at, 1e3 * (at - started))
        for one in told.values()
        for before, started, at in zip(one.steps, one.over, one.over[1:], strict=False)
    ]
    changes, calm = [], []
    for number, (name, first) in enumerate(zip(names, since, strict=True)):
        length = named(name).every
        settled = first + _SETTLED * length
        if number:
            of_it = [ms for before, at, ms in steps if at > asked[number - 1] and before < settled]
            changes.append(round(max(of_it), 3))
        longest: dict[int, float] = {}
        for before, _, ms in steps:
            if settled <= before < first + every:
                its = (before - first) // length
                longest[its] = max(ms, longest.get(its, 0.0))
        calm.append([round(ms, 3) for ms in longest.values()])
    return Turn(changes, calm)


def usual(names: Sequence[str], one: Turn) -> dict[str, float]:
    """Of each strategy a usual round, in ms."""
    calm: dict[str, list[float]] = {}
    for name, rounds in zip(names, one.calm, strict=True):
        calm.setdefault(name, []).extend(rounds)
    return {name: median(rounds) for name, rounds in calm.items()}


def costs(names: Sequence[str], one: Turn) -> Iterator[tuple[tuple[str, str], Cost]]:
    """What each change of a training cost, from which strategy to which."""
    known = usual(names, one)
    pairs = itertools.pairwise(names)
    for pair, longest, calm in zip(pairs, one.changes, one.calm[1:], strict=True):
        beyond = longest - max(known[name] for name in pair)
        yield pair, Cost(beyond, max(calm) - known[pair[1]])


def page(names: Sequence[str], turns: Sequence[Turn], ms: float) -> list[str]:
    """What usual rounds take, and what changes cost, beside what was to be reached."""
    rounds = [usual(names, one) for one in turns]
    found: dict[tuple[str, str], list[Cost]] = {}
    for pair, cost in itertools.chain.from_iterable(costs(names, one) for one in turns):
        found.setdefault(pair, []).append(cost)
    lines = [f"{name:38} {_said([one[name] for one in rounds])} ms" for name in rounds[0]]
    aims = [_aim(pair, some, ms) for pair, some in found.items()]
    return ["the longest step of a usual round", *lines, "", *map(str, aims)]


def _aim(pair: tuple[str, str], some: Sequence[Cost], ms: float) -> figures.Aim:
    change, calm = zip(*some, strict=True)
    steps = median(change) / ms
    said = f"{' -> '.join(pair)} costs a step at most: {steps:.2f} steps, {_said(change)} ms"
    return figures.Aim(f"{said}; calm {_said(calm)} ms", steps <= _AIM)


def _said(values: Sequence[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} .. {max(values):.1f})"
