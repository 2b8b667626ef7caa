"""Each gap of a training gets its cause from what the trace tells, and none is guessed."""

from __future__ import annotations

from typing import Any

import pytest

from spotmpi.trace.interruptions import Interruption, story, unexplained
from spotmpi.trace.records import Record
from tests.trace.traced import USUAL, changed, step, trace


def only(records: list[Record], cause: str) -> Interruption:
    (found,) = [one for one in story(records).interruptions if one.cause == cause]
    return found


def slowed(number: int, seconds: float, *more: Record, at: int | None = None) -> list[Record]:
    """Thirty steps of three workers, of which one takes so long."""
    clock, found = 100.0, trace()[:2]
    for place in range(30):
        clock += seconds if place == number else USUAL
        took = seconds if place == number else USUAL
        found.append(step(place, [0, 1, 2], clock, took))
    return [*found, *more]


def timing(worker: int, number: int, script: float, within: float, **more: Any) -> list[Record]:
    """Of one worker: so many milliseconds in one step, and 4 + 6 in all others."""
    steps = list(range(30))
    scripts, rounds = [4.0] * 30, [6.0] * 30
    ran, starved = [3.0] * 30, [1.0] * 30
    scripts[number], rounds[number] = script, within
    ran[number], starved[number] = more.pop("ran", 3.0), more.pop("starved", 1.0)
    known = {"script_ms": scripts, "round_ms": rounds, "cpu_ms": ran, "starved_ms": starved}
    end = 100.3 + 1e-3 * (script + within - 10)
    return [
        {"event": "timing", "worker": worker, "steps": steps, "committed": end, **known, **more}
    ]


def all_in_the_round(number: int, ms: float) -> list[Record]:
    return [one for worker in range(3) for one in timing(worker, number, 4.0, ms - 4.0)]


def test_a_loss_is_told_with_its_parts_and_its_cost() -> None:
    found = only(trace(), "killed")
    assert (found.step, found.workers, found.why) == (10, (1,), "SIGKILL; retry")
    assert found.parts == {"detection": 6.0, "agreement": 5.0, "rebuilding": 4.0, "retry": 25.0}
    assert found.cost == pytest.approx(0.04)
    assert found.at == pytest.approx(0.15)
    assert found.gap


def test_the_parts_leave_out_what_a_survivor_computed_before_it_came() -> None:
    records = changed(changed(trace(), "recovered", 0, came_ms=20.0), "recovered", 1, came_ms=20.0)
    found = only(records, "killed").parts
    assert found["computing"] == 20.0
    assert sum(found.values()) == 40.0


def test_goodput_is_the_share_of_the_time_in_which_steps_advanced() -> None:
    told = story(trace())
    assert told.total == pytest.approx(0.35)
    assert told.lost == pytest.approx(0.04)
    assert told.goodput == pytest.approx(1 - 0.04 / 0.35)
    assert told.usual == pytest.approx(USUAL)


@pytest.mark.parametrize("kind", ["silent", "reset", "stall", "stopped"])
def test_the_launcher_knows_how_a_worker_was_lost(kind: str) -> None:
    records = changed(trace(), "cause", 0, cause=kind, why="host h2 was silent for 203 ms")
    assert only(records, kind).why.startswith("host h2 was silent")


def test_where_nobody_knows_how_it_is_lost() -> None:
    """Under plain mpirun, and in traces of earlier versions."""
    records = [one for one in trace() if one["event"] != "cause"]
    assert only(records, "lost").cost == pytest.approx(0.04)


def test_a_join_is_told_even_if_it_cost_nothing() -> None:
    found = only(trace(), "join")
    assert (found.step, found.workers, found.cost, found.gap) == (20, (3,), 0.0, False)
    assert found.why == "pause 1.5 ms"


def test_a_leave_has_the_cause_that_the_launcher_gives() -> None:
    notice = {"worker": 2, "cause": "notice", "why": "its host is to be taken away"}
    records = changed(trace(), "change", 0, joined=[], left=[2])
    found = only([*records, {"event": "cause", "at": 1.0, **notice}], "notice")
    assert found.why == "its host is to be taken away; pause 1.5 ms"


def test_after_a_repair_the_loss_lies_in_the_step_before_the_one_that_tells_it() -> None:
    """The worker that writes had to be repaired."""
    records = changed(trace(), "recovery", 0, step=11, verdict="repair")
    for place in (0, 1):
        records = changed(records, "recovered", place, step=11, at=100.16)
    assert only(records, "killed").cost == pytest.approx(0.04)
    assert unexplained(records) == []


