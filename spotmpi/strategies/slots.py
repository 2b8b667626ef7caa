"""The slots of a strategy: what its operators do before the round, in it, and after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from spotmpi.errors import UsageError
from spotmpi.operators import Chain, Every, Meeting, Narrow, Operator, Quorum, Stage, Step

__all__ = ["Due", "Slots", "slots_of"]


class Due(NamedTuple):
    """A stage, and how often it runs."""

    stage: Stage
    every: int = 1
    """It runs whenever the number of steps has reached or passed a multiple of this."""

    def now(self, step: Step) -> bool:
        """Return True if it runs in this step."""
        after = step.now.after
        return self.every == 1 or after // self.every > (after - step.many) // self.every

    def __str__(self) -> str:
        return str(self.stage if self.every == 1 else Every(self.every, self.stage))


class Slots(NamedTuple):
    """The parts of a strategy."""

    before: tuple[Due, ...]
    """Stages of each step, before the round."""
    meeting: Meeting
    after: tuple[Due, ...]
    """Stages that follow from the round's result."""
    every: int
    """Steps of one round."""
    wire: str | None
    """The format in which sums travel between hosts; None: as they are."""
    quorum: Quorum | None
    """Says how many workers are enough for a round; None: it waits for all."""

    @property
    def chain(self) -> Chain:
        """The operators in the order in which they run."""
        narrow = () if self.wire is None else (Narrow(self.wire),)
        quorum = () if self.quorum is None else (self.quorum,)
        round_: Operator = Chain((self.meeting, *map(_operator, self.after)))
        if self.every > 1:
            round_ = Every(self.every, round_)
        return Chain((*narrow, *map(_operator, self.before), *quorum)) >> round_


def slots_of(chain: Operator) -> Slots:
    """Return the slots of these operators. Raises UsageError if they have not exactly one round, or
    if something stands where it has no meaning."""
    found = list(_placed(chain, 1, False))
    meetings = [place for place, one in enumerate(found) if isinstance(one.operator, Meeting)]
    if len(meetings) != 1:
        raise UsageError(
            f"a strategy has exactly one operator with a round, and {chain} has {len(meetings)}: "
            "begin with GradientAverage() >> Apply()"
        )
    here = meetings[0]
    meeting, every, _ = found[here]
    assert isinstance(meeting, Meeting)
    before = [_due(one) for one in found[:here] if _runs(one.operator)]
    after = [_due(one) for one in found[here + 1 :] if _runs(one.operator)]
    if late := [one for one in found[here:] if isinstance(one.operator, Quorum)]:
        raise UsageError(
            f"{late[0].operator} stands behind the round, {meeting}, and is for the way there: put "
            f"it before {meeting}"
        )
    if early := [one for one in found[:here] if one.in_round and _runs(one.operator)]:
        operator = early[0].operator
        if every > 1:
            raise UsageError(
                f"{operator} stands before {meeting} in Every({every}, ...), but a worker is by "
                f"itself in each step before a round: put {operator} before Every"
            )
    if rare := [one for one in found if one.every > 1 and not _runs(one.operator)]:
        raise UsageError(
            f"{rare[0].operator} holds for all rounds: put it there without Every({rare[0].every}, "
            "...)"
        )
    wires = [one.operator for one in found if isinstance(one.operator, Narrow)]
    quorums = [one.operator for one in found if isinstance(one.operator, Quorum)]
    for many, what in ((wires, "Narrow"), (quorums, "Quorum")):
        if len(many) > 1:
            raise UsageError(f"{chain} has {len(many)} of {what}, expected at most one")
    wire = wires[0].form if wires else None
    return Slots(tuple(before), meeting, tuple(after), every, wire, (*quorums, None)[0])


def _runs(operator: Operator) -> bool:
    """Return False if the operator only says something of the round."""
    return not isinstance(operator, Narrow | Quorum)


def _due(one: _Placed) -> Due:
    """Return a stage, and how often it runs. Raises UsageError if it is none."""
    if not isinstance(one.operator, Stage):
        raise UsageError(
            f"{one.operator} is neither a Stage nor a Meeting: derive "
            f"{type(one.operator).__name__} from one of them"
        )
    return Due(one.operator, one.every)


class _Placed(NamedTuple):
    operator: Operator
    every: int
    in_round: bool
    """True if it stands in the `Every` of the round."""


def _placed(operator: Operator, every: int, in_round: bool) -> Iterator[_Placed]:
    if isinstance(operator, Chain):
        for one in operator.operators:
            yield from _placed(one, every, in_round)
    elif isinstance(operator, Every):
        if every > 1 or (in_round and _meets(operator)):
            raise UsageError(
                f"{operator} stands in another Every: make one Every of both, with the product of "
                "their counts"
            )
        if _meets(operator):
            for place in _placed(operator.then, 1, True):
                meets = isinstance(place.operator, Meeting)
                yield place._replace(every=operator.count) if meets else place
        else:
            yield from _placed(operator.then, operator.count, in_round)
    else:
        yield _Placed(operator, every, in_round)


def _meets(operator: Operator) -> bool:
    match operator:
        case Chain():
            return any(map(_meets, operator.operators))
        case Every():
            return _meets(operator.then)
        case _:
            return isinstance(operator, Meeting)


def _operator(due: Due) -> Operator:
    return due.stage if due.every == 1 else Every(due.every, due.stage)
