"""Strategies with a round every third step and with LOCAL state, through deaths, joins, resumes.

Their parameters are computed again from the trace, worker by worker, and must agree to the bit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi.fabric.sim import Kill
from spotmpi.optimizers import SGD, Momentum
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from tests.chaos.others import NOW_AND_THEN, STRATEGIES, truth
from tests.simulated import Job, Result, bits, check_gradients, gradient, params
from tests.test_member import campaign, joined, left

NAMES = [name for name in STRATEGIES if name != "SSGD"]


def job(name: str, folder: Path, workers: int = 3, **more: Any) -> Job:
    """One with this strategy; the last round of a pass is shorter than the others."""
    size = 3 if "summing" in name else 2  # as to divide by 2 rounds nothing
    known = {"samples": 85, "batch_size": size, **more}
    return Job(folder, workers, strategy=STRATEGIES[name], **known)


def check_with(name: str, optimizer: Any = Momentum) -> Any:
    """All that is promised of such a job."""

    def check(result: Result) -> None:
        finals, done = result.finals, steps(result.records)
        if not finals:
            return
        check_exactly_once(result.records, result.job.samples, result.job.passes)
        check_replicas(result.records)
        given = range(done[0]["workers"][0] + 1)
        truths = {
            bits(truth(name, result.records, params(first), gradient, optimizer(lr=0.05)))
            for first in given
        }
        again = {
            bits(
                replay(
                    result.records, params(first), gradient, optimizer(lr=0.05), STRATEGIES[name]()
                )
            )
            for first in given
        }
        assert {final.bits for final in finals.values()} <= truths & again
        assert len({final.bits for final in finals.values()}) == 1
        assert {final.steps for final in finals.values()} == {len(done)}
        check_gradients(result)
        longest = 3 if name in NOW_AND_THEN else 1
        assert max(Counter(record["round"] for record in done).values()) == longest
        for record in result.of("recovery") + result.of("recovered"):
            assert record["lost_steps"] == record["recomputed_gradients"] == 0

    return check


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_what_the_trace_says_while_nothing_happens(tmp_path: Path, name: str) -> None:
    result = job(name, tmp_path).run()
    check_with(name)(result)
    assert set(result.finals) == {0, 1, 2}
    plain = replace(job(name, tmp_path / "plain"), strategy=STRATEGIES["SSGD"])
    plain.folder.mkdir()
    assert result.finals[0].bits != plain.run().finals[0].bits


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.first("accumulating", "clipping", "summing")
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path, name: str) -> None:
    results = campaign(job(name, tmp_path / "calm"), runs=40, holds=check_with(name))
    assert joined(results)
    assert left(results)
    assert any(result.of("recovery") for result in results)


@pytest.mark.parametrize("name", ["clipping", "summing"])
@pytest.mark.parametrize("how", ["born_in_place", "in_pieces"])
@pytest.mark.first("in_pieces-clipping", "born_in_place-summing")
def test_gradients_are_clipped_or_divided_once_wherever_they_are(
    tmp_path: Path, how: str, name: str
) -> None:
    """Also where they lie in what others read, and a round is tried again."""
    calm = job(name, tmp_path / "calm", **{how: True})
    results = campaign(calm, runs=20, holds=check_with(name))
    assert any(result.of("recovery") for result in results)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.first("accumulating", "narrowly", "clipping and summing now and then")
def test_a_job_that_lost_every_worker_resumes_from_a_round(tmp_path: Path, name: str) -> None:
    """With a checkpoint every fourth step, which is the end of no third one."""
    every = {"SPOTMPI_CHECKPOINT_EVERY": "4"}
    calm = job(name, tmp_path, optimizer=lambda: SGD(lr=0.05), scale_lr="none")
    events = calm.run().events
    resumed = 0
    for seed in range(6):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kept = {**every, "SPOTMPI_CHECKPOINT": str(place / "kept")}
        moment = events * (seed + 7) // 14
        kills = [Kill(worker, moment + 3 * worker) for worker in range(3)]
        dead = replace(calm, folder=place, seed=seed, kills=kills, environ=kept)
        assert not dead.run().finals
        again = {**kept, "SPOTMPI_RESUME": "1"}
        whole = replace(dead, workers=2, kills=(), environ=again).run()
        check_exactly_once(whole.records, calm.samples, calm.passes)
        end = bits(truth(name, whole.records, params(0), gradient, SGD(lr=0.05)))
        assert {final.bits for final in whole.finals.values()} == {end}
        resumed += bool(whole.of("resume"))
    assert resumed == 6


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [2, 4, 6])
def test_a_long_campaign_of_other_strategies(tmp_path: Path, name: str, workers: int) -> None:
    calm = job(name, tmp_path / "calm", workers, samples=150)
    results = campaign(calm, runs=250, first=30_000, holds=check_with(name))
    assert len(joined(results)) > 20