def test_who_never_came_through_the_round_before_was_lost_in_it() -> None:
    """It may have been complete before the kernel told of the death."""
    records = changed(slowed(15, 0.1), "step", 16, workers=[0, 2])
    told = {"generation": 1, "step": 16, "lost": [1], "verdict": "repair", "total_ms": 5.0}
    parts = dict.fromkeys(
        ["detect_ms", "revoke_ms", "reconcile_ms", "accept_ms", "restart_ms"], 1.0
    )
    records.append({"event": "recovery", "at": 100.3, **told, **parts})
    assert len(unexplained(records)) == 1
    records += [*timing(0, 15, 4.0, 96.0), *timing(2, 15, 4.0, 96.0)]
    assert unexplained(records) == []
    assert only(records, "lost").cost == pytest.approx(0.09)


def test_a_gap_without_evidence_is_unexplained() -> None:
    records = slowed(15, 0.1)
    (found,) = unexplained(records)
    assert (found.step, found.workers) == (15, ())
    assert found.cost == pytest.approx(0.09)
    half = [*records, *timing(0, 15, 4.0, 96.0)]
    assert len(unexplained(half)) == 1, "what the others did is not told"


def test_what_is_no_gap_is_no_interruption() -> None:
    assert story(slowed(15, 0.019)).interruptions == []


def test_a_worker_that_came_late_by_its_own_account_is_the_straggler() -> None:
    late = [*timing(0, 15, 4.0, 96.0), *timing(1, 15, 93.0, 7.0), *timing(2, 15, 4.0, 96.0)]
    found = only(slowed(15, 0.1, *late), "straggler")
    assert found.workers == (1,)
    assert found.why == "its script took 93.0 ms, usually 4.0"


def test_a_straggler_that_had_no_core_is_told_so() -> None:
    late = timing(1, 15, 93.0, 7.0, starved=80.0)
    found = only(slowed(15, 0.1, *late), "straggler")
    assert found.why.endswith("; for 79.0 ms it had no core")


def test_who_is_not_late_enough_is_no_straggler() -> None:
    """It explains less than half of what is too much."""
    late = [*timing(0, 15, 4.0, 96.0), *timing(1, 15, 40.0, 60.0), *timing(2, 15, 4.0, 96.0)]
    assert [one.cause for one in story(slowed(15, 0.1, *late)).interruptions] == ["round"]


def test_who_had_no_core_within_the_round_is_the_straggler() -> None:
    told = all_in_the_round(15, 100.0)
    told[2]["starved_ms"][15] = 75.0
    found = only(slowed(15, 0.1, *told), "straggler")
    assert (found.workers, found.why) == ((2,), "could have run, and had no core for 74.0 ms")


def test_few_who_had_no_core_one_after_the_other_are_it_together() -> None:
    told = all_in_the_round(15, 100.0)
    told[0]["starved_ms"][15], told[2]["starved_ms"][15] = 31.0, 41.0
    assert only(slowed(15, 0.1, *told), "straggler").workers == (2, 0)


def test_who_computed_within_the_round_is_the_straggler() -> None:
    told = all_in_the_round(15, 100.0)
    told[1]["cpu_ms"][15] = 83.0
    found = only(slowed(15, 0.1, *told), "straggler")
    assert (found.workers, found.why) == ((1,), "computed for 80.0 ms within the round")


def test_what_is_done_once_before_a_step_is_its_cause() -> None:
    late = timing(0, 15, 93.0, 7.0, between={"15": ["once", "once"]})
    assert only(slowed(15, 0.1, *late), "once").workers == (0,)


def test_where_all_waited_for_each_other_it_was_the_round() -> None:
    found = only(slowed(15, 0.1, *all_in_the_round(15, 100.0)), "round")
    assert found.why == "all were in it for 96.0 ms; none was late, or lacked a core"


