"""A search for a promise that is broken on purpose: it must be found, and shrunk to what it needs.

The tests of it are in modules of their own, by what is broken: CI runs two modules at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType

import pytest

from spotmpi.simulation.schedules import Campaign, Schedule
from spotmpi.simulation.search import Finding, Outcome, execute, length, outcome_of, search, shrink
from tests.simulation.broken_promises import BEGIN, KEEPING, MUTATIONS, PLANS_OF, WORKERS_OF, Patch

Mutation = Callable[[pytest.MonkeyPatch], None]

_SOMEWHERE = 200
"""Events of a run, among which faults are drawn where the true number does not matter."""

_JOINS = 4
"""In this schedule a newcomer comes to train, if there are any."""

_MANY = 40
"""Schedules at most until each function of a mutation has run."""

_STALE = ("AttributeError", "NameError", "TypeError")
"""A mutation that no longer fits the code fails with these, whatever is checked."""


def check_that_it_is_found(name: str, patch: Patch) -> None:
    """Break the promise of this name, and search 2,000 schedules."""
    set_odds(patch, odds_of(name))
    begin = BEGIN.get(name, 0)
    numbers = range(begin, begin + 2000)
    broken, finding = hunt(MUTATIONS[name], patch, campaign_of(name), numbers)
    assert set(finding.schedule.kills) <= set(broken.kills)
    assert finding.transcript
    for kill in finding.schedule.kills:  # each one that is left is needed
        execute(finding.schedule.without(kill))


def odds_of(name: str) -> dict[str, float]:
    """How often what happens in the schedules that are searched for this promise."""
    return {"PLANS": PLANS_OF.get(name, 0.0), "CHANGES": 0.0, "KEEPING": float(name in KEEPING)}


def campaign_of(name: str) -> Campaign:
    """The schedules that are searched for this promise."""
    workers = WORKERS_OF.get(name, 4)
    return Campaign(workers, workers, 1)


def set_odds(patch: Patch, odds: Mapping[str, float]) -> None:
    """Draw schedules with these odds, which have the names of `schedules`."""
    for name, share in odds.items():
        patch.setattr(f"spotmpi.simulation.schedules.{name}", share)


def hunt(
    mutation: Mutation, patch: Patch, drawn: Campaign, numbers: range
) -> tuple[Schedule, Finding]:
    """Break a promise; the first of these schedules that shows it, as it was drawn and shrunk."""
    mutation(patch)
    broken = first_failing(drawn, numbers)
    assert broken is not None
    finding = shrink(broken)
    assert finding.failure
    assert not finding.failure.startswith(_STALE)
    return broken, finding


def check_that_it_fits(
    mutation: Mutation, patch: Patch, drawn: Campaign, odds: Mapping[str, float]
) -> None:
    """Break the promise, and run schedules until each function that breaks it has run.

    What is patched, and what the functions use, must have that name still.
    """
    idle = _functions_in(mutation)
    with patch.context() as inner:
        set_odds(inner, odds)
        mutation(inner)
        for number in (_JOINS, *range(_MANY)):
            outcome = _outcome_of(drawn.schedule(number, lambda *_: _SOMEWHERE), idle)
            assert not (isinstance(outcome, str) and outcome.startswith(_STALE)), outcome
            if not idle:
                return
    raise AssertionError(f"never called in {_MANY} schedules: {idle}")


def _functions_in(mutation: Mutation) -> set[CodeType]:
    """What it puts in the place of other functions, less what these define in turn."""
    code: CodeType = getattr(mutation, "__code__")  # noqa: B009 - not every callable has it
    inside = {one for one in code.co_consts if isinstance(one, CodeType)}
    return {one for one in inside if one.co_name == "<lambda>" or one.co_name[0] != "<"}


def _outcome_of(schedule: Schedule, idle: set[CodeType]) -> Outcome | str:
    """What it comes to; ``idle`` loses all functions that ran in it."""
    before = sys.gettrace()

    def note(frame: FrameType, *_: object) -> None:
        idle.discard(frame.f_code)
        if not idle:  # the rest of the run is faster without
            sys.settrace(before)

    sys.settrace(note if idle else before)
    try:
        return outcome_of(schedule)
    finally:
        sys.settrace(before)


def first_failing(drawn: Campaign, numbers: range) -> Schedule | None:
    """The first of these schedules that breaks a promise, None if none does."""
    length.cache_clear()  # it may be another one
    try:
        failing = search(drawn, numbers, lambda _, outcome: None)
    except Exception:  # noqa: BLE001 - not even the run without faults works, which measures them
        return Schedule(drawn.most, 1, strategy=drawn.strategies[0])
    finally:
        length.cache_clear()
    return None if failing is None else drawn.schedule(failing, length)
