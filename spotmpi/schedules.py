"""Campaigns against the protocol: seeded schedules, deaths at any event, checks after each.

The workers are those of `dummy`: the driver, the recovery and all that decides are the real ones.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from spotmpi import __version__
from spotmpi.dummy import Court, Replica, Violation
from spotmpi.fabric.sim import Arrival, Kill, Notice, Simulation
from spotmpi.fabric.simdata import Delays
from spotmpi.membership import Membership, WorkerId
from spotmpi.options import at_least
from spotmpi.recovery import MESSAGES_OF_AN_END, MESSAGES_PER_LOSS
from spotmpi.trace import Trace

PLANS = 0.5
"""Of all schedules: those with newcomers and with workers that are told to leave."""


@dataclass(frozen=True)
class Run:
    """One schedule: everything about it follows from these."""

    workers: int
    seed: int
    kills: tuple[Kill, ...]
    arrivals: tuple[Arrival, ...] = ()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    events: int
    survivors: int
    recoveries: int
    worst_messages: float
    graduates: int
    """How often somebody saw a newcomer come to know everything."""


def execute(run: Run, transcript: list[str] | None = None, trace_to: Path | None = None) -> Outcome:
    """Run one schedule to its end; raises if a promise breaks, `Violation`, `Hang` or whatever.

    ``transcript`` gets a line for each event that matters, ``trace_to`` the trace of the run.
    """
    membership = Membership.first(["sim"] * run.workers)
    simulation = Simulation(
        membership,
        run.seed,
        run.kills,
        _delays(run.seed),
        run.arrivals,
        run.notices,
        in_place=run.seed % 2 == 0,
    )
    simulation.transcript = transcript
    court = Court(run.workers)
    trace = Trace(trace_to, simulation.clock)
    trace.begin(resume=False)
    trace.write(
        "start",
        workers=membership.ids,
        params=1,
        seed=run.seed,
        strategy="simulated",
        optimizer="simulated",
        lr=None,
        version=__version__,
    )
    replicas: dict[WorkerId, Replica] = {}

    def replica(worker: WorkerId) -> Replica:
        replicas[worker] = Replica(worker, simulation, court, run.seed, trace)
        return replicas[worker]

    simulation.newcomer = lambda worker: replica(worker).late_script()
    for worker in membership.ids:
        simulation.start(worker, replica(worker).script())
    try:
        simulation.run()
    finally:
        trace.close()
    survivors = [replicas[w] for w, history in simulation.returned.items() if history is not None]
    _judge(survivors, court)
    return Outcome(
        simulation.events,
        len(survivors),
        len(court.memberships) - 1,
        court.worst_messages,
        court.graduates,
    )


def _judge(survivors: Sequence[Replica], court: Court) -> None:
    """Those that came to the end must have come to the same one, and by what was published."""
    begin = max((replica.first for replica in survivors), default=0)
    ends = {tuple(replica.history[begin - replica.first :]) for replica in survivors}
    if len(ends) > 1:
        raise Violation(f"{len(ends)} different histories at the end")
    for replica in survivors:
        for number, history in court.published.items():
            if number >= replica.first and replica.history[number - replica.first] != history:
                raise Violation("what was published is not what the survivors trained")
        steps, own = replica.committed
        if replica.gradients != own:
            raise Violation(f"worker {replica.me}: {replica.gradients} gradients in {own} steps")
        if not replica.complete:
            raise Violation(f"worker {replica.me} left samples of its pass unused in {steps} steps")


def _delays(seed: int) -> Delays:
    """Other proportions in each run: what is usually slow may be fast, and the other way round."""
    chance = random.Random(seed)
    usual = Delays()
    longest = {f.name: getattr(usual, f.name) * 10 ** chance.uniform(-1, 1) for f in fields(usual)}
    return Delays(**longest)


def drawn(workers: int, runs: int, seed: int) -> Iterator[Run]:
    """Seeded runs with one death or more (now and then all), mostly close to each other.

    Many begin in the last events, where training ends: few moments, and many ways to go wrong.
    """
    length = execute(Run(workers, seed, ())).events
    for number in range(runs):
        chance = random.Random(f"{seed}/{number}")
        losses = 1 + int(chance.expovariate(0.5))
        if chance.random() < 0.1:
            losses = chance.randint(1, workers)
        elif workers > 1:
            losses = min(losses, workers - 1)
        moment = chance.randrange(length)
        if chance.random() < 0.2:
            moment = max(0, length - 1 - chance.randrange(30 * workers))
        kills = []
        for victim in chance.sample(range(workers), min(losses, workers)):
            kills.append(Kill(victim, moment))
            # In the same recovery, in the round that it makes up for, or at any other time.
            if near := chance.choice((8, 8, 40, 40, 0)):
                moment += chance.randrange(near * workers)
            else:
                moment = chance.randrange(length)
        run = Run(workers, chance.randrange(1 << 32), tuple(kills))
        yield _with_plans(run, chance, moment, length) if chance.random() < PLANS else run


def _with_plans(run: Run, chance: random.Random, moment: int, length: int) -> Run:
    """Newcomers as well, some of whom die or are told to leave, and members who are told to."""
    arrivals = [
        Arrival(run.workers + i, chance.randrange(length))
        for i in range(chance.choice((0, 1, 1, 2, 3)))
    ]
    kills, notices = list(run.kills), []
    for arrival in arrivals:
        if chance.random() < 0.3:
            kills.append(Kill(arrival.worker, arrival.at + chance.randrange(60 * run.workers)))
        if chance.random() < 0.2:
            notices.append(Notice(arrival.worker, arrival.at + chance.randrange(60 * run.workers)))
        if chance.random() < 0.5:  # around the loss
            arrivals[arrival.worker - run.workers] = replace(
                arrival, at=max(0, moment - chance.randrange(40 * run.workers))
            )
    for worker in range(run.workers):
        if chance.random() < 0.15:
            near = max(0, moment - chance.randrange(40 * run.workers))
            notices.append(Notice(worker, chance.choice((near, chance.randrange(length)))))
    return replace(run, kills=tuple(kills), arrivals=tuple(arrivals), notices=tuple(notices))


@dataclass(frozen=True)
class Finding:
    """A run that broke a promise, with the faults it does not need dropped."""

    run: Run
    failure: str
    transcript: list[str]


def search(runs: Iterator[Run], tell: Callable[[Outcome], None] = lambda _: None) -> Run | None:
    """The first of ``runs`` that breaks a promise; ``tell`` hears how each of the others went."""
    for run in runs:
        outcome = _outcome(run)
        if isinstance(outcome, str):
            return run
        tell(outcome)
    return None


def shrink(run: Run) -> Finding:
    """Drop every event without which ``run`` still fails; `run` must fail."""
    smallest, before = run, None
    while smallest != before:  # what could not be spared with another one may be without it
        before = smallest
        for kind in ("arrivals", "notices", "kills"):
            for event in getattr(before, kind):
                kept = tuple(one for one in getattr(smallest, kind) if one is not event)
                fewer = _with(smallest, kind, kept)
                if isinstance(_outcome(fewer), str):
                    smallest = fewer
    transcript: list[str] = []
    failure = _outcome(smallest, transcript)
    if not isinstance(failure, str):
        raise ValueError("this run breaks no promise")
    return Finding(smallest, failure, transcript)


def _with(run: Run, kind: str, events: tuple[Any, ...]) -> Run:
    changed: dict[str, Any] = {kind: events}
    return replace(run, **changed)


def _outcome(run: Run, transcript: list[str] | None = None) -> Outcome | str:
    try:
        return execute(run, transcript)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the run that shows it matters
        return f"{type(failure).__name__}: {failure}"


# The command: spotmpi simulate protocol.

_PROGRESS_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``spotmpi simulate protocol`` takes."""
    parser.description = (
        "Search for schedules that break a promise of the recovery protocol: workers die at any "
        "event, messages are late, and everything is checked after each event. No MPI is used."
    )
    parser.epilog = "example: spotmpi simulate protocol --workers 16 --runs 2000 --seed 1"
    parser.add_argument("--workers", type=int, default=16, metavar="W", help="default: 16")
    parser.add_argument("--runs", type=int, default=1000, metavar="R", help="default: 1000")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="write the trace of the run that failed, or else of the last one, to FILE",
    )


