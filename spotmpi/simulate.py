"""Campaigns against the protocol: seeded schedules, deaths at any event, checks after each.

A small replica stands in for the trainer: its parameters are a fingerprint of everything that it
ever committed, its gradient a fingerprint of the samples it was dealt. The driver, the recovery,
the ledger, the sampler and the journal are the real ones.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

import numpy as np

from spotmpi import __version__
from spotmpi.channel import Channel
from spotmpi.driver import Driver, Recovered
from spotmpi.errors import UsageError
from spotmpi.fabric import Steps
from spotmpi.fabric.sim import Delays, Kill, Simulation
from spotmpi.journal import Journal
from spotmpi.membership import Membership, WorkerId
from spotmpi.recovery import MESSAGES_OF_AN_END, MESSAGES_PER_LOSS, most_messages
from spotmpi.sampler import Deal, Dealer, Sampler
from spotmpi.trace import Trace

STEPS = 6
"""Training steps of one run, more or less: losses add some."""
BATCH = 3
_MASK = (1 << 64) - 1


class Violation(AssertionError):
    """Something that the protocol promises did not hold."""


def fingerprint(worker: WorkerId, step: int, samples: Sequence[int]) -> int:
    """The stand-in for a gradient: tells who, when and which samples."""
    return hash((worker, step, *samples)) & _MASK


def _gradient(deal: Deal, worker: WorkerId) -> int:
    return fingerprint(worker, deal.number, deal.of(worker).tolist())


@dataclass
class Court:
    """Sees everything that every worker does, and holds it against the promises."""

    workers: int
    memberships: dict[int, tuple[WorkerId, ...]] = field(default_factory=dict)
    published: dict[int, int] = field(default_factory=dict)
    recoveries: int = 0
    ending: bool = False
    """Somebody has come to the end."""
    worst_messages: float = 0.0
    """The most tokens one worker sent in one recovery, per loss."""
    used: dict[int, list[int]] = field(default_factory=dict)
    """Samples of each pass that count, from published rounds."""
    _committed: dict[int, tuple[int, set[WorkerId]]] = field(default_factory=dict)
    _contributions: dict[tuple[int, tuple[WorkerId, ...]], int] = field(default_factory=dict)

    def member(self, membership: Membership) -> None:
        """A worker trains with ``membership``: one membership per generation."""
        known = self.memberships.setdefault(membership.generation, membership.ids)
        if known != membership.ids:
            raise Violation(
                f"generation {membership.generation} is {known} for some "
                f"and {membership.ids} for others"
            )

    def commit(self, worker: WorkerId, number: int, history: int, alive: Collection[int]) -> None:
        """``worker`` commits round ``number``: no two alive ever differ about one."""
        known, holders = self._committed.setdefault(number, (history, set()))
        if known != history:
            if any(holder in alive for holder in holders):
                raise Violation(
                    f"workers {sorted(holders)} and {worker} differ about round {number}"
                )
            self._committed[number] = history, holders = history, set()
        holders.add(worker)

    def publish(self, worker: WorkerId, number: int, history: int) -> None:
        """``worker`` shows the world round ``number``: it can never be taken back."""
        known = self.published.setdefault(number, history)
        if known != history:
            raise Violation(f"worker {worker} publishes another round {number} than was published")

    def sum_of(
        self, number: int, contributors: Sequence[WorkerId], parts: Callable[[int], int]
    ) -> int:
        """What round ``number`` adds up to over ``contributors``."""
        key = number, tuple(contributors)
        if key not in self._contributions:
            self._contributions[key] = sum(map(parts, contributors)) & _MASK
        return self._contributions[key]

    def recover(self, recovered: Recovered) -> None:
        """A worker came through the door: bounded messages, nothing lost."""
        self.recoveries += 1
        losses = len(recovered.before) - len(recovered.after)
        self.worst_messages = max(self.worst_messages, recovered.messages / max(1, losses))
        if recovered.messages > most_messages(losses, self.ending):
            raise Violation(f"{recovered.messages} messages for {losses} losses")
        self.member(recovered.after)


class _Board(Channel):
    """Knows every death, as the board of a real launcher does; there is nobody to tell."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def tell(self, event: str, **fields: object) -> None:
        """No launcher listens."""

    def death_of(self, worker: int) -> float | None:
        """When ``worker`` died, None if it lives."""
        return self._simulation.deaths.get(worker)


