"""Checks that the operators of a chain fit together, and that each operator's name says all that it
is. An operator fits if all that it needs is in the chain, and in the right place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import NamedTuple

from spotmpi.operators.stages import Chain, Every, Operator

__all__ = ["misfit", "unsaid"]


class _Placed(NamedTuple):
    operator: Operator
    there: bool
    """True if it runs only in steps that have a round."""


def misfit(chain: Chain) -> str | None:
    """Return a message: which operator does not fit into this chain, and what to do about it; None
    if all fit. The chain must have exactly one round."""
    placed = list(_placed(chain, chain.steps == 1))
    operators = [one.operator for one in placed]
    here = next(number for number, one in enumerate(operators) if one.collective)
    for number, one in enumerate(placed):
        found = _missing(one.operator, operators[:number], operators[number + 1 :])
        if found is None and number < here:
            found = _before(one.operator, operators[here])
        if found is None and number > here:
            found = _behind(one, operators[here], chain)
        if found is not None:
            return found
    if operators[here].carries == "models" and not chain.apart:
        return (
            f"{operators[here]} brings models together, and no operator before it changes any: "
            "begin with Apply()"
        )
    return None


def unsaid(operator: Operator) -> list[str]:
    """Return the names of the operator's attributes that its name does not say. Two operators that
    differ only in these would look the same."""
    if type(operator).__str__ is not Operator.__str__:
        return []
    said: set[str] = {one.name for one in fields(operator)} if is_dataclass(operator) else set()
    return sorted(getattr(operator, "__dict__", {}).keys() - said)


def _placed(operator: Operator, there: bool) -> Iterator[_Placed]:
    if isinstance(operator, Chain):
        for one in operator.operators:
            yield from _placed(one, there)
    elif isinstance(operator, Every):
        yield from _placed(operator.then, there or operator.collective)
    else:
        yield _Placed(operator, there)


def _missing(
    operator: Operator, before: Sequence[Operator], behind: Sequence[Operator]
) -> str | None:
    """Return a message: what the operator needs, and where; None if all is there."""
    for needed, there, elsewhere, where, instead in (
        (operator.needs_before, before, behind, "before", "behind"),
        (operator.needs_behind, behind, before, "behind", "before"),
    ):
        kinds = tuple(needed)
        if not kinds or any(isinstance(one, kinds) for one in there):
            continue
        names = " or ".join(one.__name__ for one in kinds)
        if wrong := [one for one in elsewhere if isinstance(one, kinds)]:
            return f"{wrong[0]} stands {instead} {operator}, and must stand {where} it"
        return f"{operator} needs {names} {where} it, and there is none: put one there"
    return None


def _before(operator: Operator, meeting: Operator) -> str | None:
    if operator.follows == "models":
        return (
            f"{operator} needs the same parameters on all workers, which they have after a round: "
            f"put it behind {meeting}"
        )
    if operator.moves and meeting.carries == "gradients":
        return (
            f"{operator} gives each worker parameters of its own, and {meeting} behind it brings "
            f"gradients together, not models: put {operator} behind {meeting}, or have "
            f"ModelAverage() in the place of {meeting}"
        )
    return None


def _behind(one: _Placed, meeting: Operator, chain: Chain) -> str | None:
    operator, together = one.operator, f"Every({chain.steps}, {meeting} >> {one.operator})"
    if operator.paced:
        return (
            f"{operator} stands behind the round, {meeting}, and is for the way there: put it "
            f"before {meeting}"
        )
    if operator.follows == "gradients" and meeting.carries == "models":
        return (
            f"{operator} stands behind {meeting}, which brings models together, not gradients: put "
            f"it before {meeting}"
        )
    if operator.follows == "models" and chain.apart and meeting.leaves_apart:
        return (
            f"{operator} needs the same parameters on all workers, and with {meeting} each has its "
            f"own: leave out {operator}, or have ModelAverage() in the place of {meeting}"
        )
    needs_round = operator.follows == "gradients" or (operator.follows == "models" and chain.apart)
    if needs_round and meeting.carries is not None and not one.there:
        return (
            f"{operator} comes also in steps without a round, in which each worker is by itself: "
            f"put both into one, {together}"
        )
    return None