def main(options: argparse.Namespace) -> int:
    """Run a campaign and say how it went; 1 if a promise broke."""
    at_least(options, workers=1, runs=1, seed=0)
    if options.trace is not None:
        Trace(options.trace).close()  # a place that cannot be written to is known before the search
    report = _Report(options.workers, options.runs)
    last: list[Run] = []
    failing = search(
        _keep_last(drawn(options.workers, options.runs, options.seed), last), report.add
    )
    report.end()
    if failing is None:
        if options.trace is not None:
            execute(last[0], trace_to=options.trace)
        return 0
    finding = shrink(failing)
    if options.trace is not None:
        _traced(finding.run, options.trace)
    print(*finding.transcript, sep="\n")
    kills = ", ".join(f"worker {kill.worker} at event {kill.at}" for kill in finding.run.kills)
    print(
        f"\n{finding.failure}\n\nThis is run {report.runs} of --workers {options.workers} --seed "
        f"{options.seed}; its own seed is {finding.run.seed}, and all it takes is "
        f"{f'the death of {kills}' if kills else 'no death at all'}."
    )
    return 1


def _keep_last(runs: Iterator[Run], last: list[Run]) -> Iterator[Run]:
    for run in runs:
        last[:] = [run]
        yield run


def _traced(run: Run, path: Path) -> None:
    try:
        execute(run, trace_to=path)
    except Exception:  # noqa: BLE001 - it is known to fail
        return


class _Report:
    """Counts runs, says so while it goes on if somebody watches, and sums up."""

    def __init__(self, workers: int, asked: int) -> None:
        self._workers, self._asked = workers, asked
        self.runs = self._events = self._recoveries = 0
        self._worst = 0.0
        self._begin = self._shown = time.monotonic()
        self._watched = sys.stderr.isatty()

    def add(self, outcome: Outcome) -> None:
        """One more run broke no promise."""
        self.runs += 1
        self._events += outcome.events
        self._recoveries += outcome.recoveries
        self._worst = max(self._worst, outcome.worst_messages)
        now = time.monotonic()
        if self._watched and now - self._shown > _PROGRESS_SECONDS:
            self._shown = now
            rate = self.runs / (now - self._begin)
            print(
                f"\r{self.runs} of {self._asked} runs, {rate:.0f} a second", end="", file=sys.stderr
            )

    def end(self) -> None:
        """The summary, on standard output."""
        if self._watched:
            print("\r\033[K", end="", file=sys.stderr)
        seconds = time.monotonic() - self._begin
        print(
            f"{self.runs} runs of {self._workers} workers broke no promise: {self._events} events, "
            f"{self._recoveries} recoveries, at most {self._worst:.2f} messages a worker and loss "
            f"({MESSAGES_PER_LOSS} are allowed, and {MESSAGES_OF_AN_END} at the end); "
            f"{seconds:.1f} s, {self.runs / seconds:.0f} runs a second"
        )