class Replica:
    """One worker of the campaign: the driver's exchange and its script in one."""

    def __init__(
        self, me: WorkerId, simulation: Simulation, court: Court, seed: int, trace: Trace
    ) -> None:
        self.me = me
        self.court = court
        self._alive = simulation.processes
        self.buffers = [np.zeros(1, np.uint64)]
        self.record = [np.zeros(1, np.uint64)]
        self.history: list[int] = []
        self.gradients = 0
        self._published = 0
        self._dealer = Dealer()
        membership = simulation.membership
        self._sampler = Sampler(BATCH * len(membership) * STEPS - 1, BATCH, 1, [seed])
        self._parts: Callable[[WorkerId], int] = lambda _worker: 0
        self._deal: Deal | None = None
        self._clock = simulation.clock
        self._committed_at = 0.0
        # Only a traced run pays for its records.
        self._journal = Journal(trace, _Board(simulation), me) if trace.active else None
        self.driver = Driver(me, membership, self, simulation.clock)

    def script(self) -> Steps[list[int]]:
        """Train, with a round of another kind here and there; return the history."""
        while deal := self._dealer.draw(self._sampler, self.driver.membership):
            self.gradients += 1
            yield from self._round(partial(_gradient, deal), deal)
            if deal.number % 3 == 2:
                yield from self._round(lambda worker: fingerprint(worker, -1, ()))
        yield from self._round(lambda worker: fingerprint(worker, -2, ()))
        self._publish(len(self.history) - 1)  # the end round itself holds nothing to publish
        self.court.ending = True
        yield from self.driver.finish()
        if self._journal is not None:
            self._journal.stable(len(self.history) + 1, self._leader)
            if self._leader == self.me:
                self._journal.trace.write(
                    "end",
                    step=self._dealer.committed,
                    workers=self.driver.membership.ids,
                    outcome="finished",
                )
        return self.history

    @property
    def _leader(self) -> WorkerId:
        return self.driver.membership.ids[0]

    def _round(self, parts: Callable[[WorkerId], int], deal: Deal | None = None) -> Steps[None]:
        self._parts, self._deal = parts, deal
        yield from self.driver.round()

    def _publish(self, rounds: int) -> None:
        for number in range(self._published, rounds):
            self.court.publish(self.me, number, self.history[number])
        self._published = max(self._published, rounds)

    # The driver's exchange.

    def bring(self) -> None:
        """This worker's part of the sum."""
        self.buffers[0][0] = self._parts(self.me)

    def prepare(self, membership: Membership) -> None:
        """Every attempt trains with the membership that all others have."""
        self.court.member(membership)

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """The sum is that of just the contributors, and extends the one history."""
        number = len(self.history)
        got = int(self.buffers[0][0])
        if got != self.court.sum_of(number, contributors, self._parts):
            raise Violation(f"round {number} of worker {self.me} is no sum over {contributors}")
        self.buffers, self.record = self.record, self.buffers
        before = self.history[-1] if self.history else 0
        self.history.append(hash((before, got)))
        self.court.commit(self.me, number, self.history[-1], self._alive)
        self._publish(number)
        if self._journal is not None:
            self._journal.stable(number, self._leader)
        if self._deal is not None:
            self._dealer.count(contributors)
            self._trace_step(number, contributors, self._deal)

    def _trace_step(self, number: int, contributors: Sequence[WorkerId], deal: Deal) -> None:
        if self._journal is None:
            return
        now = self._clock()
        samples = {worker: deal.of(worker) for worker in contributors}
        fields = {
            "step": deal.number,
            "generation": self.driver.ledger.generation,
            "workers": contributors,
            "contributions": [
                {"worker": worker, "samples": part, "weight": len(part)}
                for worker, part in samples.items()
            ],
            "loss": None,
            "rate": None,
            "seconds": now - self._committed_at,
        }
        self._journal.step(number, fields, now, self.gradients - self._dealer.committed)
        self._journal.digested(self.history[-1] & _MASK)
        self._committed_at = now

    def dealt(self) -> tuple[int, int]:
        """From the real dealer."""
        return self._dealer.dealt

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """To the real dealer."""
        self.court.recover(recovered)
        if self._journal is not None:
            self._journal.recovered(recovered)
        self._dealer.resume(recovered.verdict.survey.dealt, dealt_for)


