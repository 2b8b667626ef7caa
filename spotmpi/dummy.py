"""The workers of a campaign, and the court that sees all that they do.

A small replica stands in for the trainer: its parameters are a fingerprint of everything that it
ever committed, its gradient a fingerprint of the samples it was dealt. The driver, the recovery,
the ledger, the lessons, the sampler and the journal are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from spotmpi.channel import Channel
from spotmpi.driver import Driver, Recovered
from spotmpi.errors import Left, PeersLost
from spotmpi.fabric import Buffer, Knock, Part, Shape, Steps
from spotmpi.fabric.sim import Simulation
from spotmpi.journal import Journal
from spotmpi.ledger import Ledger
from spotmpi.lessons import Lessons, pack, read, unpack, write
from spotmpi.membership import Membership, WorkerId
from spotmpi.recovery import Plan, most_messages
from spotmpi.sampler import Dealer, Lease, Sampler
from spotmpi.trace import Trace

STEPS = 6
"""Training steps of one run, more or less: losses add some."""
BATCH = 3
CELLS = 3
"""Parts of a worker's state."""
_MASK = (1 << 64) - 1


class Violation(AssertionError):
    """Something that the protocol promises did not hold."""


def fingerprint(worker: WorkerId, step: int, samples: Sequence[int]) -> int:
    """The stand-in for a gradient: tells who, when and which samples."""
    return hash((worker, step, *samples)) & _MASK


def _gradient(deal: Lease, worker: WorkerId) -> int:
    return fingerprint(worker, deal.number, deal.of(worker).tolist())


@dataclass
class Court:
    """Sees everything that every worker does, and holds it against the promises."""

    workers: int
    memberships: dict[int, tuple[WorkerId, ...]] = field(default_factory=dict)
    published: dict[int, int] = field(default_factory=dict)
    recoveries: int = 0
    unasked: set[int] = field(default_factory=set)
    """Generations that a plan, or the training's end, was to end: nobody's death."""
    graduates: int = 0
    """How often somebody saw a newcomer come to know everything."""
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

    def recover(self, recovered: Recovered, turned_away: int) -> None:
        """A worker came through the door: bounded messages, nothing lost.

        A newcomer with whom a build failed (``turned_away``) costs as much as a loss.
        """
        self.recoveries += 1
        losses = len(recovered.losses)
        self.worst_messages = max(self.worst_messages, recovered.messages / max(1, losses))
        unasked = recovered.before.generation in self.unasked
        if recovered.messages > most_messages(losses + turned_away, unasked):
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


_LEAVING, _NEWCOMER, _STOP, _END, _STEP = range(5)
_PAGE = 256
"""Numbers for what goes with the last part of a lesson."""


