"""Campaigns against the protocol: seeded schedules, deaths at any event, checks after each.

A small replica stands in for the trainer: its parameters are a fingerprint of everything that it
ever committed, its gradient a fingerprint of the samples it was dealt. The driver, the recovery,
the ledger and the sampler are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from spotmpi.driver import Driver, Recovered
from spotmpi.errors import SpotmpiError
from spotmpi.fabric import Steps
from spotmpi.fabric.sim import Hang, Kill, Simulation
from spotmpi.membership import Membership, WorkerId
from spotmpi.recovery import MESSAGES_PER_LOSS
from spotmpi.sampler import Deal, Dealer, Sampler

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
        losses = max(1, len(recovered.before) - len(recovered.after))
        per_loss = recovered.messages / losses
        self.worst_messages = max(self.worst_messages, per_loss)
        if per_loss > MESSAGES_PER_LOSS:
            raise Violation(f"{recovered.messages} messages for {losses} losses")
        self.member(recovered.after)


class Replica:
    """One worker of the campaign: the driver's exchange and its script in one."""

    def __init__(self, me: WorkerId, simulation: Simulation, court: Court, seed: int) -> None:
        self.me = me
        self.court = court
        self._alive = simulation.processes
        self.contribution = [np.zeros(1, np.uint64)]
        self.scratch = [np.zeros(1, np.uint64)]
        self.record = [np.zeros(1, np.uint64)]
        self.history: list[int] = []
        self.gradients = 0
        self._published = 0
        self._dealer = Dealer()
        membership = simulation.membership
        self._sampler = Sampler(BATCH * len(membership) * STEPS - 1, BATCH, 1, [seed])
        self._parts: Callable[[WorkerId], int] = lambda _worker: 0
        self._stepping = False
        self.driver = Driver(me, membership, self, simulation.clock)

    def script(self) -> Steps[list[int]]:
        """Train, with a round of another kind here and there; return the history."""
        while deal := self._dealer.draw(self._sampler, self.driver.membership):
            self.gradients += 1
            yield from self._round(partial(_gradient, deal), stepping=True)
            if deal.number % 3 == 2:
                yield from self._round(lambda worker: fingerprint(worker, -1, ()))
        yield from self._round(lambda worker: fingerprint(worker, -2, ()))
        self._publish(len(self.history) - 1)  # the end round itself holds nothing to publish
        yield from self.driver.finish()
        return self.history

    def _round(self, parts: Callable[[WorkerId], int], stepping: bool = False) -> Steps[None]:
        self._parts, self._stepping = parts, stepping
        self.contribution[0][0] = parts(self.me)
        yield from self.driver.round()

    def _publish(self, rounds: int) -> None:
        for number in range(self._published, rounds):
            self.court.publish(self.me, number, self.history[number])
        self._published = max(self._published, rounds)

    # The driver's exchange.

    def prepare(self, membership: Membership) -> None:
        """Every attempt trains with the membership that all others have."""
        self.court.member(membership)

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """The sum is that of just the contributors, and extends the one history."""
        number = len(self.history)
        got = int(self.scratch[0][0])
        if got != self.court.sum_of(number, contributors, self._parts):
            raise Violation(f"round {number} of worker {self.me} is no sum over {contributors}")
        self.scratch, self.record = self.record, self.scratch
        before = self.history[-1] if self.history else 0
        self.history.append(hash((before, got)))
        self.court.commit(self.me, number, self.history[-1], self._alive)
        self._publish(number)
        if self._stepping:
            self._dealer.count(contributors)

    def dealt(self) -> tuple[int, int]:
        """From the real dealer."""
        return self._dealer.dealt

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """To the real dealer."""
        self.court.recover(recovered)
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


def execute(run: Run, transcript: list[str] | None = None) -> Outcome:
    """Run one schedule to its end; `Violation`, `Hang` or a spotmpi error if a promise breaks."""
    membership = Membership.first(["sim"] * run.workers)
    simulation = Simulation(membership, run.seed, run.kills)
    simulation.transcript = transcript
    court = Court(run.workers)
    replicas = {w: Replica(w, simulation, court, run.seed) for w in membership.ids}
    for worker, replica in replicas.items():
        simulation.start(worker, replica.script())
    simulation.run()
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


def schedules(workers: int, runs: int, seed: int) -> Iterator[Run]:
    """Seeded runs with one death or more (now and then all), mostly close to each other."""
    length = execute(Run(workers, seed, ())).events
    for number in range(runs):
        chance = random.Random(f"{seed}/{number}")
        losses = min(1 + int(chance.expovariate(0.5)), workers)
        if chance.random() < 0.1:
            losses = chance.randint(1, workers)
        victims = chance.sample(range(workers), losses)
        moment = chance.randrange(length)
        kills = []
        for victim in victims:
            kills.append(Kill(victim, moment))
            near = chance.random() < 0.8
            moment = moment + chance.randrange(8 * workers) if near else chance.randrange(length)
        yield Run(workers, chance.randrange(1 << 32), tuple(kills))


FAILURES = (Violation, Hang, SpotmpiError)


@dataclass(frozen=True)
class Finding:
    """A run that broke a promise, with the faults it does not need dropped."""

    run: Run
    failure: str
    transcript: list[str]


def shrink(run: Run) -> Finding:
    """Drop every kill without which ``run`` still fails; `run` must fail."""
    kills = list(run.kills)
    for kill in run.kills:
        fewer = Run(run.workers, run.seed, tuple(k for k in kills if k is not kill))
        if _failure(fewer) is not None:
            kills.remove(kill)
    smallest = Run(run.workers, run.seed, tuple(kills))
    transcript: list[str] = []
    failure = _failure(smallest, transcript)
    if failure is None:
        raise ValueError("this run breaks no promise")
    return Finding(smallest, failure, transcript)


def _failure(run: Run, transcript: list[str] | None = None) -> str | None:
    try:
        execute(run, transcript)
    except FAILURES as failure:
        return f"{type(failure).__name__}: {failure}"
    return None
