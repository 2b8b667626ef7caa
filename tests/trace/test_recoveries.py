"""The recoveries of a trace, and how they are told."""

from __future__ import annotations

from spotmpi.trace.recoveries import described, named, parts, recoveries
from tests.trace.traced import changed, trace


def test_a_recovery_is_told_in_one_line() -> None:
    first, last = described(trace())
    assert first == (
        "recovery 1: worker 1 lost; 2 survivors go on 40.0 ms after the death (detection 6.0, "
        "agreement 5.0, rebuilding 4.0, retry 25.0); retry"
    )
    assert last == (
        "for comparison: an ordinary step took 10.0 ms (median); "
        "those with a recovery, from begin to end, 50 ms"
    )


def test_where_the_moment_of_death_is_unknown_so_is_the_time() -> None:
    records = trace()
    for number in (0, 1):
        records = changed(records, "recovered", number, total_ms=None, detect_ms=None)
    first, _ = described(changed(records, "recovery", 0, total_ms=None, detect_ms=None))
    assert first.endswith("go on a time unknown after the death; retry")


def test_what_is_told_is_what_the_last_survivor_tells_and_adds_up() -> None:
    records = changed(trace(), "recovered", 1, total_ms=42.0, came_ms=7.5)
    first, _ = described(records)
    assert "42.0 ms after the death (computing 7.5, detection 6.0, agreement 5.0, " in first
    (found,) = recoveries(records)
    assert sum(parts(found.last).values()) == 42.0


def test_two_records_of_one_generation_are_one_recovery() -> None:
    """The first one's writer died."""
    place = next(at for at, one in enumerate(trace()) if one["event"] == "recovery")
    again = [*trace()[: place + 1], trace()[place], *trace()[place + 1 :]]
    (found,) = recoveries(again)
    assert [one["worker"] for one in found.survivors] == [0, 2]
    assert found.total == 40.0


def test_a_later_run_counts_generations_anew() -> None:
    first = [one for one in trace() if one["event"] != "end"]
    start = {"event": "start", "at": 1.0, "workers": [0, 1, 2]}
    resume = {"event": "resume", "at": 1.0, "step": 5, "path": "x"}
    assert [one.step for one in recoveries([*first, start, resume, *trace()[1:]])] == [10]
    late = {**resume, "step": 25}
    assert len(recoveries([*first, start, late])) == 1


def test_one_survivor_goes_on() -> None:
    alone = [one for one in trace() if one["event"] != "recovered" or one["worker"] == 0]
    assert "; 1 survivor goes on 40.0 ms after the death" in next(iter(described(alone)))


def test_workers_are_named_as_one_says_it() -> None:
    assert (named([3]), named([1, 2, 4])) == ("worker 3", "workers 1, 2 and 4")
