"""Checks that the operators of a strategy fit together, and that each operator's name says all that
it is. An operator fits if all that it needs is there, and in the right place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from spotmpi.operators import Meeting, Operator, Stage
from spotmpi.strategies.slots import Due, Slots

__all__ = ["lacks", "misfits", "unsaid"]


def lacks(operator: Operator) -> str | None:
    """Return the name of a method that the operator must have and lacks; None: it has all."""
    needed = ["run"] if isinstance(operator, Stage) else ["contribute", "apply"]
    base = Stage if isinstance(operator, Stage) else Meeting
    return next(
        (name for name in needed if getattr(type(operator), name) is getattr(base, name)), None
    )


def unsaid(operator: Operator) -> list[str]:
    """Return the names of the operator's attributes that its name does not say. Two operators that
    differ only in these would look the same."""
    if type(operator).__str__ is not Operator.__str__:
        return []
    said: set[str] = {one.name for one in fields(operator)} if is_dataclass(operator) else set()
    return sorted(getattr(operator, "__dict__", {}).keys() - said)


def misfits(slots: Slots) -> Iterator[str]:
    """Yield messages: which operator does not fit, and what to do about it."""
    before, meeting = [due.stage for due in slots.before], slots.meeting
    after = [due.stage for due in slots.after]
    for one in (*before, meeting, *after):
        yield from _missing(one, before, meeting, after)
    for due in (*slots.before, *slots.after):
        yield from _rare(due)
    for stages in (before, after):
        yield from _late(stages)
    for one in before:
        yield from _before(one, slots)
    for one in after:
        yield from _behind(one, slots)
    yield from _brought(slots, before)
    yield from _pace(slots, before)


def _brought(slots: Slots, before: Sequence[Stage]) -> Iterator[str]:
    """Find a round to which nothing comes, or not all that was computed for it."""
    meeting, every = slots.meeting, slots.every
    if meeting.carries == "models" and not any(one.moves for one in before):
        yield (
            f"{meeting} brings models together, and no operator before it changes any: begin with "
            "Apply()"
        )
    accumulates = any(one.accumulates for one in before)
    if meeting.carries == "gradients" and every > 1 and not accumulates:
        yield (
            f"{meeting} comes once in {every} steps, and the gradients of the other steps would be "
            "lost: leave out Every, or put an operator before it that `accumulates` them"
        )
    if meeting.fragments > 1 and meeting.centre is None:
        yield (
            f"{meeting} has {meeting.fragments} fragments and no centre, so there would be no "
            "model of all: leave out fragments"
        )
    if meeting.delay and meeting.carries != "models":
        yield f"{meeting} has a delay, and only a round of models may have one: leave out delay"
    if meeting.delay >= every and meeting.delay:
        yield (
            f"{meeting} has a delay of {meeting.delay} steps, and its rounds have {every}: choose "
            "a shorter delay"
        )


def _pace(slots: Slots, before: Sequence[Stage]) -> Iterator[str]:
    """Find what cannot be if workers do not keep step."""
    meeting = slots.meeting
    if slots.quorum is not None and (meeting.delay or meeting.fragments > 1):
        yield (
            "a round with a quorum carries all of the model, as it is when the round comes: leave "
            "out quorum, or fragments and delay"
        )
    asynchronous = slots.quorum is not None or any(one.asynchronous for one in before)
    if asynchronous and (meeting.delay or not any(one.moves for one in before)):
        yield (
            "workers that go at their own pace must train their own models, and bring them to a "
            "round when it is due: begin with Apply(), and have no delay"
        )


def _missing(
    operator: Operator, before: Sequence[Stage], meeting: Meeting, after: Sequence[Stage]
) -> Iterator[str]:
    kinds = tuple(operator.needs)
    if not kinds or any(isinstance(one, kinds) for one in (*before, meeting, *after)):
        return
    names, where = " or ".join(one.__name__ for one in kinds), "in the same strategy"
    if operator in before and all(issubclass(one, Meeting) for one in kinds):
        where = "behind it"
    if operator is meeting and all(issubclass(one, Stage) and one.asynchronous for one in kinds):
        where = "before it"
    yield f"{operator} needs {names} {where}, and there is none: put one there"


def _rare(due: Due) -> Iterator[str]:
    stage = due.stage
    uses = stage.accumulates or (stage.moves and stage.works_on == "gradients")
    if due.every > 1 and uses:
        yield f"{due} would lose the gradients of all other steps: put {stage} there without Every"


def _late(stages: Sequence[Stage]) -> Iterator[str]:
    """Find a stage that changes a gradient after its last use."""
    uses = [one for one in stages if one.works_on == "gradients"]
    moves = [one.moves for one in uses]
    if any(moves) and not moves[-1]:
        last = uses[len(moves) - 1 - moves[::-1].index(True)]
        yield f"{uses[-1]} stands behind {last}, which has used the gradient: put it before {last}"


def _before(stage: Stage, slots: Slots) -> Iterator[str]:
    meeting = slots.meeting
    if stage.works_on == "models":
        yield (
            f"{stage} needs the same parameters on all workers, which they have after a round: put "
            f"it behind {meeting}"
        )
    if stage.moves and meeting.carries == "gradients":
        yield (
            f"{stage} gives each worker parameters of its own, and {meeting} behind it brings "
            f"gradients together, not models: put {stage} behind {meeting}, or have "
            "ModelAverage() in the place of "
            f"{meeting}"
        )


def _behind(stage: Stage, slots: Slots) -> Iterator[str]:
    meeting, own = slots.meeting, any(due.stage.moves for due in slots.before)
    if stage.asynchronous:
        yield (
            f"{stage} stands behind the round, {meeting}, and is for the way there: put it before "
            f"{meeting}"
        )
    if stage.works_on == "gradients" and meeting.carries == "models":
        yield (
            f"{stage} stands behind {meeting}, which brings models together, not gradients: put it "
            f"before {meeting}"
        )
    if stage.works_on == "models" and own and not meeting.equalises:
        yield (
            f"{stage} needs the same parameters on all workers, and with {meeting} each has its "
            f"own: leave out {stage}, or have ModelAverage() in the place of {meeting}"
        )
