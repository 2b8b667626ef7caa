"""`spotmpi.bench.measuring.events` and `spotmpi.bench.measuring.summary`, on records of nobody."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from spotmpi.bench.measuring import summary
from spotmpi.bench.measuring.events import (
    Cell,
    Event,
    JobFailed,
    Sample,
    recoveries,
    schedule,
    to_text,
)

CELL = Cell(workers=4, params=1_000_000, lost=1)
EVENT = Event(step=12, victims=(2,), fraction=0.5)
DEATHS = {2: 100.0}


def recovered(worker: int, at: float, **fields: Any) -> dict[str, Any]:
    phases = {"revoke_ms": 0.5, "reconcile_ms": 2.0, "accept_ms": 1.0, "restart_ms": 0.5}
    known = {"detect_ms": 6.0, "total_ms": 30.0, **phases, **fields}
    return {"event": "recovered", "at": at, "worker": worker, "step": 12, **known}


def records() -> list[dict[str, Any]]:
    steps = [
        {"event": "step", "at": 0.0, "step": step, "seconds": 0.010 if step != 12 else 0.5}
        for step in range(CELL.steps)
    ]
    signal = {"event": "signal", "at": 99.995, "worker": 2}
    survivors = [recovered(0, 100.020), recovered(1, 100.025), recovered(3, 100.031)]
    return [*steps, signal, *survivors]


def test_a_recovery_lasts_from_the_death_to_the_last_survivor() -> None:
    (sample,) = recoveries(CELL, [EVENT], DEATHS, records())
    assert sample.total == pytest.approx(31.0)
    assert sample.step == pytest.approx(10.0)
    assert sample.stall == pytest.approx(21.0)
    assert sample.dying == pytest.approx(5.0)
    assert (sample.workers, sample.lost) == (4, 1)


def test_the_phases_of_the_last_survivor_make_up_its_total() -> None:
    (sample,) = recoveries(CELL, [EVENT], DEATHS, records())
    assert sum(sample.phases.values()) == pytest.approx(sample.total)
    assert sample.phases["finish"] == pytest.approx(30.0 - 6.0 - 4.0)
    assert sample.phases["detect"] == pytest.approx(31.0 - 20.0 - 4.0)


def test_a_survivor_that_met_two_losses_in_a_row_counts_with_its_last_word() -> None:
    (sample,) = recoveries(CELL, [EVENT], DEATHS, [*records(), recovered(0, 100.060)])
    assert sample.total == pytest.approx(60.0)


def test_survivors_that_know_before_the_kernel_does_are_counted_from_then_on() -> None:
    """The victim of busy cores lets go of its connections first, and is dead much later."""
    (sample,) = recoveries(CELL, [EVENT], {2: 100.5}, records())
    assert sample.total == pytest.approx(24.0)
    assert sample.phases["detect"] == pytest.approx(0.0)
    assert sum(sample.phases.values()) == pytest.approx(sample.total)
    assert sample.dying == pytest.approx(1e3 * (100.031 - 0.024 - 99.995))


def test_a_death_that_is_told_late_takes_no_word_from_the_loss_before_it() -> None:
    cell, events = Cell(8, 1_000_000, 1), [EVENT, Event(24, (3,), 0.5)]
    others = [worker for worker in range(8) if worker != 2]
    told = [record for record in records() if record["event"] != "recovered"]
    told += [{"event": "step", "at": 0.0, "step": s, "seconds": 0.01} for s in range(24, 36)]
    told += [recovered(worker, 100.02) for worker in others]
    told += [recovered(worker, 100.5, step=23 + worker % 2) for worker in others if worker != 3]
    told += [{"event": "signal", "at": 100.3, "worker": 3}]
    first, second = recoveries(cell, events, {2: 100.49, 3: 100.4}, told)
    assert (first.workers, second.workers) == (8, 7)
    assert first.total == pytest.approx(24.0)


def test_of_two_deaths_the_first_counts() -> None:
    cell, event = Cell(4, 1_000_000, 2), Event(12, (2, 3), 0.5)
    told = [record for record in records() if record.get("worker") != 3]
    (sample,) = recoveries(cell, [event], {2: 100.0, 3: 99.990}, told)
    assert sample.total == pytest.approx(35.0)


def test_a_job_that_is_silent_about_a_survivor_gives_no_sample() -> None:
    with pytest.raises(JobFailed, match=r"survivors \[0, 1, 3\] of step 12 only \[0, 1\]"):
        recoveries(CELL, [EVENT], DEATHS, records()[:-1])


def test_a_death_that_nobody_saw_gives_no_sample() -> None:
    with pytest.raises(JobFailed, match=r"nobody saw workers \[2\] die"):
        recoveries(CELL, [EVENT], {}, records())


def test_the_floor_says_how_long_all_its_steps_took() -> None:
    phases = {"detect_ms": 9.0, "revoke_ms": 0.1, "shrink_ms": 3.0, "reduce_ms": 8.0}
    told: list[dict[str, Any]] = [
        {"event": "recovered", "at": 100.015, "worker": worker, "step": 12, **phases}
        for worker in (0, 1, 3)
    ]
    told += [
        {"event": "signal", "at": 100.0, "worker": 2},
        {"event": "steps", "at": 101.0, "worker": 0, "seconds": {str(s): 0.004 for s in range(24)}},
    ]
    (sample,) = recoveries(CELL, [EVENT], DEATHS, told)
    assert sample.step == pytest.approx(4.0)
    assert list(sample.phases) == ["detect", "revoke", "shrink", "finish"]
    assert sum(sample.phases.values()) == pytest.approx(15.0)


@pytest.mark.parametrize("cell", [Cell(16, 1000, 1), Cell(32, 1000, 3), Cell(4, 1000, 3)])
def test_a_schedule_leaves_three_quarters_before_each_event_and_somebody_after_the_last(
    cell: Cell,
) -> None:
    events = schedule(cell, seed=7)
    victims = [worker for event in events for worker in event.victims]
    assert len(set(victims)) == len(victims) < cell.workers
    assert (len(events) - 1) * cell.lost < cell.workers / 4
    assert all(later.step - event.step == cell.gap for event, later in pairwise(events))
    assert events[-1].step + cell.gap <= cell.steps


def test_a_schedule_follows_from_its_seed() -> None:
    cell = Cell(16, 1000, 2)
    assert schedule(cell, 1) == schedule(cell, 1) != schedule(cell, 2)
    assert to_text([Event(10, (2, 5), 0.25), Event(20, (7,), 0.9)]) == "2,5@10:0.2500;7@20:0.9000"


def sample(total: float, step: float = 10.0) -> Sample:
    return Sample(16, 1, total, step, total - step, 5.0, {"detect": total}, 0.5)


def test_targets_are_judged_by_what_was_measured() -> None:
    small, large = Cell(16, 1_000_000, 1), Cell(4, 25_600_000, 1)
    measured = {
        small: {"spotmpi": [sample(50), sample(60), sample(310)], "floor": [sample(50)] * 3},
        large: {"spotmpi": [sample(130, 20)], "floor": [sample(150, 10)]},
    }
    assert [holds for _, holds in summary.targets(measured)] == [False, True, True, False]
    assert [holds for _, holds in summary.targets_of_ddp(measured)] == [False, True]
    assert len(summary.table(measured)) == 2 + 2
    assert len(summary.phases(measured)) == 2 * 2
