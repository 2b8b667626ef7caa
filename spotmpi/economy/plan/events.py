"""One training on nodes that come and go, from event to event.

Between two events the cluster is the same, and so is its speed: work done is conserved, and with k
of n equal workers gone after a share f of the time T0 it takes f T0 + (1 - f) T0 n / (n - k).
What a loss costs beside that is the `Runtime`'s: spotmpi stands still for a moment and goes on,
a system that restarts goes back to its last checkpoint and starts all processes again.

Nothing here draws a number but from the generator that it is given. Seconds and dollars.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spotmpi.economy.market.availability import Availability
from spotmpi.economy.market.lifetimes import Lifetime
from spotmpi.economy.market.prices import Billing, cost

__all__ = ["Fallback", "Moment", "Result", "Training", "Runtime", "Staff", "train"]

_EVENTS = 200_000
"""A training with so many events, and as many more for a thousand workers, is given up: it is some
of those in which nodes live for milliseconds, which never end."""

_MOMENT = 1e-3
"""Seconds that do not matter to a deadline."""

Counts = tuple[int, ...]
"""How many workers of each `Staff`, in the order of the `Training`."""


@dataclass(frozen=True)
class Runtime:
    """What a change of the cluster costs, and what checkpoints do."""

    name: str
    loss_s: float
    """All stand still for so long when workers are lost."""
    join_s: float
    """All stand still for so long when workers come, or leave as they were told to."""
    leaves: bool
    """Whether a worker with a notice leaves at once, so that its loss later costs nothing. It is
    paid until it is gone."""
    rolls_back: bool
    """Whether a loss undoes what was done since the last checkpoint. Where nobody is left, it does
    so with any runtime."""
    restart_s: float
    """A start of all processes from a checkpoint: after the loss of everybody, or of the server."""
    checkpoint_every_s: float
    """Seconds of training from one checkpoint to the next; infinite: none."""
    checkpoint_s: float
    """All stand still for so long while one is written."""

    @property
    def pace(self) -> float:
        """Seconds of training in a second, checkpoints being written in the rest."""
        every = self.checkpoint_every_s
        return every / (every + self.checkpoint_s) if math.isfinite(every) else 1.0


@dataclass(frozen=True)
class Staff:
    """Equal workers: how many are wanted, what one costs, and how long one has it."""

    name: str
    wanted: int
    dollars_per_hour: float
    lifetime: Lifetime
    notice_s: float
    replacement_s: float
    """From a loss until another one works in its place; infinite: nobody comes."""
    boot_s: float = 0.0
    """The last part of that, or all of it, is paid: from the node's creation to its first step."""
    coming: int = 0
    """Of those that are wanted, how many are not there at the beginning, and begin ..."""
    coming_s: float = 0.0
    """... so much later, being paid from the beginning; the others train meanwhile."""
    hired: int = 0
    """Nodes on demand that train at the beginning (`Fallback`), in the place of as many others."""


@dataclass(frozen=True)
class Fallback:
    """On-demand nodes in the place of spot nodes that are missing, so that training is in time.

    They come, after their boot, as soon as less is done than an even pace would have done, or when
    what is left and two boots reach the time that is left; they go when a spot node has come in
    their place, in that last case they stay. (`deadlines` says more of it, and of equal nodes.)
    """

    deadline_s: float
    dollars_per_hour: Sequence[float]
    """Of one node of each staff."""


@dataclass(frozen=True)
class Training:
    """A training on a cluster, all that happens by chance apart."""

    staff: Sequence[Staff]
    speed: Callable[[Counts], float]
    """Which part of the training a cluster of these counts does in a second; must be pure."""
    billing: Billing
    server: Staff | None = None
    """Parameter servers. The loss of one is the loss of everybody's place in the training."""
    availability: Availability | None = None
    """How many workers there are at most, and when; for a staff of one kind, whose lifetimes it
    replaces."""
    together: float = 0.0
    """The part of the nodes of a staff that go as one: each is one of them with this probability,
    and lives as long as they do. How long one node lives does not depend on it."""
    zone: float = 0.0
    """The same of all nodes, of whichever staff: the part of them that go as one, before those of
    one staff are looked at. When they go is drawn from the lifetime of one node of the whole
    cluster, so that a node lives as long as before where all staffs live equally long, and else
    on average over the cluster."""
    fallback: Fallback | None = None
    ready_s: float = 0.0
    """All stand still for so long at the beginning, and are paid."""
    give_up_s: float = 365 * 24 * 3600.0
    """A training that takes longer counts as one that never ends."""


