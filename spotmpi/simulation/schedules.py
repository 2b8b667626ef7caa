"""Schedules of faults: what befalls one simulated job, and seeded draws of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from spotmpi.arrays.narrowing import FORMATS
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice
from spotmpi.fabric.sim.timeline import Delays
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.simulation.model import LARGE, SEVERAL, SMALL

PLANS = 0.5
"""Of all schedules: those with newcomers and with workers that are told to leave."""

KEEPING = 0.5
"""Of all schedules: those that keep checkpoints."""

STRATEGIES = (
    "ssgd",
    "lookahead:every=2,mix=0.25",
    "localsgd:h=2",
    "localsgd:h=3",
    "sma:pull=0.75,momentum=0.5",
    "easgd:every=2,pull=0.5",
    "hogwild:control=4",
    "diloco:h=2,outer=0.5,momentum=0.75",
    "parameterserver:shards=2,control=4",
    "diloco:h=4,outer=0.5,momentum=0.75,quorum=0.5,grace=0.002",
    "diloco:h=6,outer=0.5,momentum=0.75,fragments=2,delay=2,mix=0.5",
    "adpsgd:control=3",
    "gossip:control=4",
)
"""Those of campaigns of all strategies."""

NARROW = 0.25
"""Of all schedules: those whose sums are narrowed."""

CHANGES = 0.25
"""Of all schedules: those in which the strategy changes."""

KINDS = ("asks", "changes", "refusals", "arrivals", "notices", "kills")
"""What can be dropped from a schedule, one by one."""

_STEPS = 6
"""Of a whole run, more or less."""

_PASSES = 2

_TO_TRAIN = 80
"""Events of each worker until a newcomer has learnt, more or less."""

_KNOWN = 16
"""The length of runs of more workers follows from that of runs of so many."""


@dataclass(frozen=True)
class Ask:
    """The script of ``worker`` asks for a checkpoint once it has taken so many steps."""

    worker: WorkerId
    steps: int


@dataclass(frozen=True)
class Refusal:
    """From one event to another no checkpoint can be written: the disk is full."""

    begin: int
    end: int


@dataclass(frozen=True)
class Change:
    """After so many steps all scripts want to go on with another strategy."""

    after: int
    strategy: str


@dataclass(frozen=True)
class Schedule:
    """One run: everything about it follows from these."""

    workers: int
    seed: int
    kills: tuple[Kill, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    notices: tuple[LeaveNotice, ...] = ()
    stop: int | None = None
    """The event at which all are told to stop."""
    min_workers: int = 1
    size: int = SMALL
    """Parameters of the model."""
    passes: int = _PASSES
    """Over the samples: three steps each, more or less."""
    checkpoint_every: int | None = None
    """A checkpoint is due whenever so many steps are done; None: none is written, ever."""
    asks: tuple[Ask, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    arrays: int = 1
    """So many are trained, each in a bucket of its own; scripts give the gradients of several array
    by array now and then."""
    narrow: str | None = None
    """Sums are narrowed like this on their way between hosts."""
    strategy: str = "ssgd"
    """With all its options."""

    changes: tuple[Change, ...] = ()
    """Scripts want these, one after the other."""

    @property
    def strategies(self) -> tuple[str, ...]:
        """All that it may come to follow, each once, by their names."""
        named = (self.strategy, *(one.strategy for one in self.changes))
        return tuple(dict.fromkeys(map(self.name_of, named)))

    def name_of(self, strategy: str) -> str:
        """With sums as narrow as they are in this run."""
        if self.narrow is None:
            return strategy
        return f"{strategy}{',' if ':' in strategy else ':'}narrow={self.narrow}"

    def widened(self, name: str) -> str:
        """The strategy of this name, however narrow its sums are."""
        return name.removesuffix(f"narrow={self.narrow}").rstrip(",:")

    @property
    def membership(self) -> Membership:
        """Those that it begins with."""
        return Membership.first(["sim"] * self.workers)

    @property
    def delays(self) -> Delays:
        """Other proportions in each run: what is usually slow may be fast, and the reverse."""
        chance = random.Random(self.seed)
        usual = Delays()
        longest = {
            f.name: getattr(usual, f.name) * 10 ** chance.uniform(-1, 1) for f in fields(usual)
        }
        return Delays(**longest)

    def without(self, fault: object) -> Schedule:
        """The same less one of its kills, arrivals, notices, asks, refusals or changes."""
        kept: dict[str, Any] = {
            kind: tuple(one for one in getattr(self, kind) if one is not fault) for kind in KINDS
        }
        return replace(self, **kept)

    def __str__(self) -> str:
        """What befalls its workers."""
        said = [f"worker {one.worker} dies at event {one.at}" for one in self.kills]
        said += [f"worker {one.worker} comes at event {one.at}" for one in self.arrivals]
        said += [f"worker {one.worker} is told to leave at event {one.at}" for one in self.notices]
        if self.stop is not None:
            said.append(f"all are told to stop at event {self.stop}")
        if self.checkpoint_every is not None:
            said.append(f"a checkpoint is due after every {self.checkpoint_every} steps")
        said += [
            f"worker {one.worker} asks for a checkpoint after step {one.steps}" for one in self.asks
        ]
        said += [
            f"the disk is full from event {one.begin} to event {one.end}" for one in self.refusals
        ]
        if self.arrays > 1:
            said.append(f"gradients come in {self.arrays} pieces")
        if self.narrow is not None:
            said.append(f"sums are narrowed to {self.narrow}")
        if self.strategy != "ssgd":
            said.append(f"the strategy is {self.strategy}")
        said += [f"it is to be {one.strategy} after step {one.after}" for one in self.changes]
        if self.min_workers > 1:
            said.append(f"fewer than {self.min_workers} workers stop")
        return ", ".join(said) or "nothing happens at all"


Length = Callable[[int, int, int], int]
"""How many events a run of so many workers, passes and arrays takes to which nothing happens."""


@dataclass(frozen=True)
class Campaign:
    """Numbered schedules, each of which follows from its number and the campaign."""

    least: int
    most: int
    """Workers: each schedule draws how many."""
    seed: int
    losses: int | None = None
    """So many workers die at one moment, and nothing else happens; None: all kinds of things do."""
    strategies: tuple[str, ...] = ("ssgd",)
    """Each schedule draws one."""
    changing: bool = False
    """The strategy changes in all schedules; False: in a part of them, as `CHANGES` says."""

    def schedule(self, number: int, length: Length) -> Schedule:
        """Mostly one death or more, close to each other; now and then all die.

        Many begin in the last events, where training ends: few moments, and many ways to go wrong.
        """
        chance = random.Random(f"{self.seed}/{number}")
        # Small rings more often: there most goes wrong, and fastest.
        workers = min(chance.randint(self.least, self.most) for _ in range(2))
        plans = self.losses is None and chance.random() < PLANS
        # A job of few workers has few events, and would be over before anybody could join.
        passes = _PASSES + (1 + _STEPS // workers if plans else 0)
        known = min(workers, _KNOWN)
        arrays = 1 + number % 3
        events = length(known, passes, arrays) * workers // known
        # With dice of its own, so that all else is the same whatever may be drawn here.
        strategy = random.Random(f"{self.seed}/{number}/strategy").choice(self.strategies)
        calm = Schedule(
            workers,
            chance.randrange(1 << 32),
            passes=passes,
            arrays=arrays,
            strategy=strategy,
        )
        moment = chance.randrange(events)
        if self.losses is not None:
            victims = chance.sample(range(workers), min(self.losses, workers))
            return replace(calm, kills=tuple(Kill(victim, moment) for victim in victims))
        if chance.random() < 0.2:
            moment = max(0, events - 1 - chance.randrange(30 * workers))
        kills, moment = _kills(workers, events, moment, chance)
        schedule = replace(calm, kills=kills)
        if plans:
            schedule = _with_plans(schedule, chance, moment, events)
        if chance.random() < 0.05:
            soon = max(0, moment - chance.randrange(40 * workers))
            schedule = replace(schedule, stop=chance.choice((soon, chance.randrange(events))))
        if chance.random() < 0.05:
            schedule = replace(schedule, min_workers=chance.randint(1, workers))
        if chance.random() < KEEPING:
            schedule = _with_checkpoints(schedule, chance, moment, events)
        dice = random.Random(f"{self.seed}/{number}/changes")
        if dice.random() < CHANGES or self.changing:
            most = _STEPS * passes // _PASSES
            many = dice.choice((1, 1, 2, 3))
            after = sorted(dice.randrange(most) for _ in range(many))
            changes = tuple(Change(step, dice.choice(STRATEGIES)) for step in after)
            schedule = replace(schedule, changes=changes)
        if chance.random() < NARROW:
            size = max(schedule.size, SEVERAL)
            schedule = replace(schedule, narrow=chance.choice(FORMATS), size=size)
        return schedule


def _kills(
    workers: int, events: int, moment: int, chance: random.Random
) -> tuple[tuple[Kill, ...], int]:
    losses = 1 + int(chance.expovariate(0.5))
    if chance.random() < 0.1:
        losses = chance.randint(1, workers)
    elif workers > 1:
        losses = min(losses, workers - 1)
    losses = min(losses, workers)
    # Now and then those who lead, in turn: each is to do what the one before has left undone.
    victims = range(losses) if chance.random() < 0.25 else chance.sample(range(workers), losses)
    kills = []
    for victim in victims:
        kills.append(Kill(victim, moment))
        # In the same recovery, in the round that it makes up for, or at any other time.
        if near := chance.choice((8, 8, 40, 40, 0)):
            moment += chance.randrange(near * workers)
        else:
            moment = chance.randrange(events)
    return tuple(kills), moment


def _with_checkpoints(
    schedule: Schedule, chance: random.Random, moment: int, events: int
) -> Schedule:
    """Checkpoints after every so many steps, or whenever somebody asks; and often the first leader
    dies, who would write them, or the disk is full."""
    workers = schedule.workers
    many = chance.choice((0, 0, 1, 2, 3))
    asks = tuple(Ask(chance.randrange(workers), chance.randrange(_STEPS)) for _ in range(many))
    every = chance.randint(1, _STEPS + 1)
    kills = schedule.kills
    if workers > 1 and chance.random() < 0.5:
        near = max(0, moment + chance.randrange(-20 * workers, 20 * workers))
        kills = *kills, Kill(0, chance.choice((near, chance.randrange(events))))
    refusals: tuple[Refusal, ...] = ()
    if chance.random() < 0.3:  # at some time, or from when all that is left is to keep the end
        begin = chance.randrange(events)
        refusals = (Refusal(begin, begin + chance.randrange(2 * events)),)
    # Long enough, at times, to see who has taken over what a leader was to write.
    passes = schedule.passes + chance.choice((0, 0, 2))
    return replace(
        schedule,
        kills=kills,
        asks=asks,
        checkpoint_every=every,
        refusals=refusals,
        passes=passes,
    )


def _with_plans(schedule: Schedule, chance: random.Random, moment: int, events: int) -> Schedule:
    """Newcomers as well, some of whom die or are told to leave, or lose the member that brings
    them in, or all members; and members who are told to leave."""
    workers = schedule.workers
    arrivals, kills, notices = [], list(schedule.kills), []
    for number in range(chance.choice((0, 1, 1, 2, 3))):
        at = chance.randrange(events)
        if chance.random() < 0.5:  # around the loss
            at = max(0, moment - chance.randrange(_TO_TRAIN * workers))
        newcomer = Arrival(workers + number, at)
        arrivals.append(newcomer)
        soon = at + chance.randrange(_TO_TRAIN * workers)
        fate = chance.random()
        if fate < 0.25:
            kills.append(Kill(newcomer.worker, soon))
        elif fate < 0.4:
            notices.append(LeaveNotice(newcomer.worker, soon))
        elif fate < 0.5 and workers > 1:  # the first member is the sponsor, if it lives
            kills.append(Kill(0, soon))
        elif fate < 0.6:  # soon after it has learnt it is alone
            soon = at + chance.randrange(_TO_TRAIN // 2, 2 * _TO_TRAIN) * workers
            kills += (Kill(one, soon + chance.randrange(8 * workers)) for one in range(workers))
    if arrivals and chance.random() < 0.1:
        schedule = replace(schedule, size=LARGE)
    for worker in range(workers):
        if chance.random() < 0.15:
            near = max(0, moment - chance.randrange(40 * workers))
            notices.append(LeaveNotice(worker, chance.choice((near, chance.randrange(events)))))
    return replace(schedule, kills=tuple(kills), arrivals=tuple(arrivals), notices=tuple(notices))
