"""Reconcile, accept, restart: the one door through which a membership changes. Pure.

This is a state machine without MPI, clock, randomness or threads: ``handle(event)`` returns
commands. The driver executes them on a fabric, real or simulated, and feeds back what happens.

Three tokens travel the ring of the workers believed alive, on a control communicator:

- **reconcile** carries a *view* (the lost workers) and a survey of the progress of the workers that
  stamped it. Views only grow. One worker starts the token of a view (`ring.starter`). A receiver
  absorbs a token with an older view than its own, and adopts a newer view. When the token is back
  at its origin, everybody alive has stamped this exact view.
- **accept** carries the verdict. When it is back at its origin, everybody is *prepared*.
- **restart** says so. A worker that gets it passes it on and enters the *build*: ``Shrink`` of the
  data communicator, a check that the members are the verdict's, and one ``Agree`` that seals it.

The build blocks: a worker inside it hears no token. What makes that safe (docs/adr/0004):

- Nobody enters it by a token before everybody is prepared. So a worker that is not prepared may go
  on reconciling a larger view without asking what the others do.
- A *prepared* worker that learns of another loss cannot know whether others are inside already. It
  revokes the control communicator, which reaches everybody who still listens, and enters the build
  without a verdict. The seal then fails for all alike, the control communicator is rebuilt, and the
  next attempt starts from the same frozen progress.

A worker that leaves, and one that joins, take the same way (`PlannedChange`), but only in a
recovery in which nobody was lost and nobody is behind. Otherwise the verdict leaves the plan out,
and the worker that made it comes again at a later boundary.

A worker sends at most `most_messages` tokens: three for each concurrent loss, and three if the end
of the training or a plan was under way as well. An attempt costs a stamp of its first view, one
accept and one restart. Each further loss makes a worker stamp one more view, or fails the attempt.
Late word fails an attempt of the next recovery: a worker revoked the control communicator and was
lost, and the others had sealed a membership by then without having heard of it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from spotmpi.errors import InvalidTransition
from spotmpi.protocol.membership import Membership, Worker, WorkerId
from spotmpi.protocol.ring import starter, successor

MESSAGES_PER_LOSS = 3
MESSAGES_OF_AN_END = 3
"""Tokens of an end or of a plan: both begin a recovery that no loss asked for."""


def most_messages(losses: int, unasked: bool) -> int:
    """Return the most tokens that one worker sends in a recovery from ``losses`` concurrent losses.

    ``unasked``: True if a worker had come to the end of the training before it, or to a plan.
    """
    return MESSAGES_PER_LOSS * losses + (MESSAGES_OF_AN_END if unasked else 0)


STORY_LENGTH = 50
"""Events that a message about an impossible event tells."""


@dataclass(frozen=True)
class PlannedChange:
    """A change of the membership that no loss asks for, at a boundary that all have come to."""

    leaving: frozenset[WorkerId] = frozenset()
    newcomer: WorkerId | None = None
    """The newcomer that is to be admitted, if any."""
    sponsor: WorkerId | None = None
    """The member that connects the newcomer."""

    def add(self, other: PlannedChange) -> PlannedChange:
        """Return both as one. Of two newcomers the first stays: there is one sponsor at a time."""
        first = other if self.newcomer is None else self
        return PlannedChange(self.leaving | other.leaving, first.newcomer, first.sponsor)

    def __bool__(self) -> bool:
        return bool(self.leaving) or self.newcomer is not None


NO_PLAN = PlannedChange()


@dataclass(frozen=True)
class Stamp:
    """How far one worker has come when its ledger is frozen."""

    progress: int
    """Rounds committed."""
    committed_in: int
    """Generation whose members contributed to the last committed round."""
    dealt: int
    """Steps whose batch this worker has been dealt."""
    dealt_in: int
    """Generation for whose members the last dealt step was dealt."""
    ending: bool
    """True if this worker has committed its end round and waits to leave."""
    plan: PlannedChange | None = None
    """What this worker adds to the plan that is due; None if none is due."""


@dataclass(frozen=True)
class Survey:
    """What a verdict needs to know of all stamps. Its size does not depend on the ring's."""

    low: int
    high: int
    source: WorkerId
    """A worker whose progress is ``high``: the others are repaired from it."""
    committed_in: int
    """Generation whose members contributed to round ``high - 1``."""
    dealt: int
    """Steps whose batch any worker has been dealt."""
    dealt_in: int
    """Generation for whose members the last dealt step was dealt: that deal stands."""
    ending: bool
    plan: PlannedChange = NO_PLAN

    @classmethod
    def of(cls, worker: WorkerId, stamp: Stamp) -> Survey:
        """Return the survey of one stamp."""
        return cls(
            low=stamp.progress,
            high=stamp.progress,
            source=worker,
            committed_in=stamp.committed_in,
            dealt=stamp.dealt,
            dealt_in=stamp.dealt_in,
            ending=stamp.ending,
            plan=stamp.plan or NO_PLAN,
        )

    def add(self, worker: WorkerId, stamp: Stamp) -> Survey:
        """Return this survey with one more stamp."""
        ahead = stamp.progress > self.high
        return Survey(
            low=min(self.low, stamp.progress),
            high=max(self.high, stamp.progress),
            source=worker if ahead else self.source,
            committed_in=stamp.committed_in if ahead else self.committed_in,
            dealt=max(self.dealt, stamp.dealt),
            dealt_in=stamp.dealt_in if stamp.dealt > self.dealt else self.dealt_in,
            ending=self.ending and stamp.ending,
            plan=self.plan.add(stamp.plan or NO_PLAN),
        )


