"""Campaigns: run schedules, check each, and reduce one that breaks a promise to what it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from spotmpi import __version__
from spotmpi.fabric import Steps
from spotmpi.fabric.sim.simulation import Simulation
from spotmpi.protocol.membership import WorkerId
from spotmpi.settings import Settings
from spotmpi.simulation.checker import Checker
from spotmpi.simulation.launcher import Launcher
from spotmpi.simulation.schedules import KINDS, Campaign, Schedule
from spotmpi.simulation.training import Book, Trainee, dealt
from spotmpi.trace.records import Trace

__all__ = ["Finding", "Outcome", "execute", "outcome_of", "length", "search", "shrink"]


_NOWHERE = Path(os.devnull)
"""Where checkpoints of simulated jobs are: in nobody's folder."""


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    events: int
    survivors: int
    """Workers that came to the end of the training."""
    recoveries: int
    """Memberships that were sealed."""
    worst_messages: float
    """The most tokens that one worker sent in a recovery, per loss."""
    graduates: int
    """Newcomers that came to train."""
    switched: Sequence[Sequence[str]]
    """From which strategy workers changed to which, change by change."""


def execute(
    schedule: Schedule, transcript: list[str] | None = None, trace_to: Path | None = None
) -> Outcome:
    """Run a schedule to its end; raises if a promise breaks, `Violation`, `Hang` or whatever.

    ``transcript`` gets a line for each event that matters, ``trace_to`` the trace of the run.
    """
    simulation = Simulation(
        schedule.membership,
        schedule.seed,
        schedule.kills,
        schedule.delays,
        schedule.arrivals,
        schedule.notices,
        in_place=schedule.seed % 2 == 0,
        weighs=schedule.seed % 4 == 1,
        stop=schedule.stop,
    )
    simulation.workers.transcript = transcript
    members = simulation.membership.ids
    every = schedule.checkpoint_every
    checker = Checker(
        members,
        *dealt(schedule),
        simulation.deaths,
        every,
        schedule.arrays,
        schedule.strategies,
    )
    simulation.builds.sealed = checker.sealed
    file = Trace(trace_to, lambda: simulation.time.now)
    book = Book(checker, file)

    launcher = Launcher(simulation, checker) if schedule.arrivals else None

    def script(worker: WorkerId, newcomer: WorkerId | None) -> Steps[int]:
        settings = Settings(
            newcomer=newcomer,
            min_workers=schedule.min_workers,
            checkpoint=None if every is None else _NOWHERE,
            checkpoint_every=every,
        )
        trainee = Trainee(
            worker, simulation, checker, book, settings, schedule, launcher, __version__
        )
        return trainee.script()

    simulation.newcomer = lambda worker: script(worker, worker)
    for worker in members:
        simulation.start(worker, script(worker, None))
    try:
        simulation.run()
        checker.over()
    finally:
        file.close()
        simulation.close()
    return Outcome(
        simulation.time.events,
        len(checker.ends),
        checker.recoveries,
        checker.worst_messages,
        checker.graduates,
        [(schedule.widened(before), schedule.widened(after)) for before, after in checker.switched],
    )


@cache
def length(workers: int, passes: int, arrays: int) -> int:
    """Events of a run of so many workers, passes and arrays to which nothing happens."""
    return execute(Schedule(workers, 0, passes=passes, arrays=arrays)).events


def search(
    campaign: Campaign, numbers: Iterable[int], tell: Callable[[int, Outcome], None]
) -> int | None:
    """The first of these numbers whose schedule breaks a promise; ``tell`` hears of the others."""
    for number in numbers:
        outcome = outcome_of(campaign.schedule(number, length))
        if isinstance(outcome, str):
            return number
        tell(number, outcome)
    return None


@dataclass(frozen=True)
class Finding:
    """A schedule that breaks a promise, less the faults that it does not need."""

    schedule: Schedule
    failure: str
    transcript: list[str]


def shrink(schedule: Schedule) -> Finding:
    """Drop every fault without which ``schedule`` still fails; ValueError if it never does."""
    smallest, before = schedule, None
    while smallest != before:  # what could not be spared with another one may be without it
        before = smallest
        for kind in KINDS:
            for fault in getattr(before, kind):
                fewer = smallest.without(fault)
                if isinstance(outcome_of(fewer), str):
                    smallest = fewer
    transcript: list[str] = []
    failure = outcome_of(smallest, transcript)
    if not isinstance(failure, str):
        raise ValueError("this run breaks no promise")
    return Finding(smallest, failure, transcript)


def outcome_of(schedule: Schedule, transcript: list[str] | None = None) -> Outcome | str:
    """What ``schedule`` comes to, or how it fails."""
    try:
        return execute(schedule, transcript)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the run that shows it matters
        return f"{type(failure).__name__}: {failure}"