class Moment(NamedTuple):
    """From here on the cluster is so large, and this much of the training was done."""

    at_s: float
    workers: int
    done: float


@dataclass
class Result:
    """How one training went."""

    seconds: float = math.inf
    """Infinite: it never ended."""
    dollars: float = 0.0
    """What was paid until it ended, or was given up."""
    losses: int = 0
    """Workers; a server's loss is not counted."""
    joins: int = 0
    hired_s: float = 0.0
    """Node seconds on demand, in the place of spot nodes."""
    undone: float = 0.0
    """The part of the training that was done again."""
    timeline: list[Moment] = field(default_factory=list)


def train(
    training: Training, runtime: Runtime, chance: np.random.Generator, *, timeline: bool = False
) -> Result:
    """Live through one training. The same generator's state gives the same one, for any runtime."""
    return _Course(training, runtime, chance, timeline).run()


def _supply(availability: Availability, offset_s: float) -> Iterator[tuple[float, int]]:
    """Again and again: how many nodes there are, and until when."""
    times, counts = availability.from_offset(offset_s)
    begin = 0.0
    while True:
        for until, count in zip([*times[1:], availability.length_s], counts, strict=True):
            yield begin + float(until), int(count)
        begin += availability.length_s


class _Kind:
    """What happens, in the order in which it does where several do at one moment."""

    NOTICE, LOST, COME, SERVER_LOST, SUPPLY, READY, LOOK, FIRST = range(8)