class TokenKind(enum.IntEnum):
    """The three ring passes of a recovery."""

    RECONCILE = 1
    ACCEPT = 2
    RESTART = 3


@dataclass(frozen=True)
class Token:
    """What travels the ring. Its size is constant but for the losses."""

    kind: TokenKind
    attempt: int
    """Generation that is being proposed. A token of another attempt is stale."""
    origin: WorkerId
    lost: frozenset[WorkerId]
    """Workers lost since the last sealed membership."""
    survey: Survey


@dataclass(frozen=True)
class Verdict:
    """What everybody has accepted: the new membership, and what to do about the round."""

    generation: int
    lost: frozenset[WorkerId]
    survey: Survey

    @property
    def ended(self) -> bool:
        """True if the training is over: everybody alive has committed its end round.

        Not while a worker is to leave with it and cannot, beside a loss or a repair: it would be a
        member.
        """
        late = self.survey.plan.leaving and (self.lost or self.repairs)
        return self.survey.ending and not late

    @property
    def repairs(self) -> bool:
        """True if a worker has committed a round that others have not."""
        return self.survey.low < self.survey.high

    @property
    def change(self) -> PlannedChange:
        """The part of the plan that this recovery carries out.

        It is empty beside a loss or a repair. Workers that leave go first, as one may be the
        sponsor. Nobody is admitted at the end.
        """
        if self.lost or self.repairs:
            return NO_PLAN
        plan = self.survey.plan
        return PlannedChange(leaving=plan.leaving) if plan.leaving or self.ended else plan


# Events: what the driver tells the machine.


@dataclass(frozen=True)
class Interrupted:
    """The data path failed, or the training ends here. The ledger is frozen at ``stamp``."""

    stamp: Stamp


@dataclass(frozen=True)
class Lost:
    """The fabric reports that workers are lost."""

    workers: frozenset[WorkerId]


@dataclass(frozen=True)
class Received:
    """A token arrived."""

    token: Token


@dataclass(frozen=True)
class ControlRevoked:
    """A worker gave this attempt up and waits in the build."""


@dataclass(frozen=True)
class Built:
    """The build returned. ``sealed`` and ``members`` are the same for everybody alive.

    ``members`` are those alive, of the old membership. ``newcomer`` is there if one was admitted.
    """

    sealed: bool
    members: frozenset[WorkerId]
    newcomer: Worker | None = None


Event = Interrupted | Lost | Received | ControlRevoked | Built


# Commands: what the machine tells the driver.


