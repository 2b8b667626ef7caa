"""Which rounds this worker has committed, and what a verdict asks of it. Pure.

A **round** is one collective that every member enters. Nobody finishes round ``t + 1`` before
everybody has entered it, so two workers never differ by more than one commit, and the record of
the last committed round is all that a repair can ever need. It is kept until the next round
completes; then everybody has it and it is *stable*.
"""

from __future__ import annotations

import enum

from spotmpi.errors import InvalidTransition
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import PlannedChange, Stamp, Verdict


class Settlement(enum.Enum):
    """What a sealed verdict means for one worker's open round."""

    RETRY = "retry"
    """Nobody has committed it: reduce the cached contributions again, without the lost."""
    RECEIVE = "receive"
    """Others have committed it: take their record and commit the same."""
    GIVE = "give"
    """This worker's last record is behind nobody's: share it with those that lack it."""


class Ledger:
    """Rounds open, committed and stable on one worker. Holds no arrays: numbers only."""

    def __init__(
        self, membership: Membership, committed: int = 0, before: Membership | None = None
    ) -> None:
        """A newcomer begins with the rounds ``committed`` by the members ``before`` it."""
        last = before or membership
        self._members = {last.generation: last, membership.generation: membership}
        self._generation = membership.generation
        self._committed_in = last.generation
        self.committed = committed
        """Rounds committed; the open round, if there is one, has this number."""
        self.open = False
        self.ending = False

    @property
    def generation(self) -> int:
        """Whose members contributed to the last committed round."""
        return self._committed_in

    @property
    def last(self) -> Membership:
        """The members that the last committed round had."""
        return self._members[self._committed_in]

    @property
    def contributors(self) -> tuple[WorkerId, ...]:
        """Who contributed to the last committed round."""
        return self._members[self._committed_in].ids

    def begin(self) -> int:
        """Open the next round; return its number."""
        if self.open or self.ending:
            raise InvalidTransition(self._state(), "begin a round")
        self.open = True
        return self.committed

    def commit(self) -> None:
        """The open round is complete in the present generation.

        That the round completed says that everybody has entered it and thus committed the one
        before: records of earlier generations are of no further use.
        """
        self._close(self._generation)
        self._members = {self._generation: self._members[self._generation]}

    def end(self) -> None:
        """The round just committed was the last; only the door is left."""
        if self.open:
            raise InvalidTransition(self._state(), "end")
        self.ending = True

    def stamp(self, dealt: int, dealt_in: int, plan: PlannedChange | None = None) -> Stamp:
        """Freeze: what this worker says of itself in a recovery."""
        return Stamp(self.committed, self._committed_in, dealt, dealt_in, self.ending, plan)

    def members_of(self, generation: int) -> Membership | None:
        """A membership since the last commit; None for one that can matter no more."""
        return self._members.get(generation)

    def adopt(self, membership: Membership) -> None:
        """A new membership is sealed; the next commit is one of its generation."""
        self._members[membership.generation] = membership
        self._generation = membership.generation

    def settle(self, verdict: Verdict) -> Settlement:
        """What ``verdict`` asks of this worker. Skew beyond one round is a bug of ours."""
        low, high = verdict.survey.low, verdict.survey.high
        if high - low > 1 or not low <= self.committed <= high:
            raise InvalidTransition(self._state(), f"a verdict of rounds {low} to {high}")
        if low == high:
            return Settlement.RETRY
        return Settlement.RECEIVE if self.committed == low else Settlement.GIVE

    def repair(self, verdict: Verdict) -> None:
        """The open round was received from ``verdict.survey.source`` and is committed now."""
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
