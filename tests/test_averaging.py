"""Strategies that average models, through deaths, joins, leaves and resumes.

The model of all and each worker's own are computed again from the trace, twice: with NumPy alone,
and by `replay`. Both must agree with the run to the bit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.fabric.sim import Arrival, Kill
from spotmpi.optimizers import SGD, Adam, Momentum
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from spotmpi.training.replica import Replica
from spotmpi.training.rounds.memory import RoundMemory
from spotmpi.training.turns import Turn
from tests import simulated
from tests.chaos.averaged import LONGEST, STRATEGIES, truth
from tests.simulated import Final, Job, Result, bits, check_gradients, gradient, params
from tests.test_member import campaign, joined, left

NAMES = list(STRATEGIES)


def job(name: str, folder: Path, workers: int = 3, **more: Any) -> Job:
    """One with this strategy; the last round of a pass is shorter than the others."""
    return Job(folder, workers, strategy=STRATEGIES[name], **{"samples": 85, **more})


def check_with(name: str, optimizer: Any = Momentum) -> Any:
    """All that is promised of such a job."""

    def check(result: Result) -> None:
        finals, done = result.finals, steps(result.records)
        if not finals:
            return
        check_exactly_once(result.records, result.job.samples, result.job.passes)
        check_replicas(result.records)
        assert len({final.bits for final in finals.values()}) == 1
        agreed = next(iter(finals.values())).bits
        for first in range(done[0]["workers"][0] + 1):
            model, own = truth(name, result.records, params(first), gradient, optimizer(lr=0.05))
            if bits(model) == agreed:
                break
        assert bits(model) == agreed
        again = replay(
            result.records, params(first), gradient, optimizer(lr=0.05), STRATEGIES[name]()
        )
        assert bits(again) == agreed
        for worker, final in finals.items():
            if worker in own:
                assert final.own == bits(own[worker])
        assert {final.steps for final in finals.values()} == {len(done)}
        if not result.of("resume"):  # which counts gradients and rounds from its own beginning
            check_gradients(result)
            lengths = Counter(record["round"] for record in done).values()
            assert max(lengths) == LONGEST.get(name, 1)
        for record in result.of("recovery") + result.of("recovered"):
            assert record["lost_steps"] == record["recomputed_gradients"] == 0

    return check


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_what_the_trace_says_while_nothing_happens(tmp_path: Path, name: str) -> None:
    result = job(name, tmp_path).run()
    check_with(name)(result)
    assert set(result.finals) == {0, 1, 2}
    own = {final.own for final in result.finals.values()}
    assert len(own) == (3 if name in ("sma", "easgd", "streamed") else 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.first("localsgd", "easgd", "streamed")
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path, name: str) -> None:
    results = campaign(job(name, tmp_path / "calm"), runs=30, holds=check_with(name))
    assert joined(results)
    assert left(results)
    assert any(result.of("recovery") for result in results)


@pytest.mark.parametrize("name", ["localsgd", "lookahead"])
def test_an_optimizer_that_counts_goes_with_them(tmp_path: Path, name: str) -> None:
    """Where workers move for themselves, each counts its own updates."""
    calm = job(name, tmp_path / "calm", optimizer=lambda: Adam(lr=0.05))
    results = campaign(calm, runs=12, holds=check_with(name, Adam))
    assert joined(results)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_lost_every_worker_resumes_from_a_round(tmp_path: Path, name: str) -> None:
    """With a checkpoint every fourth step, which is often in the middle of a round."""
    every = {"SPOTMPI_CHECKPOINT_EVERY": "4"}
    calm = job(name, tmp_path, optimizer=lambda: SGD(lr=0.05), scale_lr="none")
    events = calm.run().events
    for seed in range(4):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kept = {**every, "SPOTMPI_CHECKPOINT": str(place / "kept")}
        moment = events * (seed + 7) // 12
        kills = [Kill(worker, moment + 3 * worker) for worker in range(3)]
        dead = replace(calm, folder=place, seed=seed, kills=kills, environ=kept)
        assert not dead.run().finals
        again = {**kept, "SPOTMPI_RESUME": "1"}
        whole = replace(dead, workers=2, kills=(), environ=again).run()
        assert whole.of("resume")
        check_with(name, SGD)(whole)


def who_was_not_the_first_brings_nothing_later(patch: pytest.MonkeyPatch) -> None:
    count = Replica.count
    patch.setattr(Replica, "count", lambda self, mine: None if mine else count(self, mine))


def the_first_of_the_membership_counts_though_it_learns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Turn, "first_dealt", lambda self, workers: workers[-1])
    patch.setattr(RoundMemory, "full", lambda self, workers: workers)


def each_finds_itself_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "count", lambda self, mine: None)


@pytest.mark.parametrize(
    "broken",
    [
        who_was_not_the_first_brings_nothing_later,
        the_first_of_the_membership_counts_though_it_learns,
        each_finds_itself_the_first,
    ],
)
def test_a_broken_broadcast_is_found(tmp_path: Path, broken: Any, monkeypatch: Any) -> None:
    broken(monkeypatch)
    calm = job("broadcast", tmp_path / "calm")
    with pytest.raises(AssertionError, match="3 workers, seed"):
        campaign(calm, runs=30, holds=check_with("broadcast"))


@dataclass(frozen=True)
class Left(Job):
    """A script that leaves its batches, and its steps without any, in the middle of rounds."""

    def script(self, worker: int) -> Final:
        """Seven steps with batches, then five without, then a pass."""
        trainer = spotmpi.Trainer(
            params(worker), optimizer=Momentum(lr=0.05), strategy=self.strategy(), scale_lr="none"
        )
        everything = np.arange(self.samples)
        with trainer:
            for _ in range(2):
                for batch in trainer.batches(self.samples, self.batch_size):
                    if trainer.steps == 7:
                        break
                    trainer.step(gradient(trainer.params, batch), loss=1.0)
            for batch in trainer.batches(self.samples, self.batch_size):
                trainer.step(gradient(trainer.params, batch), loss=1.0)
            while trainer.steps < 25:
                trainer.step(gradient(trainer.params, everything))
        model = bits(trainer.model), trainer.steps, Counter[int](), ()
        return Final(*model, False, (), 0, bits(trainer.params))


def with_samples(records: list[Any], samples: int) -> list[Any]:
    """The same trace, in which steps without batches say what the script used."""
    for record in records:
        for part in record.get("contributions", ()):
            if part["samples"] is None:
                part["samples"] = np.arange(samples)
    return records


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.first("sma", "diloco, narrowed", "lookahead")
def test_what_was_done_since_the_last_round_counts_wherever_the_script_goes_on(
    tmp_path: Path, name: str
) -> None:
    def holds(result: Result) -> None:
        finals = result.finals.values()
        if not finals:
            return
        assert {final.steps for final in finals} == {25}
        assert [record["step"] for record in steps(result.records)] == [*range(25)]
        assert len({final.bits for final in finals}) == 1
        records = with_samples(result.records, 40)
        truths = [
            truth(name, records, params(first), gradient, Momentum(lr=0.05)) for first in range(3)
        ]
        assert next(iter(finals)).bits in [bits(model) for model, _ in truths]

    calm = Left(tmp_path / "calm", 3, strategy=STRATEGIES[name], samples=40, scale_lr="none")
    results = simulated.campaign(
        calm,
        range(16),
        lambda events, seed: {
            "kills": [Kill(seed % 3, events * seed // 17)],
            "arrivals": [Arrival(3, events * (seed - 4) // 17)] * (seed > 3),
        },
        holds,
    )
    assert any(3 in result.finals for result in results)
    assert all(result.finals for result in results)
    if name == "localsgd":
        assert {final.own == final.bits for final in results[0].finals.values()} == {True}


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("workers", [2, 4, 6])
def test_a_long_campaign_of_averages(tmp_path: Path, name: str, workers: int) -> None:
    calm = job(name, tmp_path / "calm", workers, samples=150)
    results = campaign(calm, runs=250, first=30_000, holds=check_with(name))
    assert len(joined(results)) > 20
