"""Rounds that survive revocations: the driver runs the protocol and the ledger on a fabric.

A round has these stages: bring contributions, start the parts, start the control word, wait for all
of them, commit. Some of this may start before its time, while the script computes. Then the round
is opened first, and a loss that is met meanwhile waits until the round is due. If a peer is lost,
the driver gives up what it has started, and goes through the door (`recovery`) with its progress
frozen. Then it does what the ledger says: it sums the same arrays again, or takes the record of the
workers that have committed already. `round` always returns with the round committed, once, alike on
all workers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from spotmpi.errors import Left, PeersLost
from spotmpi.fabric import (
    Buffer,
    Cancel,
    Depart,
    Handle,
    Part,
    Poll,
    Proceed,
    Rebuild,
    Revoke,
    Share,
    Start,
    Steps,
    Wait,
    Welcome,
)
from spotmpi.protocol.ledger import Ledger, Settlement
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import (
    NO_PLAN,
    Build,
    Built,
    Command,
    DoorState,
    Event,
    Interrupted,
    PlannedChange,
    Recovery,
    Resume,
    Verdict,
)
from spotmpi.rounds.recovered import Recovered
from spotmpi.rounds.subset_calls import SubsetCalls

_LOG = logging.getLogger(__name__)


class Memory(Protocol):
    """The arrays of a worker's rounds. None is a parameter: no one ever sees half an update."""

    @property
    def parts(self) -> Sequence[Part]:
        """The open round's parts, in the order in which they start, without the control word."""

    @property
    def word(self) -> Part:
        """The open round's control word: the part that starts last."""

    @property
    def in_place(self) -> bool:
        """True if a failed collective leaves garbage in the contributions."""

    @property
    def record(self) -> Sequence[Buffer]:
        """The results of the round committed last."""

    @property
    def room(self) -> Sequence[Buffer]:
        """Room for another worker's record; the open round's results may be in the same memory."""


class Exchange(Protocol):
    """What a worker brings to its rounds, and what it does when one is complete."""

    @property
    def memory(self) -> Memory:
        """The memory of contributions and results."""

    def due(self) -> PlannedChange | None:
        """Return what this worker adds to the plan that is due before the next round; or None."""

    def open(self) -> None:
        """Begin the next round. Its parts stay as they are until it is committed."""

    def bring(self) -> None:
        """Make this worker's contributions to the open round.

        Called again after a failure if they are summed in place.
        """

    def prepare(self, membership: Membership) -> None:
        """Prepare for the start of parts among ``membership``. Called again for a retry, and when a
        round is due of which parts have started: these stay as they are."""

    def speak(self, membership: Membership) -> None:
        """Write the control word, which starts now; called again for a retry."""

    def commit(self, contributors: Sequence[WorkerId]) -> None:
        """Make the results the record and apply them: they are sums over ``contributors``."""

    def dealt(self) -> tuple[int, int]:
        """Return how many leases this worker was dealt, and the generation of the last one."""

    def resume(self, recovered: Recovered, dealt_for: Membership | None) -> None:
        """Go on with a new membership. It is sealed, and a round that this worker lacked is
        repaired already.

        ``dealt_for``: the members that the last lease of any worker was dealt for; None if it was
        so long ago that its round must be committed everywhere. A newcomer takes part in the
        rounds from here on. Raises `Left` if there is nothing left for this worker to do.
        """

    def admission(self) -> bytes:
        """Return what a newcomer must know at this boundary to take part in the next round."""

    def confirm(self, lost: Collection[WorkerId]) -> None:
        """Return when it is certain that these workers are dead, and not only out of reach."""

    def last_words(self, remaining: Collection[WorkerId]) -> None:
        """Write what must not be lost with one of the ``remaining`` workers. Called again if a
        worker dies.

        All have come to the end, and may go as soon as it is sealed for them.
        """