@dataclass(frozen=True)
class Run:
    """One schedule: everything about it follows from these."""

    workers: int
    seed: int
    kills: tuple[Kill, ...]


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    events: int
    survivors: int
    recoveries: int
    worst_messages: float


def execute(run: Run, transcript: list[str] | None = None, trace_to: Path | None = None) -> Outcome:
    """Run one schedule to its end; raises if a promise breaks, `Violation`, `Hang` or whatever.

    ``transcript`` gets a line for each event that matters, ``trace_to`` the trace of the run.
    """
    membership = Membership.first(["sim"] * run.workers)
    simulation = Simulation(membership, run.seed, run.kills, _delays(run.seed))
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
    replicas = {w: Replica(w, simulation, court, run.seed, trace) for w in membership.ids}
    for worker, replica in replicas.items():
        simulation.start(worker, replica.script())
    try:
        simulation.run()
    finally:
        trace.close()
    ends = {tuple(history) for history in simulation.returned.values()}
    if len(ends) > 1:
        raise Violation(f"{len(ends)} different histories at the end")
    for end in ends:
        if any(end[number] != history for number, history in court.published.items()):
            raise Violation("what was published is not what the survivors trained")
    survivors = [replicas[worker] for worker in simulation.returned]
    for replica in survivors:
        steps = replica._dealer.committed
        if replica.gradients != steps:
            raise Violation(f"worker {replica.me}: {replica.gradients} gradients in {steps} steps")
        if replica._dealer.dealt[0] != steps or replica._sampler.deal(membership.ids) is not None:
            raise Violation(f"worker {replica.me} left samples of its pass unused")
    return Outcome(
        simulation.events, len(survivors), len(court.memberships) - 1, court.worst_messages
    )


def _delays(seed: int) -> Delays:
    """Other proportions in each run: what is usually slow may be fast, and the other way round."""
    chance = random.Random(seed)
    usual = Delays()
    longest = {f.name: getattr(usual, f.name) * 10 ** chance.uniform(-1, 1) for f in fields(usual)}
    return Delays(**longest)


def schedules(workers: int, runs: int, seed: int) -> Iterator[Run]:
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
        yield Run(workers, chance.randrange(1 << 32), tuple(kills))


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
    """Drop every kill without which ``run`` still fails; `run` must fail."""
    kills = list(run.kills)
    for kill in run.kills:
        fewer = Run(run.workers, run.seed, tuple(k for k in kills if k is not kill))
        if isinstance(_outcome(fewer), str):
            kills.remove(kill)
    smallest = Run(run.workers, run.seed, tuple(kills))
    transcript: list[str] = []
    failure = _outcome(smallest, transcript)
    if not isinstance(failure, str):
        raise ValueError("this run breaks no promise")
    return Finding(smallest, failure, transcript)


def _outcome(run: Run, transcript: list[str] | None = None) -> Outcome | str:
    try:
        return execute(run, transcript)
    except Exception as failure:  # noqa: BLE001 - whatever it is, the run that shows it matters
        return f"{type(failure).__name__}: {failure}"


# The command: spotmpi simulate protocol.

_PROGRESS_SECONDS = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``spotmpi simulate`` takes."""
    parser.description = (
        "Search for schedules that break a promise of the recovery protocol: workers die at any "
        "event, messages are late, and everything is checked after each event. No MPI is used."
    )
    parser.epilog = "example: spotmpi simulate protocol --workers 16 --runs 2000 --seed 1"
    parser.add_argument("what", choices=["protocol"], help="what to simulate")
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
    for name, least in (("workers", 1), ("runs", 1), ("seed", 0)):
        if getattr(options, name) < least:
            raise UsageError(f"--{name} is {getattr(options, name)}, expected at least {least}")
    if options.trace is not None:
        Trace(options.trace).close()  # a place that cannot be written to is known before the search
    report = _Report(options.workers, options.runs)
    last: list[Run] = []
    failing = search(
        _keep_last(schedules(options.workers, options.runs, options.seed), last), report.add
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
