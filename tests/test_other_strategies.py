"""Strategies through deaths, joins, leaves and resumes, as a script with a `Trainer` has them.

Their parameters are computed again by `replay`, from the trace alone, and must agree to the bit.
It runs the strategy's own operators, in one process, without rounds, recoveries or newcomers: so
what is found here is work that is lost or counted twice. That the operators are right is held apart
from them: of the shipped strategies by `spotmpi.simulation.truths` (tests/simulation), of others by
hand (test_operators).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.arrays.backend import HOST
from spotmpi.fabric.sim.faults import Arrival, Kill
from spotmpi.optimizers import SGD, Adam, Momentum
from spotmpi.protocol.membership import Membership
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from spotmpi.rounds.driver import Driver
from spotmpi.strategies import Strategy, named
from spotmpi.training.steps import digest_check
from spotmpi.training.steps.step_round import StepRound
from spotmpi.training.steps.worker_steps import RoundSteps
from spotmpi.training.synchroniser import Synchroniser
from tests import simulated
from tests.chaos.others import STRATEGIES
from tests.simulated import Final, Job, Result, bits, check_gradients, gradient, params
from tests.test_member import campaign, joined, left

LOCALSGD = "localsgd:h=3"
SMA = "sma:pull=0.75,momentum=0.5"
LOOKAHEAD = "lookahead:every=4,mix=0.25"
STREAMED = "diloco:h=8,outer=0.5,momentum=0.75,fragments=2,delay=2,mix=0.25"
SHIPPED = [
    LOCALSGD,
    SMA,
    "easgd:every=2,pull=0.5",
    LOOKAHEAD,
    "diloco:h=3,outer=0.5,momentum=0.75",
    STREAMED,
    "diloco:h=4,outer=0.75,momentum=0.5,narrow=int8",
]
"""Those that average models: campaigns of them are in tests/simulation."""
OWN_MODELS = [name for name in SHIPPED if name.startswith(("sma", "easgd")) or name == STREAMED]
"""Workers go on with models of their own after a round."""


def strategy_of(name: str) -> Strategy:
    """That of tests/chaos, or one that is shipped."""
    return STRATEGIES[name]() if name in STRATEGIES else named(name)


def job(name: str, folder: Path, workers: int = 3, **more: Any) -> Job:
    """One with this strategy; the last round of a pass is shorter than the others."""
    size = 3 if "summing" in name else 2  # as to divide by 2 rounds nothing
    known = {"samples": 85, "batch_size": size, **more}
    return Job(folder, workers, strategy=lambda: strategy_of(name), **known)


def check_model(name: str, result: Result, optimizer: Any = Momentum) -> None:
    """All that finished have the one that the trace leads to."""
    (agreed,) = {final.bits for final in result.finals.values()}
    # Worker 0's parameters count, or the next one's if it died before it gave them to anybody.
    given = range(steps(result.records)[0]["workers"][0] + 1)
    assert agreed in (
        bits(replay(result.records, params(one), gradient, optimizer(lr=0.05), strategy_of(name)))
        for one in given
    )


def check_with(name: str, optimizer: Any = Momentum) -> Any:
    """All that is promised of such a job."""

    def check(result: Result) -> None:
        finals, done = result.finals, steps(result.records)
        if not finals:
            return
        check_exactly_once(result.records, result.job.samples, result.job.passes)
        check_replicas(result.records)
        check_model(name, result, optimizer)
        assert {final.steps for final in finals.values()} == {len(done)}
        if not result.of("resume"):  # which counts gradients and rounds from its own beginning
            check_gradients(result)
            lengths = Counter(record["round"] for record in done).values()
            assert max(lengths) == strategy_of(name).every
        for record in result.of("recovery") + result.of("recovered"):
            assert record["lost_steps"] == record["recomputed_gradients"] == 0

    return check


@pytest.mark.parametrize("name", [*STRATEGIES, *SHIPPED])
def test_it_trains_what_the_trace_says_while_nothing_happens(tmp_path: Path, name: str) -> None:
    result = job(name, tmp_path).run()
    check_with(name)(result)
    assert set(result.finals) == {0, 1, 2}
    plain = replace(job(name, tmp_path / "plain"), strategy=lambda: named("ssgd"))
    plain.folder.mkdir()
    assert result.finals[0].bits != plain.run().finals[0].bits
    own = {final.own for final in result.finals.values()}
    assert len(own) == (3 if name in OWN_MODELS else 1)


@pytest.mark.parametrize("name", [*STRATEGIES, STREAMED])
@pytest.mark.first(
    "accumulating",
    "clipping and summing narrowly",
    "broadcast",
    "diloco:h=8,outer=0.5,momentum=0.75,fragments=2,delay=2,mix=0.5",
)
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path, name: str) -> None:
    results = campaign(job(name, tmp_path / "calm"), runs=10, holds=check_with(name))
    assert joined(results)
    assert left(results)
    assert any(result.of("recovery") for result in results)


def test_a_page_goes_ahead_with_what_is_sent_before_the_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, ahead = Driver.start, []

    def watched(self: Driver, parts: int | None) -> Any:
        yield from start(self, parts)
        ahead.append((self._exchange.memory.transfer.teaching, parts))

    monkeypatch.setattr(Driver, "start", watched)
    result = job(STREAMED, tmp_path, arrivals=[Arrival(3, 40)]).run()
    check_model(STREAMED, result)
    assert joined([result])
    # With a page the round waits for its head, which tells of the last step.
    assert set(ahead) == {(False, None), (True, 2)}


@pytest.mark.parametrize("name", [SMA, STREAMED])
def test_digests_that_are_made_while_scripts_compute_are_those_of_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    at_once = job(name, tmp_path).run().of("step")
    monkeypatch.setattr(digest_check, "LEAST_BESIDE", 0)
    (tmp_path / "beside").mkdir()
    beside = job(name, tmp_path / "beside").run().of("step")
    assert [one["digest"] for one in beside] == [one["digest"] for one in at_once]
    assert sum(one["digest"] is not None for one in beside) == len({one["round"] for one in beside})
    results = campaign(job(name, tmp_path / "calm"), runs=6, holds=check_with(name))
    assert any(one["digest"] for result in results for one in result.of("recovered"))


@pytest.mark.parametrize("name", [LOCALSGD, LOOKAHEAD])
def test_an_optimizer_that_counts_goes_with_them(tmp_path: Path, name: str) -> None:
    """Where workers move for themselves, each counts its own updates."""
    calm = job(name, tmp_path / "calm", optimizer=lambda: Adam(lr=0.05))
    results = campaign(calm, runs=6, holds=check_with(name, Adam))
    assert joined(results)


@pytest.mark.parametrize("name", ["clipping", "summing"])
@pytest.mark.parametrize("how", ["born_in_place", "in_pieces"])
@pytest.mark.first("in_pieces-clipping", "born_in_place-summing")
def test_gradients_are_clipped_or_divided_once_wherever_they_are(
    tmp_path: Path, how: str, name: str
) -> None:
    """Also where they lie in what others read, and a round is tried again."""
    calm = job(name, tmp_path / "calm", **{how: True})
    results = campaign(calm, runs=6, holds=check_with(name))
    assert any(result.of("recovery") for result in results)


@pytest.mark.parametrize("name", [*STRATEGIES, *SHIPPED])
@pytest.mark.first(
    "clipping and summing narrowly",
    "broadcast, narrowed",
    "sma:pull=0.75,momentum=0.5",
    "lookahead:every=4,mix=0.25",
    "diloco:h=3,outer=0.5,momentum=0.75",
)
def test_a_job_that_lost_every_worker_resumes_from_a_round(tmp_path: Path, name: str) -> None:
    """With a checkpoint every fourth step, which is often in the middle of a round."""
    every = {"SPOTMPI_CHECKPOINT_EVERY": "4"}
    calm = job(name, tmp_path, optimizer=lambda: SGD(lr=0.05), scale_lr="none")
    events = calm.run().events
    for seed in range(3):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kept = {**every, "SPOTMPI_CHECKPOINT": str(place / "kept")}
        moment = events * (2 * seed + 7) // 14
        kills = [Kill(worker, moment + 3 * worker) for worker in range(3)]
        dead = replace(calm, folder=place, seed=seed, kills=kills, environ=kept)
        assert not dead.run().finals
        again = {**kept, "SPOTMPI_RESUME": "1"}
        whole = replace(dead, workers=2, kills=(), environ=again).run()
        assert whole.of("resume")
        check_with(name, SGD)(whole)


def who_was_not_the_first_brings_nothing_later(patch: pytest.MonkeyPatch) -> None:
    count = Synchroniser.count
    patch.setattr(Synchroniser, "count", lambda self, mine: None if mine else count(self, mine))


def the_first_of_the_membership_counts_though_it_learns(patch: pytest.MonkeyPatch) -> None:
    prepare = StepRound.prepare

    def wrong(self: StepRound, membership: Membership, me: int) -> None:
        with patch.context() as inner:
            inner.setattr(RoundSteps, "first_dealt", lambda self, workers: membership.ids[-1])
            prepare(self, membership, me)

    patch.setattr(StepRound, "prepare", wrong)


def each_finds_itself_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Synchroniser, "count", lambda self, mine: None)


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


@pytest.mark.parametrize("name", [LOCALSGD, SMA, STREAMED, "broadcast, narrowed"])
@pytest.mark.first(LOCALSGD, STREAMED)
def test_what_was_done_since_the_last_round_counts_wherever_the_script_goes_on(
    tmp_path: Path, name: str
) -> None:
    def holds(result: Result) -> None:
        if not result.finals:
            return
        assert {final.steps for final in result.finals.values()} == {25}
        assert [record["step"] for record in steps(result.records)] == [*range(25)]
        for record in result.records:  # steps without batches say what the script used
            for part in record.get("contributions", ()):
                if part["samples"] is None:
                    part["samples"] = np.arange(40)
        check_model(name, result)

    known = job(name, tmp_path / "calm")
    calm = Left(known.folder, 3, strategy=known.strategy, samples=40, scale_lr="none")
    results = simulated.campaign(
        calm,
        range(12),
        lambda events, seed: {
            "kills": [Kill(seed % 3, events * seed // 13)],
            "arrivals": [Arrival(3, events * (seed - 4) // 13)] * (seed > 3),
        },
        holds,
    )
    assert any(3 in result.finals for result in results)
    assert all(result.finals for result in results)
    if name == LOCALSGD:
        assert {final.own == final.bits for final in results[0].finals.values()} == {True}


@pytest.mark.campaign
@pytest.mark.parametrize("name", [*STRATEGIES, *SHIPPED])
@pytest.mark.parametrize("workers", [2, 4, 6])
def test_a_long_campaign_of_other_strategies(tmp_path: Path, name: str, workers: int) -> None:
    calm = job(name, tmp_path / "calm", workers, samples=150)
    results = campaign(calm, runs=250, first=30_000, holds=check_with(name))
    assert len(joined(results)) > 20


def test_workers_have_their_memory_before_their_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newcomers, too. Else the first rounds wait for it."""
    had: list[int] = []
    monkeypatch.setattr(type(HOST), "occupy", lambda self, flat: had.append(id(flat)))
    occupy, occupied = Synchroniser.occupy, []

    def watched(self: Synchroniser[Any]) -> None:
        occupy(self)
        brought = [flat for arena in self.memory.arenas for flat in arena.contributions]
        flats = [*brought, *self.memory.free(), *chain(*self.state.values())]
        assert {id(flat) for flat in flats} <= {*had}
        occupied.append(self.arena.record[0].any())

    monkeypatch.setattr(Synchroniser, "occupy", watched)
    result = job(STREAMED, tmp_path, arrivals=[Arrival(3, 40)]).run()
    assert joined([result])
    assert occupied == [False] * 4, "before any sum"
