"""Step times from a trace: what counts, what is left out, and what is no trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from spotmpi.economy.models import step_times
from spotmpi.economy.models.step_times import WARM_UP, Told
from spotmpi.errors import TraceError
from spotmpi.strategies import SSGD

Record = dict[str, Any]


def start(workers: int = 4, hosts: list[str] | None = None) -> Record:
    ids = list(range(workers))
    names = {} if hosts is None else {"hosts": hosts}
    return {"event": "start", "workers": ids, "params": 250_000, "strategy": str(SSGD()), **names}


def steps(
    numbers: Iterable[int], workers: Iterable[int], seconds: float, loss: Any = None
) -> list[Record]:
    return [
        {
            "event": "step",
            "step": number,
            "generation": 0,
            "workers": list(workers),
            "seconds": seconds,
            "loss": loss,
        }
        for number in numbers
    ]


def read(*records: Record) -> Told:
    return step_times.read(records, "run.jsonl")


def shown(told: Told) -> list[tuple[int, int, int, set[float]]]:
    return [(r.hosts, r.workers_per_host, len(r.seconds), set(r.seconds)) for r in told.runs]


def test_the_first_steps_do_not_count() -> None:
    told = read(
        start(4), *steps(range(WARM_UP), range(4), 9.0), *steps(range(5, 30), range(4), 0.1)
    )
    assert shown(told) == [(1, 4, 25, {0.1})]
    assert told.gradient_mb == pytest.approx(1.0), "250,000 floats of 4 bytes"
    assert told.strategy == step_times.SSGD


def test_a_recovery_and_what_follows_on_it_do_not_count() -> None:
    told = read(
        start(4),
        *steps(range(20), range(4), 0.1),
        {"event": "recovery", "step": 20, "lost": [3]},
        *steps(range(20, 20 + WARM_UP), range(3), 9.0),
        *steps(range(20 + WARM_UP, 40), range(3), 0.08),
    )
    assert shown(told) == [(1, 4, 15, {0.1}), (1, 3, 15, {0.08})]


def test_hosts_are_counted_and_the_fullest_decides() -> None:
    told = read(start(3, ["a", "a", "b"]), *steps(range(20), range(3), 0.1))
    assert shown(told) == [(2, 2, 15, {0.1})]


def test_steps_with_a_learner_or_with_a_worker_of_unknown_host_do_not_count() -> None:
    told = read(
        start(2),
        *steps(range(20), range(2), 0.1),
        {"event": "change", "step": 20, "joined": [2], "left": [], "pause_ms": 6},
        *steps(range(20, 60), range(2), 9.0),  # 2 learns
        *steps(range(60, 90), range(3), 9.0),  # nobody knows where it is
        {"event": "change", "step": 90, "joined": [], "left": [2], "pause_ms": 6},
        *steps(range(90, 110), range(2), 0.1),
    )
    assert shown(told) == [(1, 2, 15, {0.1}), (1, 2, 15, {0.1})]


def test_a_learner_that_is_lost_again_is_not_waited_for_for_ever() -> None:
    told = read(
        start(2),
        {"event": "change", "step": 0, "joined": [2], "left": []},
        *steps(range(10), range(2), 9.0),
        {"event": "recovery", "step": 10, "lost": [2]},
        *steps(range(10, 30), range(2), 0.1),
    )
    assert shown(told) == [(1, 2, 15, {0.1})]


def test_losses_are_by_batches_done_before_and_void_ones_are_dropped() -> None:
    told = read(
        start(4),
        *steps([0], range(4), 0.1, 5.0),
        *steps([1], range(4), 0.1, None),
        *steps([2], range(4), 0.1, None),
        *steps([3], range(2), 0.1, 4.0),
        *steps([4], range(2), 0.1, 99.0),
        start(2),
        {"event": "resume", "step": 4},
        *steps([4], range(2), 0.1, 3.0),
    )
    assert list(zip(told.iterations, told.losses, strict=True)) == [(0, 5), (12, 4), (14, 3)]


def test_a_resume_to_before_anything_begins_again() -> None:
    told = read(
        start(2),
        *steps([0], range(2), 0.1, 5.0),
        {"event": "resume", "step": 0},
        *steps([0], range(2), 0.1, 4.0),
    )
    assert (told.iterations, told.losses) == ([0.0], [4.0])


def test_what_is_no_whole_trace_is_refused() -> None:
    with pytest.raises(TraceError, match=r"run\.jsonl has no start record.*give the trace"):
        read(*steps(range(9), range(2), 0.1))
    with pytest.raises(TraceError, match=r"run\.jsonl: a record lacks .*'workers'"):
        read({"event": "start", "params": 3})
    for key, value in (("seconds", "soon"), ("workers", None), ("step", None), ("loss", [])):
        (wrong,) = steps([0], range(2), 0.1)
        with pytest.raises(TraceError, match="a record lacks"):
            read(start(2), *steps(range(9), range(2), 0.1), {**wrong, key: value})


def test_a_trace_without_steps_that_count_has_no_runs() -> None:
    assert read(start(2), *steps(range(WARM_UP), range(2), 0.1)).runs == []


def test_steps_with_somebody_who_joined_count_where_the_trace_tells_its_host() -> None:
    told = read(
        start(2),
        *steps(range(20), range(2), 0.1),
        {"event": "change", "step": 20, "joined": [2], "hosts": ["h9"], "left": []},
        *steps(range(20, 50), range(3), 0.2),
    )
    assert shown(told) == [(1, 2, 15, {0.1}), (2, 2, 25, {0.2})]