class Replica:
    """One worker of the campaign: the driver's exchange and its script in one.

    Its state is a few cells, each a fingerprint of all that was ever committed: the parts that a
    newcomer is taught one by one.
    """

    def __init__(
        self, me: WorkerId, simulation: Simulation, court: Court, seed: int, trace: Trace
    ) -> None:
        self.me = me
        self.court = court
        self._simulation = simulation
        self._alive = simulation.processes
        self._sum, self._word, self._page = (
            simulation.arena([Shape("uint64", size)]) for size in (1, 5, 1 + _PAGE)
        )
        self._taught = [False, False]
        """Whether a page goes with the open round, and went with the last."""
        self.cells = [0] * CELLS
        self.history: list[int] = []
        self.first = 0
        """The round that its history begins with."""
        self.gradients = self.since = 0
        """Gradients computed, and steps committed before it trained."""
        self._published = 0
        self._dealer = Dealer()
        membership = simulation.membership
        self._sampler = Sampler(BATCH * len(membership) * STEPS - 1, BATCH, 1, [seed])
        self._parts: Callable[[WorkerId], int] = lambda _worker: 0
        self._deal: Lease | None = None
        self._end = False
        self._lessons = Lessons(CELLS)
        self._teaches = False
        self._leaving = False
        self._due = False
        self._stopping = False
        self._clock = simulation.clock
        self._committed_at = 0.0
        # Only a traced run pays for its records.
        self._journal = Journal(trace, _Board(simulation), me) if trace.active else None
        self.driver = Driver(me, membership, self, simulation.clock)

    # The script.

    def script(self) -> Steps[list[int] | None]:
        """Train, with a round of another kind here and there; return the history."""
        try:
            return (yield from self._train())
        except Left:
            return None

    def late_script(self) -> Steps[list[int] | None]:
        """The same, of a newcomer: it is taught first, until the end of somebody's step."""
        try:
            charter = yield Knock()
        except PeersLost:
            return None
        self._begin(json.loads(charter))
        try:
            while self.me in self._lessons.learning:
                yield from self.driver.round()
                if self._end:
                    self.court.unasked.add(self.driver.membership.generation)
                    yield from self.driver.finish()
                    return None
            if (yield from self._after_step(self._sampler.steps - 1)):
                return self.history
            return (yield from self._train())
        except Left:
            return None

    def _train(self) -> Steps[list[int]]:
        while deal := self._dealer.draw(self._sampler, self.driver.membership):
            self.gradients += 1
            yield from self._round(partial(_gradient, deal), deal)
            if (yield from self._after_step(deal.number)):
                return self.history
        yield from self._finish()
        return self.history

    def _after_step(self, number: int) -> Steps[bool]:
        if number % 3 == 2 and not self._stopping:
            yield from self._round(lambda worker: fingerprint(worker, -1, ()))
        if self._stopping:
            yield from self._finish()
        return self._stopping

    def _finish(self) -> Steps[None]:
        yield from self._round(lambda worker: fingerprint(worker, -2, ()), end=True)
        # The end round itself holds nothing to publish.
        self._publish(self.driver.ledger.committed - 1)
        self.court.unasked.add(self.driver.membership.generation)
        yield from self.driver.finish()
        if self._journal is not None:
            self._journal.stable(self.driver.ledger.committed + 1, self._leader)
            if self._leader == self.me:
                self._journal.trace.write(
                    "end",
                    step=self._dealer.committed,
                    workers=self.driver.membership.ids,
                    outcome="stopped" if self._stopping else "finished",
                )

    @property
    def committed(self) -> tuple[int, int]:
        """Steps committed, and those of them since it trains."""
        return self._dealer.committed, self._dealer.committed - self.since

    @property
    def complete(self) -> bool:
        """Whether every sample of the pass is used, unless the training was to stop before."""
        if self._stopping:
            return True
        steps, _ = self._dealer.dealt
        return steps == self._dealer.committed and self._sampler.deal([self.me]) is None

    @property
    def _leader(self) -> WorkerId:
        return self.driver.membership.ids[0]

    def _round(
        self, parts: Callable[[WorkerId], int], deal: Lease | None = None, end: bool = False
    ) -> Steps[None]:
        self._parts, self._deal, self._end = parts, deal, end
        yield from self.driver.round()

    def _publish(self, rounds: int) -> None:
        for number in range(max(self._published, self.first), rounds):
            self.court.publish(self.me, number, self.history[number - self.first])
        self._published = max(self._published, rounds)

    # The driver's exchange.

    @property
    def memory(self) -> Replica:
        """Its own."""
        return self

    @property
    def parts(self) -> list[Part]:
        """The sum, and a page where somebody learns."""
        return [*self._sum.parts, *self._page.parts[: self._taught[0]]]

    @property
    def word(self) -> Part:
        """The control word."""
        return self._word.parts[0]

    @property
    def in_place(self) -> bool:
        """As the simulation has it."""
        return self._sum.in_place

    @property
    def record(self) -> list[Buffer]:
        """The results of the round committed last."""
        return [*self._sum.record, *self._page.record[: self._taught[1]], *self._word.record]

    @property
    def room(self) -> list[Buffer]:
        """Like the record."""
        return [*self._sum.results, *self._page.results[: self._taught[1]], *self._word.results]

    def due(self) -> Plan | None:
        """What all have read from the last control word."""
        if not self._due:
            return None
        self.court.unasked.add(self.driver.membership.generation)
        guest = None if self._learns else self._simulation.guest(self.me)
        leaving = frozenset({self.me}) if self._leaving else frozenset()
        return Plan(leaving, guest, None if guest is None else self.me)

    def open(self) -> None:
        """A page goes with it if somebody learnt when the last one was committed.

        Not if somebody learns now: of a learner's death some hear before they open the round.
        """
        self._taught[0] = self._teaches

    def bring(self) -> None:
        """This worker's part of the sum."""
        self._sum.contributions[0][0] = 0 if self._learns else self._parts(self.me)

    def prepare(self, membership: Membership) -> None:
        """Every attempt trains with the membership that all others have."""
        self.court.member(membership)
        page = self._page.contributions[0]
        page[:] = 0
        if self._learns:
            return
        if self._taught[0] and self._full(membership.ids)[0] == self.me:
            page[0] = self.cells[self._lessons.part]
            if self._deal is not None and self._lessons.last_due:
                full = self._full(membership.ids)
                sampler = self._sampler.after(full)
                sampler["pool"] = sampler["pool"].tolist()
                rest = {
                    "history": self.history[-1],
                    "sampler": sampler,
                    "dealer": self._dealer.after(),
                }
                if not write(page[1:], rest):
                    raise Violation("the rest does not fit")

    def speak(self, membership: Membership) -> None:
        """What all are to know."""
        word = self._word.contributions[0]
        word[:] = 0
        if self._learns:
            return
        self._leaving = self._leaving or self._simulation.noticed(self.me)
        guest = self._simulation.guest(self.me)
        word[_LEAVING] = self._leaving
        word[_NEWCOMER] = 0 if guest is None else guest + 1
        word[_END] = self._end
        word[_STEP] = self._deal is not None

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """The sum is that of just the contributors, and extends the one history."""
        number = self.driver.ledger.committed - 1
        full = self._full(contributors)
        for arena in (self._sum, self._word, self._page):
            arena.turn()
        self._taught.reverse()
        got, word = int(self._sum.record[0][0]), self._word.record[0]
        self._due = word[_LEAVING] > 0 or word[_NEWCOMER] > 0
        learner = self._learns
        rest: dict[str, Any] = {}
        if self._taught[1]:
            rest = read(self._page.record[0][1:])
            if learner:
                self.cells[self._lessons.part] = int(self._page.record[0][0])
                self._end = word[_END] > 0
        self.cells = [hash((cell, got)) & _MASK for cell in self.cells]
        if not learner:
            if got != self.court.sum_of(number, full, self._parts):
                raise Violation(f"round {number} of worker {self.me} is no sum over {full}")
            self._extend(number, self.history[-1] if self.history else 0, got)
            if self._deal is not None:
                self._dealer.count(full)
                self._trace_step(number, full, self._deal)
        if self._taught[1]:
            done = self._lessons.given(bool(rest))
            if self.me in done:
                self._graduate(number, got, rest)
            if not self._learns:
                self.court.graduates += len(done)
        self._teaches = bool(self._lessons.learning)
        if int(word[_LEAVING]) >= len(self._full(contributors)):
            self._stopping = True
        self._due = self._due and not self._stopping

    def dealt(self) -> tuple[int, int]:
        """From the real dealer."""
        return self._dealer.dealt

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """To the real dealer."""
        self.court.recover(recovered, self._simulation.turned_away)
        self._due = False
        before, after = recovered.before, recovered.after
        self._lessons.forget(set(before.ids) - set(after.ids))
        if not self._full(after.ids):
            raise Left("nobody is left who knows anything")
        for newcomer in after.ids:
            if newcomer not in before:
                self._lessons.admit(newcomer)
                self._teaches = True
        if self._learns:
            return
        if self._journal is not None:
            self._journal.recovered(recovered)
        self._dealer.resume(recovered.verdict.survey.dealt, dealt_for)

    def charter(self) -> bytes:
        """Of the boundary at which the newcomer was sealed in."""
        ledger = self.driver.ledger
        return json.dumps(
            {
                "membership": pack(self.driver.membership),
                "before": pack(ledger.last),
                "committed": ledger.committed,
                "lessons": self._lessons.state(),
            }
        ).encode()

    def confirm(self, lost: Collection[WorkerId]) -> None:
        """Nobody is ever left behind alive."""
        if living := [worker for worker in lost if worker not in self._simulation.deaths]:
            raise Violation(f"worker {self.me} goes on without {living}, who live")

    # The parts.

    @property
    def _learns(self) -> bool:
        return self.me in self._lessons.learning

    def _full(self, workers: Sequence[WorkerId]) -> list[WorkerId]:
        learning = self._lessons.learning
        return [worker for worker in workers if worker not in learning]

    def _begin(self, charter: dict[str, Any]) -> None:
        membership = unpack(charter["membership"])
        ledger = Ledger(membership, charter["committed"], unpack(charter["before"]))
        self.driver = Driver(self.me, membership, self, self._clock, ledger)
        self._lessons.restore(**charter["lessons"])
        self._teaches = True

    def _graduate(self, number: int, got: int, rest: dict[str, Any]) -> None:
        self.first = self._published = number
        self._extend(number, rest["history"], got)
        self._sampler.restore(rest["sampler"])
        self._dealer.restore(rest["dealer"])
        self.since = self._dealer.committed

    def _extend(self, number: int, before: int, got: int) -> None:
        self.history.append(hash((before, got, *self.cells)))
        self.court.commit(self.me, number, self.history[-1], self._alive)
        self._publish(number)
        if self._journal is not None:
            self._journal.stable(number, self._leader)

    def _trace_step(self, number: int, contributors: Sequence[WorkerId], deal: Lease) -> None:
        if self._journal is None:
            return
        now = self._clock()
        samples = {worker: deal.of(worker) for worker in contributors}
        fields = {
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
        gradients = self.gradients + self.since - self._dealer.committed
        self._journal.step(number, deal.number, fields.copy, now, gradients)
        self._journal.digested(self.history[-1] & _MASK)
        self._committed_at = now