class Driver:
    """One worker's rounds. Methods that return `Steps` are collective, unless marked local."""

    def __init__(
        self,
        me: WorkerId,
        membership: Membership,
        exchange: Exchange,
        clock: Callable[[], float],
        ledger: Ledger | None = None,
    ) -> None:
        """A newcomer brings its own ``ledger``. All others begin with nothing committed."""
        self._recovery = Recovery(me, membership)
        self.ledger = ledger or Ledger(membership)
        self._exchange = exchange
        self._clock = clock
        self.subset_calls = SubsetCalls(me, lambda: self.membership.ids)
        """This worker's calls among some of the workers."""
        self._started: list[Handle] = []
        """Started parts of the open round."""
        self._met_loss = False
        """True if a peer was lost when one of these parts was started."""

    @property
    def membership(self) -> Membership:
        """The sealed membership."""
        return self._recovery.membership

    def change(self) -> Steps[None]:
        """Carry out the plan that is due, if there is one. Raises `Left` if it made this worker
        leave."""
        if (plan := self._exchange.due()) is not None:
            yield from self._recover(self._clock(), plan=plan)

    def open(self) -> Steps[None]:
        """Begin the next round. A plan that is due comes first, as in `change`."""
        yield from self.change()
        self.ledger.begin()
        self._exchange.open()

    @property
    def started(self) -> int:
        """Number of parts of the open round that are under way, its control word included."""
        return len(self._started)

    def start(self, parts: int | None) -> Steps[None]:
        """Start the first ``parts`` parts of the open round, but for those under way, and return.
        None: all of them, and the control word. Others may commit the round then, before `round` is
        called here.

        For contributions that are there before the round is due. A loss is told to all workers, and
        recovery is left to `round`: a recovery waits for this worker, which may still have much to
        do.
        """
        if self._met_loss or (parts is not None and parts <= self.started):
            return
        try:
            yield from self._start(parts)
            yield Proceed()
        except PeersLost:
            self._met_loss = True
            yield Revoke()

    def _start(self, parts: int | None) -> Steps[None]:
        """Start these, but for those under way. Raises PeersLost."""
        memory = self._exchange.memory
        all_parts = memory.parts
        for part in all_parts[self.started : parts]:
            self._started.append((yield Start(part)))
        if parts is None and self.started == len(all_parts):
            self._exchange.speak(self.membership)
            self._started.append((yield Start(memory.word)))

    def round(self) -> Steps[None]:
        """Sum what all members bring, and commit the round, even if workers die. It is the open
        round or, if none is open, the next one: then a due plan comes first, as in `open`."""
        exchange = self._exchange
        if not self.ledger.open:
            yield from self.open()
            exchange.bring()
        while self.ledger.open:
            exchange.prepare(self.membership)
            entered = self._clock()
            try:
                if self._met_loss:
                    raise PeersLost("a peer was lost after the round had begun")
                yield from self._start(None)
                yield Wait(self._started)
            except PeersLost:
                yield from self._recover(entered, self._let_go())
            else:
                self._let_go()
                self.ledger.commit()
                exchange.commit(self.ledger.contributors)

    def recover(self) -> Steps[None]:
        """Take part in a recovery while no round is open: a peer is lost, or others have begun."""
        assert not self.ledger.open
        yield from self._recover(self._clock(), ())

    def abandon(self) -> Steps[None]:
        """Give up what is under way: this worker takes no further part. Local."""
        yield Cancel(self._let_go())

    def _let_go(self) -> list[Handle]:
        started, self._started, self._met_loss = self._started, [], False
        return started

    def finish(self, leaves: bool = False) -> Steps[None]:
        """Leave together, after a last round. Returns when no peer can need this worker again.

        The door's seal makes the decision the same for all, and a worker that has it waits for
        those that do not have it yet. So a worker may exit as soon as this returns. ``leaves``:
        this worker has no part in what the others may begin together after that; then it raises
        `Left`.
        """
        self.ledger.end()
        plan = PlannedChange(frozenset({self._recovery.me})) if leaves else None
        while True:
            recovered = yield from self._recover(self._clock(), plan=plan)
            if recovered.verdict.ended:
                yield Depart()
                return

    def _recover(
        self,
        entered: float,
        broken: Sequence[Handle] | None = None,
        plan: PlannedChange | None = None,
    ) -> Steps[Recovered]:
        """Go through the door until it is sealed and this worker is level with the others.

        ``broken``: the handles that had been started when a failure was met; None if there was no
        failure.
        """
        recovered = Recovered(self.membership, entered=entered, detected=self._clock())
        recovered.revoked = recovered.detected
        recovered.progress = self.ledger.committed
        what = "somebody is lost" if plan is None else "a change is due"
        if broken is None and plan is None:
            what = "training ends"
        generation = self.membership.generation
        _LOG.debug("generation %d, round %d: %s", generation, recovered.progress, what)
        while True:
            if broken is not None:
                yield from self._interrupt(recovered, broken)
            recovered.verdict = yield from self._door(recovered, plan)
            recovered.after = self.membership
            if not self.ledger.ending:  # a worker that leaves at the end says so until it is gone
                plan = None
            if (yield from self._settle(recovered)):
                yield from self._go_on(recovered)
                return recovered
            broken = ()
            recovered.earlier |= recovered.verdict.lost

    def _interrupt(self, recovered: Recovered, broken: Sequence[Handle]) -> Steps[None]:
        """Interrupt what all have started, and give up what this worker has started."""
        yield Revoke()
        recovered.revoked = self._clock()
        yield Cancel(broken)
        # For a retry, which may not come. But others may still have to be interrupted, and this
        # worker can only wait for them anyway.
        if self._exchange.memory.in_place:
            self._exchange.bring()

    def _settle(self, recovered: Recovered) -> Steps[bool]:
        """Get or give the record that some lack, if any do. Returns False if a peer was lost
        meanwhile: another passage through the door is due."""
        exchange, memory, verdict = self._exchange, self._exchange.memory, recovered.verdict
        recovered.settlement = settlement = self.ledger.settle(verdict)
        if settlement is Settlement.RETRY:
            return True
        giving = verdict.survey.source == self._recovery.me
        if giving:
            buffers = memory.record
        elif settlement is Settlement.GIVE:
            buffers = memory.room
        else:
            buffers = [part.result for part in (*memory.parts, memory.word)]
        try:
            yield Share(verdict.survey.source, buffers)
        except PeersLost:
            return False
        if settlement is Settlement.RECEIVE:
            self.ledger.repair(verdict)
            exchange.commit(self.ledger.contributors)
        elif not giving and memory.in_place:
            exchange.bring()  # the record has overwritten the contributions
        return True

    def _go_on(self, recovered: Recovered) -> Steps[None]:
        """Go on with the sealed membership. Raises `Left` if this worker has no place in it."""
        exchange, verdict = self._exchange, recovered.verdict
        me, change = self._recovery.me, verdict.change
        recovered.settled = self._clock()
        try:
            if me in change.leaving:
                raise Left(f"worker {me} left on request")
            if not verdict.ended:
                exchange.resume(recovered, self.ledger.members_of(verdict.survey.dealt_in))
        except Left:
            yield Depart()
            raise
        if change.newcomer is not None and change.sponsor == me:
            yield Welcome(change.newcomer, exchange.admission())
        if not verdict.ended:
            yield from self.subset_calls.go_on()

    def _door(self, recovered: Recovered, plan: PlannedChange | None) -> Steps[Verdict]:
        """Reconcile, accept and restart, until a verdict is sealed. Return the verdict."""
        recovery = self._recovery
        event: Event = Interrupted(self.ledger.stamp(*self._exchange.dealt(), plan))
        while True:
            commands: deque[Command] = deque(recovery.handle(event))
            if recovery.state is DoorState.RECONCILING:
                recovered.reconciled = 0.0
            elif not recovered.reconciled:
                recovered.reconciled = self._clock()
            while commands:
                command = commands.popleft()
                match command:
                    case Build(verdict):
                        recovered.accepted = self._clock()
                        if verdict is not None and verdict.lost:
                            # Otherwise both sides of a broken network could train on.
                            self._exchange.confirm(verdict.lost)
                        if verdict is not None and verdict.ended:
                            remaining = self.membership.all_but(verdict.lost)
                            self._exchange.last_words(remaining)
                        change = NO_PLAN if verdict is None else verdict.change
                        lost = [] if verdict is None else sorted(verdict.lost)
                        now = self.membership.generation
                        _LOG.debug("generation %d: goes on without %s; %s", now, lost, change)
                        built: Built = yield Rebuild(self._members(verdict), change)
                        _LOG.debug("generation %d: %s", now, built)
                        commands.extend(recovery.handle(built))
                    case Resume(verdict, membership):
                        recovered.messages += recovery.sent
                        self.ledger.adopt(membership)
                        return verdict
                    case _:
                        yield command
            event = yield Poll()

    def _members(self, verdict: Verdict | None) -> frozenset[WorkerId] | None:
        return None if verdict is None else self.membership.all_but(verdict.lost)
