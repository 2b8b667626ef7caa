"""A search for a promise that is broken on purpose: it must be found, and shrunk to what it needs.

The tests of it are in modules of their own, by what is broken: CI runs two modules at a time.
"""

from __future__ import annotations

from spotmpi.simulation.schedules import Campaign, Schedule
from spotmpi.simulation.search import execute, length, search, shrink
from tests.simulation.broken_promises import BEGIN, KEEPING, MUTATIONS, PLANS_OF, WORKERS_OF, Patch


def check_that_it_is_found(name: str, patch: Patch) -> None:
    """Break the promise of this name, and search."""
    length.cache_clear()
    MUTATIONS[name](patch)
    patch.setattr("spotmpi.simulation.schedules.PLANS", PLANS_OF.get(name, 0.0))
    patch.setattr("spotmpi.simulation.schedules.KEEPING", float(name in KEEPING))
    broken = _hunt(WORKERS_OF.get(name, 4), BEGIN.get(name, 0))
    length.cache_clear()
    assert broken is not None
    finding = shrink(broken)
    assert set(finding.schedule.kills) <= set(broken.kills)
    assert finding.failure
    assert finding.transcript
    for kill in finding.schedule.kills:  # each one that is left is needed
        execute(finding.schedule.without(kill))


def _hunt(workers: int, begin: int) -> Schedule | None:
    """The first failing schedule of 2,000 of so many workers, from number ``begin`` on."""
    drawn = Campaign(workers, workers, 1)
    try:
        failing = search(drawn, range(begin, begin + 2000), lambda _, outcome: None)
    except Exception:  # noqa: BLE001 - not even the run without faults works, which measures them
        return Schedule(workers, 1)
    return None if failing is None else drawn.schedule(failing, length)
