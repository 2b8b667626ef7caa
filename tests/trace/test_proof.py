"""What `spotmpi check` claims: each check holds on a sound trace, and finds a planted fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi.simulation.schedules import STRATEGIES, Campaign
from spotmpi.simulation.search import execute, length
from spotmpi.strategies import named
from spotmpi.trace.interruptions import story
from spotmpi.trace.proof import CHECKS, findings
from spotmpi.trace.records import Record, read
from tests.trace.traced import changed, trace


def failures(records: list[Record]) -> dict[str, str]:
    return {one.what: one.said for one in findings(records) if one.holds is False}


def untold(records: list[Record]) -> dict[str, str]:
    return {one.what: one.said for one in findings(records) if one.holds is None}


def without(records: list[Record], event: str, number: int) -> list[Record]:
    places = [place for place, record in enumerate(records) if record["event"] == event]
    return [one for place, one in enumerate(records) if place != places[number]]


def test_a_sound_trace_passes_all_checks() -> None:
    found = list(findings(trace()))
    assert [one.what for one in found] == list(CHECKS)
    assert [one.holds for one in found] == [True] * len(CHECKS), found
    said = {one.what: one.said for one in found}
    assert said["steps"] == "0 to 29, each once: none is lost"
    assert said["end"] == "finished after 30 steps, with workers 0, 2 and 3"
    assert said["workers"].startswith("of 3 that began 1 lost, 0 left, 1 joined")
    assert said["generations"] == "0 to 2, never falling; a line tells of each of 2 changes"
    assert said["losses"] == "1 in 1 recovery, and the others took the next step"
    assert said["gradients"] == "0 computed again, in 2 reports of survivors"
    assert said["samples"] == "each of 12 was used once in each of 10 passes"
    assert "2 digests of survivors" in said["replicas"]


def test_a_training_in_which_nothing_happened_is_told_as_such() -> None:
    calm = [one for one in trace(3) if one["event"] not in ("recovery", "recovered", "cause")]
    said = {one.what: one.said for one in findings(calm) if one.holds}
    assert said["generations"] == "the workers never changed"
    assert {said[what] for what in ("losses", "gradients", "messages")} == {"nobody was lost"}
    assert said["samples"] == "each of 12 was used once in one pass"
    assert said["replicas"].startswith("equal to the bit in 3 rounds, in which the workers")
    cut = {one.what: one.said for one in findings(calm[:3])}
    assert cut["samples"] == "4 of 12 were used once in a pass that is not complete"


def test_without_reports_of_survivors_nothing_is_known_of_their_gradients() -> None:
    """To hold what nobody told would be a check that cannot fail."""
    unreported = [one for one in trace() if one["event"] != "recovered"]
    assert {"gradients", "messages"} <= untold(unreported).keys()


FAULTS = {
    "steps": [
        (without(trace(), "step", 4), "step 5 where step 4 is due"),
        (changed(trace(), "end", 0, step=31), "31 steps ended"),
        ([*trace()[:9], trace()[8], *trace()[9:]], "is due"),
    ],
    "end": [(changed(trace(), "end", 0, workers=[0, 2, 3, 7]), "worker 7 ended it")],
    "workers": [
        (changed(trace(), "step", 15, workers=[0, 1, 2]), "worker 1 was lost, and takes part in"),
        (changed(trace(), "step", 15, workers=[0, 2, 9]), "worker 9 takes part in step 15"),
        (changed(trace(), "step", 5, workers=[0, 1]), "worker 2 took no part in step 5"),
    ],
    "generations": [
        (changed(trace(), "step", 15, generation=0), "generation 0 comes after 1"),
        (changed(trace(), "step", 5, generation=1), "generation 1 begins with step 5, and no"),
        (without(trace(), "change", 0), "generation 2 begins with step 20, and no line tells"),
        (changed(trace(), "recovery", 0, generation=7), "no line tells what changed"),
    ],
    "losses": [
        (changed(trace(), "recovery", 0, lost=[]), "lost nobody"),
        (changed(trace(), "recovery", 0, step=40), "no step follows the loss of worker 1"),
        (changed(trace(), "recovery", 0, verdict="none"), "decided 'none'"),
    ],
    "gradients": [
        (changed(trace(), "recovered", 1, lost_steps=1), "worker 2, generation 1: 1 step lost"),
        (changed(trace(), "recovered", 0, recomputed_gradients=2), "2 gradients computed again"),
    ],
    "replicas": [
        (changed(trace(), "recovered", 1, digest="f" * 16), "the replicas differ after step 10"),
        (changed(trace(), "recovered", 1, digest=None), "worker 2 did not digest"),
        (changed(trace(), "step", 3, digest=None), "30 rounds moved the model, and only 29"),
    ],
    "contributions": [
        (
            changed(
                trace(), "step", 12, contributions=[{"worker": 0, "samples": [0], "weight": 1}]
            ),
            "step 12: [0] brought something, [0, 2] took part",
        ),
        (
            changed(
                trace(),
                "step",
                12,
                contributions=[
                    {"worker": 0, "samples": [0, 1], "weight": 2},
                    {"worker": 2, "samples": [2, 3], "weight": 3},
                ],
            ),
            "worker 2 has 2 samples and weight 3",
        ),
    ],
    "samples": [
        (changed(trace(), "step", 1, **{"pass": 7}), "sample 4 of 12 was never used in pass 0"),
        (changed(trace(), "batches", 0, passes=11), "10 of 11 passes are in the trace"),
        (changed(trace(), "batches", 0, n=13), "sample 12 of 13 was never used in pass 0"),
        (changed(trace(), "batches", 0, n=11), "used sample 11 of 11"),
        (
            changed(
                trace(),
                "step",
                29,
                contributions=[
                    {"worker": 0, "samples": [8, 9], "weight": 2},
                    {"worker": 2, "samples": [10], "weight": 1},
                    {"worker": 3, "samples": [], "weight": 0},
                ],
            ),
            "sample 11 of 12 was never used in pass 9",
        ),
        (
            changed(
                trace(),
                "step",
                13,
                contributions=[
                    {"worker": 0, "samples": [4, 5], "weight": 2},
                    {"worker": 2, "samples": [6, 0], "weight": 2},
                ],
            ),
            "step 13: worker 2 used sample 0 again in pass 4",
        ),
    ],
    "messages": [
        (changed(trace(), "recovered", 0, messages_sent={"0": 7}), "worker 0 sent 7 messages"),
    ],
}


@pytest.mark.parametrize(
    ("what", "records", "complaint"),
    [(what, *fault) for what, faults in FAULTS.items() for fault in faults],
)
def test_a_planted_fault_is_found(what: str, records: list[Record], complaint: str) -> None:
    found = failures(records)
    assert what in found, found
    assert complaint in found[what]


def test_there_is_a_planted_fault_for_each_check() -> None:
    assert FAULTS.keys() == CHECKS.keys()


def test_what_a_trace_does_not_tell_is_not_held_against_it() -> None:
    """Those of earlier versions say less, and one that still runs has no end."""
    bare = [
        {k: v for k, v in one.items() if k not in ("loop", "pass", "messages_sent")}
        for one in trace()
        if one["event"] not in ("batches", "end")
    ]
    assert failures(bare) == {}
    assert untold(bare).keys() == {"end", "samples", "messages"}
    only = trace()[:1]
    assert failures(only) == {}
    assert "steps" in untold(only)


def test_batches_that_a_script_left_early_are_no_offence() -> None:
    cut = [one for one in trace() if one.get("step", 0) < 14 and one["event"] != "end"]
    end = {"event": "end", "at": 101.0, "step": 14, "workers": [0, 2], "outcome": "finished"}
    early = [*cut, {**end, "left_early": [0]}]
    assert failures(early) == {}
    said = {one.what: one.said for one in findings(early)}
    assert said["samples"] == (
        "each of 12 was used once in each of 4 passes, and 8 of them in one that is not complete"
    )
    assert "samples" in failures([*cut, {**end, "left_early": []}])


def test_a_training_that_was_resumed_is_one_training() -> None:
    """What the second run did again was void."""
    first = [one for one in trace() if one["event"] != "end" and one.get("step", 0) < 15]
    start = {"event": "start", "at": 5.0, "workers": [0, 1]}
    resume = {"event": "resume", "at": 5.0, "step": 12, "path": "x"}
    again = [
        {**one, "workers": [0, 1], "generation": 0, "contributions": parts(one)}
        for one in trace()
        if one["event"] == "step" and one["step"] >= 12
    ]
    end = {**trace()[-1], "workers": [0, 1]}
    assert failures([*first, start, resume, *again, end]) == {}


def parts(record: Record) -> list[dict[str, object]]:
    samples = sorted(s for one in record["contributions"] for s in one["samples"])
    return [
        {"worker": worker, "samples": some, "weight": len(some)}
        for worker, some in enumerate((samples[:1], samples[1:]))
    ]


@pytest.mark.parametrize("strategy", [None, "localsgd:h=3", "adpsgd:control=3", STRATEGIES[-3]])
@pytest.mark.parametrize("runs", [6, pytest.param(40, marks=pytest.mark.matrix)])
def test_traces_of_trainings_that_lose_and_gain_workers_pass(
    tmp_path: Path, runs: int, strategy: str | None
) -> None:
    """Written by the very code that trains, in the simulator."""
    known = [] if strategy is None else [(strategy,)]
    campaign = Campaign(2, 7, 11, None, *known)
    told = 0
    for number in range(runs):
        path = tmp_path / f"{number}.jsonl"
        execute(campaign.schedule(number, length), trace_to=path)
        records = list(read(path))
        wrong = failures(records)
        if any(one["event"] == "gap" for one in records):
            assert wrong.keys() == {"steps"}
            continue
        causes = {one.cause for one in story(records).interruptions if one.parts}
        assert causes <= {"killed"}
        assert wrong == {}, f"schedule {number}: {json.dumps(records[-1])}"
        told += any(one["event"] == "recovery" for one in records)
    assert told > runs / 4
    assert named(strategy or "ssgd")
