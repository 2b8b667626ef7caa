"""``spotmpi simulate protocol``: search for faults that break what a training promises."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.options import at_least
from spotmpi.protocol.recovery import MESSAGES_OF_AN_END, MESSAGES_PER_LOSS
from spotmpi.simulation.schedules import STRATEGIES, Campaign, Schedule
from spotmpi.simulation.search import Outcome, execute, length, shrink
from spotmpi.simulation.share import spread
from spotmpi.trace.records import Trace

_PROGRESS_SECONDS = 0.5

_CHANGING = "changing"
"""Stands in the place of a strategy's name."""

_PAIRS = len(STRATEGIES) * (len(STRATEGIES) - 1)
"""From one strategy to another one."""

_WORTH_A_PROCESS = 100
"""Schedules: starting a process takes as long as a few dozen of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``spotmpi simulate protocol`` takes."""
    parser.description = (
        "Run trainings in memory, with the code that trains and recovers in a real job, and search "
        "for faults that break a promise: workers die at any event, several at once, also in a "
        "recovery; others come, or are told to leave; messages are late. All the while it is "
        "checked that no step is lost or taken twice, that every sample counts once, that all "
        "workers hold the same bits, and that nobody is left waiting. No MPI is used."
    )
    parser.epilog = (
        "examples: spotmpi simulate protocol --runs 100000\n"
        "          spotmpi simulate protocol --strategy changing --runs 20000\n"
        "          spotmpi simulate protocol --workers 10000 --losses 100 --runs 1"
    )
    parser.add_argument(
        "--workers",
        type=_range,
        default=(2, 16),
        metavar="W",
        help="a number, or a range such as 2-16 of which each run draws one; default: 2-16",
    )
    parser.add_argument(
        "--losses",
        type=int,
        metavar="K",
        help="K workers die at one moment, and nothing else happens",
    )
    parser.add_argument(
        "--strategy",
        choices=[*sorted({one.partition(":")[0] for one in STRATEGIES}), _CHANGING],
        help="how workers synchronise; default: each run draws one, and a quarter of the runs "
        f"change it under way; {_CHANGING}: all runs do, from any one to any other one",
    )
    parser.add_argument("--runs", type=int, default=1000, metavar="R", help="default: 1000")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument(
        "--jobs", type=int, metavar="J", help="processes; default: one for each core"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the trace of the run that failed, or else of the last one, to FILE",
    )


def main(options: argparse.Namespace) -> int:
    """Run a campaign and say how it went; 1 if a promise broke."""
    at_least(options, runs=1, seed=0)
    jobs = max(1, min(len(os.sched_getaffinity(0)), options.runs // _WORTH_A_PROCESS))
    if options.jobs is not None:
        at_least(options, jobs=1)
        jobs = options.jobs
    if options.losses is not None:
        at_least(options, losses=0)
    if options.trace is not None:
        Trace(options.trace).close()  # a place that cannot be written to is known before the search
    least, most = options.workers
    changing = options.strategy == _CHANGING
    if changing and options.losses is not None:
        raise UsageError(
            f"with --losses nothing else happens: leave it out, or --strategy {_CHANGING}"
        )
    strategies = tuple(
        one for one in STRATEGIES if changing or options.strategy in (None, one.partition(":")[0])
    )
    campaign = Campaign(least, most, options.seed, options.losses, strategies, changing)
    report = _Report(campaign, options.runs)
    failing = spread(campaign, options.runs, jobs, report.add)
    report.end()
    if failing is None:
        if options.trace is not None:
            _traced(campaign.schedule(options.runs - 1, length), options.trace)
        return 0
    finding = shrink(campaign.schedule(failing, length))
    if options.trace is not None:
        _traced(finding.schedule, options.trace)
    print(*finding.transcript, sep="\n")
    drawn = "" if options.strategy is None else f" --strategy {options.strategy}"
    print(
        f"\n{finding.failure}\n\nThis is run {failing} of --workers {least}-{most} --seed "
        f"{options.seed}{drawn}: {finding.schedule.workers} workers with the seed "
        f"{finding.schedule.seed}. All that it takes: {finding.schedule}."
    )
    return 1


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text, re.ASCII)
    least, most = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 1 <= least <= most:
        raise UsageError(f"--workers is {text}, expected a number from 1 on, or a range as 2-16")
    return least, most


def _traced(schedule: Schedule, path: Path) -> None:
    with contextlib.suppress(Exception):  # if it fails, that is known and told
        execute(schedule, trace_to=path)


class _Report:
    """Counts runs, says so while it goes on if somebody watches, and sums up."""

    def __init__(self, campaign: Campaign, asked: int) -> None:
        self._campaign, self._asked = campaign, asked
        self._runs = self._events = self._recoveries = self._graduates = 0
        self._switched: Counter[tuple[str, ...]] = Counter()
        self._worst = 0.0
        self._begin = self._shown = time.monotonic()
        self._watched = sys.stderr.isatty()

    def add(self, _number: int, outcome: Outcome) -> None:
        """One more run broke no promise."""
        self._runs += 1
        self._events += outcome.events
        self._recoveries += outcome.recoveries
        self._graduates += outcome.graduates
        self._switched.update(map(tuple, outcome.switched))
        self._worst = max(self._worst, outcome.worst_messages)
        now = time.monotonic()
        if self._watched and now - self._shown > _PROGRESS_SECONDS:
            self._shown = now
            rate = self._runs / (now - self._begin)
            said = f"{self._runs} of {self._asked} runs, {rate:.0f} a second"
            print(f"\r{said}", end="", file=sys.stderr)

    def end(self) -> None:
        """The summary, on standard output."""
        if self._watched:
            print("\r\033[K", end="", file=sys.stderr)
        seconds = time.monotonic() - self._begin
        least, most = self._campaign.least, self._campaign.most
        workers = f"{least}" if least == most else f"{least} to {most}"
        print(
            f"{self._runs} runs of {workers} workers broke no promise: {self._events} events, "
            f"{self._recoveries} changes of the membership, {self._graduates} newcomers that came "
            f"to train, {self._switched.total()} changes of the strategy ({len(self._switched)} of "
            f"{_PAIRS} pairs), at most {self._worst:.2f} messages a worker and loss "
            f"({MESSAGES_PER_LOSS} are allowed, and {MESSAGES_OF_AN_END} for an end or a plan); "
            f"{seconds:.1f} s, {self._runs / seconds:.0f} runs a second"
        )
