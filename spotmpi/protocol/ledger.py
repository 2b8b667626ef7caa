"""The rounds that this worker has committed, and what a verdict asks of it. Pure.

A **round** is one collective that every member enters. Nobody finishes round ``t + 1`` before
everybody has entered it. So two workers never differ by more than one commit, and a repair never
needs more than the record of the last committed round. A worker keeps that record until the next
round completes. Then everybody has it and it is *stable*.
"""

from __future__ import annotations

import enum

from spotmpi.errors import InvalidTransition
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import PlannedChange, Stamp, Verdict


class Settlement(enum.Enum):
    """What a sealed verdict means for one worker's open round."""

    RETRY = "retry"
    """No worker has committed it: reduce the cached contributions again, without the lost."""
    RECEIVE = "receive"
    """Other workers have committed it: take their record and commit the same."""
    GIVE = "give"
    """This worker has committed it: give the record to the workers that lack it."""


class Ledger:
    """Rounds open, committed and stable on one worker. It holds numbers only, no arrays."""

    def __init__(
        self, membership: Membership, committed: int = 0, before: Membership | None = None
    ) -> None:
        """Begin after ``committed`` rounds. ``before``: the membership that committed the last of
        them, for a newcomer."""
        last = before or membership
        self._members = {last.generation: last, membership.generation: membership}
        self._generation = membership.generation
        self._committed_in = last.generation
        self.committed = committed
        """Rounds committed. If a round is open, this is its number."""
        self.open = False
        self.ending = False

    @property
    def generation(self) -> int:
        """Generation whose members contributed to the last committed round."""
        return self._committed_in

    @property
    def last(self) -> Membership:
        """The membership of the last committed round."""
        return self._members[self._committed_in]

    @property
    def contributors(self) -> tuple[WorkerId, ...]:
        """Workers that contributed to the last committed round."""
        return self._members[self._committed_in].ids

    def begin(self) -> int:
        """Open the next round and return its number. InvalidTransition if one is open."""
        if self.open or self.ending:
            raise InvalidTransition(self._state(), "begin a round")
        self.open = True
        return self.committed

    def commit(self) -> None:
        """Commit the open round in the present generation: it is complete.

        So everybody has entered it and thus committed the one before. Memberships of earlier
        generations are of no further use.
        """
        self._close(self._generation)
        self._members = {self._generation: self._members[self._generation]}

    def end(self) -> None:
        """Mark the round just committed as the last. Only the recovery that ends all remains."""
        if self.open:
            raise InvalidTransition(self._state(), "end")
        self.ending = True

    def stamp(self, dealt: int, dealt_in: int, plan: PlannedChange | None = None) -> Stamp:
        """Return what this worker says of itself in a recovery. The ledger is frozen then."""
        return Stamp(self.committed, self._committed_in, dealt, dealt_in, self.ending, plan)

    def members_of(self, generation: int) -> Membership | None:
        """Return the membership of ``generation``; None if it is from before the last commit."""
        return self._members.get(generation)

    def adopt(self, membership: Membership) -> None:
        """Take a membership that is now sealed. The next commit is in its generation."""
        self._members[membership.generation] = membership
        self._generation = membership.generation

    def settle(self, verdict: Verdict) -> Settlement:
        """Return what ``verdict`` asks of this worker.

        InvalidTransition if workers are more than one round apart: that is a bug of ours.
        """
        low, high = verdict.survey.low, verdict.survey.high
        if high - low > 1 or not low <= self.committed <= high:
            raise InvalidTransition(self._state(), f"a verdict of rounds {low} to {high}")
        if low == high:
            return Settlement.RETRY
        return Settlement.RECEIVE if self.committed == low else Settlement.GIVE

    def repair(self, verdict: Verdict) -> None:
        """Commit the open round, whose record came from ``verdict.survey.source``."""
        if self.settle(verdict) is not Settlement.RECEIVE:
            raise InvalidTransition(self._state(), "a repair that it does not need")
        self._close(verdict.survey.committed_in)

    def _close(self, generation: int) -> None:
        if not self.open:
            raise InvalidTransition(self._state(), "commit")
        self.open = False
        self.committed += 1
        self._committed_in = generation

    def _state(self) -> str:
        what = "ending" if self.ending else "open" if self.open else "closed"
        return f"round {self.committed} ({what})"