def test_where_somebody_told_nothing_and_was_lost_later_it_was_the_round_of_the_others() -> None:
    records = [*slowed(15, 0.1), *timing(0, 15, 4.0, 96.0), *timing(2, 15, 4.0, 96.0)]
    assert len(unexplained(records)) == 1
    parts = ("detect_ms", "revoke_ms", "reconcile_ms", "accept_ms", "restart_ms", "total_ms")
    lost = {"event": "recovery", "at": 100.5, "generation": 1, "step": 29, "verdict": "retry"}
    records.append({**lost, "lost": [1], **dict.fromkeys(parts, 1.0)})
    assert unexplained(records) == []
    found = only(records, "round")
    assert found.why.startswith("those who tell were in it for 96.0 ms; none was late, or lacked")
    assert found.why.endswith("; 1, lost since, took the times of this round along")


def test_the_first_round_of_a_run_is_its_start() -> None:
    assert only(slowed(0, 0.5), "start").step == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 15, "copy_ms": 60.0},
        {"step": 10, "wait_ms": 60.0, "at": 100.2},
        {"step": 14, "began": 100.16, "seconds": 0.2},
    ],
)
def test_a_checkpoint_that_others_waited_for_or_that_was_written_meanwhile(
    fields: dict[str, Any],
) -> None:
    kept = {"event": "checkpoint", "at": 100.9, "path": "x", "seconds": 0.01, "worker": 2, **fields}
    assert only(slowed(15, 0.1, kept), "checkpoint").workers == (2,)


def test_a_checkpoint_that_cost_little_explains_nothing() -> None:
    kept = {"event": "checkpoint", "at": 100.9, "path": "x", "seconds": 0.01, "worker": 2}
    assert len(unexplained(slowed(15, 0.1, {**kept, "step": 15, "copy_ms": 20.0}))) == 1


@pytest.mark.parametrize("name", ["ssgd", None])
def test_the_first_round_of_a_strategy_is_slow_for_that_also_of_one_without_a_name(
    name: str | None,
) -> None:
    told = {"generation": 0, "step": 15, "strategy": "A() >> B()", "strategy_name": name}
    slow = slowed(15, 0.1, {"event": "strategy", "at": 100.14, **told})
    assert only(slow, "strategy").why == (name or "A() >> B()")


def test_rounds_in_which_somebody_learns_are_slow_for_that() -> None:
    joins = {"generation": 1, "step": 12, "joined": [3], "left": [], "pause_ms": 1.0}
    records = [*slowed(15, 0.1), {"event": "change", "at": 100.13, **joins}]
    causes = [(one.step, one.cause, one.gap) for one in story(records).interruptions]
    assert causes == [(12, "join", False), (15, "join", True)]


def test_each_strategy_has_its_own_usual_step() -> None:
    """From step 15 on steps take three times as long."""
    records, at = trace()[:2], 100.0
    for number in range(30):
        if number == 15:
            told = {"step": 15, "generation": 0, "strategy": "x", "strategy_name": "x"}
            records.append({"event": "strategy", "at": at, **told})
        at += (took := 0.03 if number >= 15 else 0.01)
        records.append(step(number, [0, 1, 2], at, took))
    assert story(records).interruptions == []


def test_what_a_resume_made_void_was_trained_in_vain() -> None:
    first = [one for one in trace()[:-1] if one.get("step", 0) < 10 and one["event"] != "cause"]
    start = {"event": "start", "at": 7.0, "time": 1.7e9 + 5.1, "workers": [0, 2]}
    resume = {"event": "resume", "at": 7.0, "step": 6, "path": "x"}
    again = [step(number, [0, 2], 7.0 + 0.01 * (number - 5), 0.01) for number in range(6, 30)]
    told = story([*first, start, resume, *again])
    (found,) = told.interruptions
    assert (found.cause, found.step) == ("resume", 6)
    assert found.why == "the run before came to no end; 4 steps were trained in vain"
    down = 5.1 - 0.11  # a step's line is written a step later
    assert found.cost == pytest.approx(down + 0.04)
    assert told.lost == pytest.approx(down + 0.04)
    assert told.total == pytest.approx(5.1 + 0.25)


def test_steps_of_one_round_are_one_gap() -> None:
    records = slowed(-1, 0.0)
    rounds = [
        {**one, "round": one["step"] // 3, "seconds": 0.05 if one["step"] // 3 == 5 else 0.01}
        for one in records
        if one["event"] == "step"
    ]
    (found,) = unexplained([*records[:2], *rounds])
    assert (found.step, found.cost) == (15, pytest.approx(0.12))


def test_of_a_trace_without_steps_there_is_nothing_to_tell() -> None:
    told = story(trace()[:1])
    assert (told.interruptions, told.usual, told.goodput) == ([], None, 1.0)