@dataclass(frozen=True)
class Send:
    """Send ``token``. A lost receiver is reported as an ordinary loss."""

    to: WorkerId
    token: Token


@dataclass(frozen=True)
class RevokeControl:
    """Interrupt everybody who listens on the control communicator."""


@dataclass(frozen=True)
class Build:
    """Enter the blocking build. Without a verdict, the build only fails for all alike."""

    verdict: Verdict | None


@dataclass(frozen=True)
class Resume:
    """The verdict is sealed: ``membership`` is the one to train with."""

    verdict: Verdict
    membership: Membership


Command = Send | RevokeControl | Build | Resume


class DoorState(enum.Enum):
    """Where a worker is in the door."""

    RUNNING = "running"
    RECONCILING = "reconciling"
    PREPARED = "prepared"
    BUILDING = "building"


class Recovery:
    """One worker's side of the protocol, for as long as the worker lives."""

    def __init__(self, me: WorkerId, membership: Membership) -> None:
        self.me = me
        self.membership = membership
        self.state = DoorState.RUNNING
        self.view: frozenset[WorkerId] = frozenset()
        self.attempt = membership.generation + 1
        self.sent = 0
        self._stamp: Stamp | None = None
        self._verdict: Verdict | None = None
        self._started: frozenset[WorkerId] | None = None
        self._again = False
        self._story: deque[tuple[DoorState, Event]] = deque(maxlen=STORY_LENGTH)

    def handle(self, event: Event) -> list[Command]:
        """Take one event and return the commands to execute, in order."""
        key: object = event.token.kind if isinstance(event, Received) else type(event)
        action = self.TRANSITIONS.get((self.state, key))
        self._story.append((self.state, event))
        if action is None:
            raise InvalidTransition(self.state.value, str(event), self.story)
        commands: list[Command] = action(self, event)
        self.sent += sum(isinstance(command, Send) for command in commands)
        return commands

    # Entering.

    def _enter(self, event: Interrupted) -> list[Command]:
        self.state = DoorState.RECONCILING
        self.sent = 0
        self._stamp = event.stamp
        return self._start()

    # Reconciling: views grow, and the token of the final view goes round.

    def _lose(self, event: Lost) -> list[Command]:
        self._grow(event.workers)
        return self._start()

    def _reconcile(self, event: Received) -> list[Command]:
        token = event.token
        if self._stale(token):
            return []
        known = self.view
        self._grow(token.lost)
        if token.lost != self.view:  # the token's view lacks a loss that is known here
            return self._start()
        if token.origin == self.me and known == token.lost:
            return self._accept_own(token)
        return [self._pass_on(replace(token, survey=token.survey.add(self.me, self._stamped())))]

    def _accept(self, event: Received) -> list[Command]:
        token = event.token
        if self._stale(token):
            return []
        if token.lost != self.view:
            # The others are prepared for a membership with a worker that is known lost here.
            return self._give_up()
        self._prepare(token)
        return [self._pass_on(token)]

    # Prepared: only the restart, or another loss, leads on.

    def _accepted_by_all(self, event: Received) -> list[Command]:
        token = event.token
        if self._stale(token) or token.lost != self.view:
            # The token has an older view: late word of a worker, lost since, that began alone.
            return []
        if token.origin != self.me:
            raise InvalidTransition(self.state.value, str(event), self.story)
        return [self._pass_on(replace(token, kind=TokenKind.RESTART)), *self._build()]

    def _restart(self, event: Received) -> list[Command]:
        token = event.token
        if self._stale(token):
            return []
        if successor(self.membership, self.me, self.view) == token.origin:
            return self._build()
        return [self._pass_on(token), *self._build()]

    def _lose_prepared(self, event: Lost) -> list[Command]:
        known = self.view
        self._grow(event.workers)
        return [] if self.view == known else self._give_up()

    def _reconcile_prepared(self, event: Received) -> list[Command]:
        if self._stale(event.token):
            return []
        return self._lose_prepared(Lost(event.token.lost))

    # Building.

    def _follow(self, _event: ControlRevoked) -> list[Command]:
        return self._build_without_verdict()

    def _built(self, event: Built) -> list[Command]:
        self.attempt += 1
        self._started = None
        if event.sealed:
            verdict = self._verdict
            if verdict is None:
                raise InvalidTransition(self.state.value, "a seal without a verdict", self.story)
            gone = verdict.lost | verdict.change.leaving
            self.membership = self.membership.without(gone, verdict.generation, event.newcomer)
            self.state = DoorState.RUNNING
            self.view = frozenset()
            self._verdict = None
            self._again = False
            return [Resume(verdict, self.membership)]
        self.state = DoorState.RECONCILING
        self._verdict = None
        self._again = True
        stamp = self._stamped()
        if stamp.plan is not None:  # the newcomer has been turned away by now
            self._stamp = replace(stamp, plan=PlannedChange(leaving=stamp.plan.leaving))
        self._grow(self.membership.everybody - event.members)
        return self._start()

    def _only_stale(self, event: Received) -> list[Command]:
        if self._stale(event.token):
            return []
        raise InvalidTransition(self.state.value, str(event), self.story)

    # The parts.

    @property
    def story(self) -> tuple[str, ...]:
        """The last events, for a message about a transition that should not be."""
        return tuple(f"{state.value} <- {event}" for state, event in self._story)

    def _grow(self, workers: frozenset[WorkerId]) -> None:
        # A worker lost before the last seal is no member any more: that says nothing new.
        self.view |= {worker for worker in workers if worker in self.membership}

    def _stale(self, token: Token) -> bool:
        return token.attempt != self.attempt

    def _stamped(self) -> Stamp:
        if self._stamp is None:
            raise InvalidTransition(self.state.value, "a token before the ledger froze", self.story)
        return self._stamp

    def _start(self) -> list[Command]:
        # An interruption alone is no reason: the worker that revoked saw a loss yet to be heard.
        stamp = self._stamped()
        reason = self.view or stamp.ending or stamp.plan is not None or self._again
        if not reason or self._started == self.view:
            return []
        if starter(self.membership, self.view) != self.me:
            return []
        self._started = self.view
        survey = Survey.of(self.me, self._stamped())
        token = Token(TokenKind.RECONCILE, self.attempt, self.me, self.view, survey)
        if successor(self.membership, self.me, self.view) == self.me:
            self._prepare(token)
            return self._build()
        return [self._pass_on(token)]

    def _accept_own(self, token: Token) -> list[Command]:
        self._prepare(token)
        return [self._pass_on(replace(token, kind=TokenKind.ACCEPT))]

    def _prepare(self, token: Token) -> None:
        self.state = DoorState.PREPARED
        self._verdict = Verdict(token.attempt, token.lost, token.survey)

    def _pass_on(self, token: Token) -> Send:
        return Send(successor(self.membership, self.me, self.view), token)

    def _build(self) -> list[Command]:
        self.state = DoorState.BUILDING
        return [Build(self._verdict)]

    def _build_without_verdict(self) -> list[Command]:
        self.state = DoorState.BUILDING
        self._verdict = None
        return [Build(None)]

    def _give_up(self) -> list[Command]:
        return [RevokeControl(), *self._build_without_verdict()]

    TRANSITIONS: ClassVar[dict[tuple[DoorState, object], Callable[..., list[Command]]]] = {
        (DoorState.RUNNING, Interrupted): _enter,
        (DoorState.RECONCILING, Lost): _lose,
        (DoorState.RECONCILING, TokenKind.RECONCILE): _reconcile,
        (DoorState.RECONCILING, TokenKind.ACCEPT): _accept,
        (DoorState.RECONCILING, TokenKind.RESTART): _only_stale,
        (DoorState.RECONCILING, ControlRevoked): _follow,
        (DoorState.PREPARED, Lost): _lose_prepared,
        (DoorState.PREPARED, TokenKind.RECONCILE): _reconcile_prepared,
        (DoorState.PREPARED, TokenKind.ACCEPT): _accepted_by_all,
        (DoorState.PREPARED, TokenKind.RESTART): _restart,
        (DoorState.PREPARED, ControlRevoked): _follow,
        (DoorState.BUILDING, Built): _built,
    }
