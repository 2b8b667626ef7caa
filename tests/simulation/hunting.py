"""A search for a promise that is broken on purpose: it must be found, and shrunk to what it needs.

The tests of it are in modules of their own, by what is broken: CI runs two modules at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotmpi.simulation.schedules import Campaign, Schedule
from spotmpi.simulation.search import Finding, execute, length, outcome_of, search, shrink
from tests.simulation.broken_promises import BEGIN, KEEPING, MUTATIONS, PLANS_OF, WORKERS_OF, Patch

Mutation = Callable[[pytest.MonkeyPatch], None]

_SOMEWHERE = 200
"""Events of a run, among which faults are drawn where the true number does not matter."""

_STALE = ("AttributeError", "NameError", "TypeError")
"""A mutation that no longer fits the code fails with these, whatever is checked."""


def check_that_it_is_found(name: str, patch: Patch) -> None:
    """Break the promise of this name, and search 2,000 schedules."""
    patch.setattr("spotmpi.simulation.schedules.PLANS", PLANS_OF.get(name, 0.0))
    patch.setattr("spotmpi.simulation.schedules.CHANGES", 0.0)
    patch.setattr("spotmpi.simulation.schedules.KEEPING", float(name in KEEPING))
    workers, begin = WORKERS_OF.get(name, 4), BEGIN.get(name, 0)
    drawn = Campaign(workers, workers, 1)
    broken, finding = hunt(MUTATIONS[name], patch, drawn, range(begin, begin + 2000))
    assert set(finding.schedule.kills) <= set(broken.kills)
    assert finding.transcript
    for kill in finding.schedule.kills:  # each one that is left is needed
        execute(finding.schedule.without(kill))


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


def check_that_it_fits(mutation: Mutation, patch: Patch, drawn: Campaign) -> None:
    """Break the promise, and run the first schedule: what is patched must have that name still."""
    with patch.context() as inner:
        mutation(inner)
        outcome = outcome_of(drawn.schedule(0, lambda *_: _SOMEWHERE))
    assert not (isinstance(outcome, str) and outcome.startswith(_STALE)), outcome


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