class _Course:
    """The state between two events."""

    def __init__(
        self, training: Training, runtime: Runtime, chance: np.random.Generator, timeline: bool
    ) -> None:
        self._training, self._runtime, self._chance = training, runtime, chance
        self._now, self._until = 0.0, training.ready_s
        """`_until`: all stand still until then."""
        self._done = self._saved = self._since = 0.0
        """`_since`: seconds of training since the last checkpoint."""
        self._counts = [0] * len(training.staff)
        self._go_at = [0.0] * len(training.staff)
        """When those of a staff that go as one go next; not after now: it is drawn when needed."""
        self._zone_goes_at = 0.0
        """The same of those of all staffs."""
        self._born: list[dict[int, float]] = [{} for _ in training.staff]
        self._events: list[tuple[float, int, int, int]] = []
        """At, kind, staff, worker (or which server)."""
        self._next = 0
        self._hired: list[dict[int, float]] = [{} for _ in training.staff]
        """On-demand workers, and since when each is paid."""
        self._ready = [0] * len(training.staff)
        """How many of them train."""
        self._look = math.inf
        """When the next `_Kind.LOOK` counts; earlier ones have been overtaken."""
        self._left: set[int] = set()
        """Workers that left after a notice and are still paid."""
        self._servers: dict[int, float] = {}
        """Since when each is there."""
        self._outcome = Result()
        self._timeline = timeline
        self._supply: Iterator[tuple[float, int]] | None = None
        self._speed = 0.0
        self._pace = runtime.pace
        wanted = tuple(staff.wanted for staff in training.staff)
        self._full = 0.0 if training.fallback is None else training.speed(wanted) * self._pace

    def run(self) -> Result:
        self._open()
        limit = self._training.give_up_s
        most = _EVENTS * (1 + sum(staff.wanted for staff in self._training.staff) / 1000)
        for events in itertools.count():
            end = self._end()
            if not self._events or end <= self._events[0][0]:
                if end <= limit:
                    self._outcome.seconds = end
                break
            if self._events[0][0] > limit or events > most:
                limit = min(limit, self._events[0][0])
                break
            at, kind, staff, worker = heapq.heappop(self._events)
            self._advance(at)
            self._happen(kind, staff, worker)
        self._close(min(self._end(), limit))
        return self._outcome

    # The beginning and the end.

    def _open(self) -> None:
        training = self._training
        if training.availability is not None:
            offset = self._chance.random() * training.availability.length_s
            self._supply = _supply(training.availability, offset)
            self._supplied()
        else:
            for index, staff in enumerate(training.staff):
                lives = staff.lifetime.sample(self._chance, staff.wanted)
                there = staff.wanted - staff.coming - staff.hired
                for life in lives[:there].tolist():
                    self._begin(index, self._with_others(index, life), 0.0)
                for _ in range(staff.coming):
                    heapq.heappush(self._events, (staff.coming_s, _Kind.FIRST, index, -1))
                for _ in range(staff.hired):
                    self._hired[index][self._next] = 0.0
                    self._ready[index] += 1
                    self._next += 1
        if training.server is not None:
            for number in range(training.server.wanted):
                self._watch_server(number, 0.0)
        self._changed()

    def _close(self, at: float) -> None:
        if not math.isfinite(at):  # nobody is left and nobody will come: paid is what was used
            at = self._now
        self._advance(at)
        for index, born in enumerate(self._born):
            for since in born.values():
                self._pay(at - since, self._training.staff[index].dollars_per_hour)
            for since in self._hired[index].values():
                self._pay_hired(index, at - since)
        if (server := self._training.server) is not None:
            for since in self._servers.values():
                self._pay(max(0.0, at - since), server.dollars_per_hour)
        if self._timeline:
            last = self._outcome.timeline[-1]
            self._outcome.timeline.append(Moment(at, last.workers, self._done))

    def _pay(self, seconds: float, dollars_per_hour: float) -> None:
        self._outcome.dollars += cost(seconds, dollars_per_hour, self._training.billing)

    def _pay_hired(self, index: int, seconds: float) -> None:
        fallback = self._training.fallback
        assert fallback is not None
        self._outcome.hired_s += seconds
        self._pay(seconds, fallback.dollars_per_hour[index])

    # Time.

    def _end(self) -> float:
        """When training ends if nothing happens any more."""
        if self._speed <= 0:
            return math.inf
        return max(self._now, self._until) + (1 - self._done) / (self._speed * self._pace)

    def _advance(self, to: float) -> None:
        """Train until ``to``, with a checkpoint now and then."""
        begin = max(self._now, self._until)
        self._now = to
        if to <= begin or self._speed <= 0:
            return
        trained = (to - begin) * self._pace
        every = self._runtime.checkpoint_every_s
        written = math.floor((self._since + trained) / every) if math.isfinite(every) else 0
        if written:
            self._saved = self._done + (written * every - self._since) * self._speed
        self._since += trained - written * (every if written else 0.0)
        self._done += trained * self._speed

    # Events.

    def _happen(self, kind: int, staff: int, worker: int) -> None:
        if kind == _Kind.LOOK and self._now < self._look:
            return
        if kind == _Kind.NOTICE:
            self._noticed(staff, worker)
        elif kind == _Kind.LOST:
            self._lost(staff, worker)
        elif kind == _Kind.COME:
            self._come(staff)
        elif kind == _Kind.FIRST:
            self._come(staff, self._now)
        elif kind == _Kind.SERVER_LOST:
            self._server_lost(worker)
        elif kind == _Kind.SUPPLY:
            self._supplied()
        elif kind == _Kind.READY:
            self._hired_ready(staff, worker)
        self._changed()

    def _begin(self, index: int, life: float, booted_s: float) -> None:
        """A worker of this staff begins now and lives for so long; it is paid for its boot, too."""
        staff, worker = self._training.staff[index], self._next
        self._next += 1
        self._counts[index] += 1
        self._born[index][worker] = self._now - booted_s
        if math.isfinite(life):
            gone = self._now + life
            heapq.heappush(self._events, (gone, _Kind.LOST, index, worker))
            if staff.notice_s > 0:
                told = max(self._now, gone - staff.notice_s)
                heapq.heappush(self._events, (told, _Kind.NOTICE, index, worker))

    def _with_others(self, index: int, life: float) -> float:
        """How long a worker that begins now lives: by itself, or as long as those that go as one.

        When these go next was drawn after they went last, so that of those that begin in between
        only a lifetime that forgets its age is kept exactly."""
        training = self._training
        if training.zone and self._chance.random() < training.zone:
            if self._zone_goes_at <= self._now:
                self._zone_goes_at = self._now + self._life_of_any()
            return self._zone_goes_at - self._now
        if not training.together:
            return life
        if self._go_at[index] <= self._now:
            next_life = self._training.staff[index].lifetime.sample(self._chance, 1)
            self._go_at[index] = self._now + float(next_life[0])
        one_of_them = self._chance.random() < self._training.together
        return self._go_at[index] - self._now if one_of_them else life

    def _life_of_any(self) -> float:
        """How long one of all nodes of the cluster lives."""
        all_of_them = [staff for staff in self._training.staff for _ in range(staff.wanted)]
        staff = all_of_them[int(self._chance.random() * len(all_of_them))]
        return float(staff.lifetime.sample(self._chance, 1)[0])

    def _noticed(self, index: int, worker: int) -> None:
        """Another one is asked for at once, and what a loss would undo is written down."""
        self._replace(index)
        leaves = self._runtime.leaves
        endangered = self._there() == 1 if leaves else self._runtime.rolls_back
        if endangered and self._runtime.checkpoint_s <= self._training.staff[index].notice_s:
            self._checkpoint()
            self._stand_still(self._runtime.checkpoint_s)
        if leaves:
            self._left.add(worker)
            self._gone(index, self._runtime.join_s)

    def _lost(self, index: int, worker: int) -> None:
        staff = self._training.staff[index]
        self._outcome.losses += 1
        self._pay(self._now - self._born[index].pop(worker), staff.dollars_per_hour)
        if worker in self._left:
            self._left.remove(worker)
            return
        if staff.notice_s <= 0:
            self._replace(index)
        if self._runtime.rolls_back:
            self._roll_back()
        self._gone(index, self._runtime.loss_s)

    def _gone(self, index: int, pause_s: float) -> None:
        """One fewer trains."""
        self._counts[index] -= 1
        if self._there():
            self._stand_still(pause_s)
        else:
            self._roll_back()

    def _replace(self, index: int) -> None:
        staff = self._training.staff[index]
        if self._supply is None and math.isfinite(staff.replacement_s):
            at = self._now + staff.replacement_s
            heapq.heappush(self._events, (at, _Kind.COME, index, -1))

    def _there(self) -> int:
        """How many train, those on demand among them."""
        return sum(self._counts) + sum(self._ready)

    def _come(self, index: int, booted_s: float | None = None) -> None:
        """``booted_s``: it is paid for so long already; None: for its boot."""
        if self._hired[index] and self._slack() <= _MOMENT:
            return  # what is on demand stays, as another loss would be one too many
        self._outcome.joins += 1
        first = not self._there()
        life, staff = math.inf, self._training.staff[index]
        if booted_s is None:
            booted_s = 0.0 if self._supply is not None else min(staff.boot_s, staff.replacement_s)
        if self._supply is None:
            life = self._with_others(index, float(staff.lifetime.sample(self._chance, 1)[0]))
        self._begin(index, life, booted_s)
        if first:
            self._stand_still(self._runtime.restart_s)
        elif self._counts[index] <= self._training.staff[index].wanted:
            if self._runtime.rolls_back:  # it starts again from what `join_s` writes
                self._checkpoint()
            self._stand_still(self._runtime.join_s)

    def _supplied(self) -> None:
        """The market has as many nodes as the trace says, until it says something else."""
        assert self._supply is not None
        until, count = next(self._supply)
        staff = self._training.staff[0]
        have = self._counts[0]
        for worker in list(self._born[0])[: max(0, have - count)]:
            self._lost(0, worker)
        for _ in range(min(count, staff.wanted) - have):
            if self._now == 0:
                self._begin(0, math.inf, 0.0)
            else:
                self._come(0)
        heapq.heappush(self._events, (until, _Kind.SUPPLY, 0, -1))

    def _watch_server(self, number: int, begin: float) -> None:
        """A server begins then, and is lost some day."""
        assert self._training.server is not None
        life = float(self._training.server.lifetime.sample(self._chance, 1)[0])
        self._servers[number] = begin
        if math.isfinite(gone := begin + life):
            heapq.heappush(self._events, (gone, _Kind.SERVER_LOST, 0, number))

    def _server_lost(self, number: int) -> None:
        server = self._training.server
        assert server is not None
        self._pay(self._now - self._servers[number], server.dollars_per_hour)
        pause = server.replacement_s + self._runtime.restart_s
        if 0 < server.notice_s >= self._runtime.checkpoint_s:
            self._checkpoint()
            pause += self._runtime.checkpoint_s
        self._roll_back()
        self._stand_still(pause)
        self._watch_server(number, self._now + server.replacement_s)

    # On demand.

    def _slack(self) -> float:
        """Seconds until nothing but on demand is in time."""
        fallback = self._training.fallback
        if fallback is None:
            return math.inf
        boots = 2 * max(staff.boot_s for staff in self._training.staff)
        return fallback.deadline_s - self._now - (1 - self._done) / self._full - boots

    def _cover(self) -> None:
        """Hire what is missing if it must be; let go who is replaced."""
        fallback = self._training.fallback
        if fallback is None:
            return
        slack = self._slack()
        ahead = self._done - self._now / fallback.deadline_s
        for index, staff in enumerate(self._training.staff):
            missing = staff.wanted - self._counts[index] - len(self._hired[index])
            if missing > 0 and (slack <= _MOMENT or ahead < 0):
                for _ in range(missing):
                    self._hire(index)
            for _ in range(-missing if slack > _MOMENT else 0):
                self._let_go(index)

    def _look_again(self) -> None:
        """When `_cover` may have to hire, if nothing else happens before."""
        fallback = self._training.fallback
        if fallback is None:
            return
        slack, ahead = self._slack(), self._done - self._now / fallback.deadline_s
        speed = self._speed * self._pace if self._until <= self._now else 0.0
        waits = [self._until - self._now] if self._until > self._now else []
        if speed < self._full and slack > 0:
            waits.append(slack / (1 - speed / self._full))
        if speed * fallback.deadline_s < 1 and ahead >= 0:
            waits.append(ahead / (1 / fallback.deadline_s - speed))
        self._look = self._now + max(min(waits, default=math.inf), 2 * _MOMENT)
        if waits:
            heapq.heappush(self._events, (self._look, _Kind.LOOK, -1, -1))

    def _hire(self, index: int) -> None:
        self._hired[index][self._next] = self._now
        at = self._now + self._training.staff[index].boot_s
        heapq.heappush(self._events, (at, _Kind.READY, index, self._next))
        self._next += 1

    def _hired_ready(self, index: int, worker: int) -> None:
        if worker not in self._hired[index]:  # it was let go while it booted
            return
        self._stand_still(self._runtime.join_s if self._there() else self._runtime.restart_s)
        self._ready[index] += 1

    def _let_go(self, index: int) -> None:
        """The one that came last; the pause of a leave is that of the join that replaces it."""
        if not self._hired[index]:
            return
        _, since = self._hired[index].popitem()
        self._pay_hired(index, self._now - since)
        self._ready[index] = min(self._ready[index], len(self._hired[index]))

    # What they come to.

    def _checkpoint(self) -> None:
        self._saved, self._since = self._done, 0.0

    def _roll_back(self) -> None:
        if self._timeline and self._done > self._saved:  # what is lost was there until now
            last = self._outcome.timeline[-1]
            self._outcome.timeline.append(Moment(self._now, last.workers, self._done))
        self._outcome.undone += self._done - self._saved
        self._done, self._since = self._saved, 0.0

    def _stand_still(self, seconds: float) -> None:
        self._until = max(self._until, self._now + seconds)

    def _changed(self) -> None:
        self._cover()
        # Whoever comes before the one that it replaces is gone waits for that.
        there = tuple(
            min(count + ready, staff.wanted)
            for count, ready, staff in zip(
                self._counts, self._ready, self._training.staff, strict=True
            )
        )
        self._speed = self._training.speed(there) if any(there) else 0.0
        self._look_again()
        if self._timeline:
            self._outcome.timeline.append(Moment(self._now, sum(there), self._done))
