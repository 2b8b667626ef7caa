"""Policies in trainings whose workers die, join and leave: what they decide, all do alike."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.fabric.sim.faults import Arrival, Kill
from spotmpi.optimizers import SGD, Momentum
from spotmpi.policies import Fixed, Metrics, Policy, Schedule
from spotmpi.protocol import tables
from spotmpi.strategies import ADPSGD, SSGD, DiLoCo, LocalSGD, Lookahead, Strategy
from tests.simulated import Final, Job, Result, gradient, params
from tests.test_member import campaign, joined
from tests.test_switching import Changing, changes, check

LOCAL, LOOKING = LocalSGD(h=3), Lookahead(every=4, mix=0.25)


class ByWorkers(Policy):
    """One that somebody has written: alone as it is, with others as it likes."""

    strategies = (SSGD(), LOCAL, LOOKING)

    def decide(self, metrics: Metrics) -> Strategy | None:
        """Another one for each number of workers."""
        return self.strategies[metrics.workers % 3]


def decided(folder: Path, policy: Policy) -> Changing:
    """A job whose script leaves it to a policy."""
    known = (SSGD, lambda: LOCAL, lambda: LOOKING)
    return Changing(folder, 3, samples=200, strategies=known, every=10**9, policy=policy)


@pytest.mark.matrix
def test_a_schedule_is_followed_whoever_comes_and_goes(tmp_path: Path) -> None:
    policy = Schedule({0: SSGD(), 10: LOCAL, 30: LOOKING, 50: SSGD()})
    results = campaign(decided(tmp_path / "calm", policy), runs=30, holds=check)
    assert joined(results)
    usual = {("ssgd", "localsgd"), ("localsgd", "lookahead"), ("lookahead", "ssgd")}
    assert usual <= changes(results)
    explained = [
        (result, one) for result in results for one in result.of("strategy") if one["figures"]
    ]
    assert len(explained) > 60  # but for those whose leader did not live to tell
    for result, one in explained:
        assert one["why"].startswith(f"{policy}, with ")
        assert one["figures"]["workers"] in {len(step["workers"]) for step in result.of("step")}
    assert any(one["figures"]["noise"] is not None for _, one in explained)


def test_the_trace_has_every_survey_once_also_where_the_leader_dies(tmp_path: Path) -> None:
    policy = Schedule({0: SSGD(), 10: LOCAL, 40: SSGD()})
    calm = decided(tmp_path / "calm", policy)
    (tmp_path / "calm").mkdir()
    found = calm.run()
    kills = [Kill(0, found.events // 2)]
    (tmp_path / "dead").mkdir()
    for result in (found, replace(calm, folder=tmp_path / "dead", kills=kills).run()):
        check(result)
        told = result.of("survey")
        at = [one["step"] for one in told]
        assert len(at) > 3
        assert at == sorted(set(at))
        assert {one["strategy"] for one in told} == {"ssgd", "localsgd:h=3"}
        steps = {one["step"]: len(one["workers"]) for one in result.of("step")}
        for one in told:
            assert one["figures"]["workers"] == steps[one["step"] - 1]
        due = [one["step"] for one in result.of("strategy")]
        decided_at = [one["step"] for one in told if one["decides"] is not None]
        assert len(due) == len(decided_at) == 2
        assert all(0 <= then - now < 8 for now, then in zip(decided_at, due, strict=True))
    assert found.finals.keys() == {0, 1, 2}


def surveys_after_changes(result: Result) -> list[int]:
    """For each survey the number of its last step, from the last change before it on."""
    changes = [0, *(one["step"] for one in result.of("strategy"))]
    at = [one["step"] for one in result.of("survey")]
    return [step - max(one for one in changes if one < step) for step in at]


def test_surveys_come_early_after_a_change_and_then_seldom(tmp_path: Path) -> None:
    calm = decided(tmp_path, Schedule({0: SSGD(), 20: LOCAL}))
    result = replace(calm, samples=900).run()
    (change,) = (one["step"] for one in result.of("strategy"))
    assert change == 33  # it is decided after step 32, and heard with the next
    assert surveys_after_changes(result)[:9] == [2, 4, 6, 8, 10, 12, 14, 16, 32]
    after = [one["step"] - change for one in result.of("survey") if one["step"] > change]
    # Rounds of 3 steps: the second, the fourth, and then every fifth.
    assert after[:6] == [6, 12, 15, 30, 45, 60]


def test_who_comes_right_after_a_change_knows_which_rounds_have_surveys(tmp_path: Path) -> None:
    calm = decided(tmp_path, Schedule({0: SSGD(), 10: LOCAL}))
    events = calm.run().events
    came = 0
    for turn in range(8):
        (folder := tmp_path / f"{turn}").mkdir()
        arrivals = [Arrival(3, events // 12 + turn * events // 20)]
        result = replace(calm, folder=folder, arrivals=arrivals).run()
        check(result)
        came += 3 in result.finals
    assert came > 4


@pytest.mark.matrix
def test_what_a_policy_of_ones_own_decides_is_done(tmp_path: Path) -> None:
    results = campaign(decided(tmp_path / "calm", ByWorkers()), runs=30, holds=check)
    assert len(changes(results)) > 2


def test_a_name_on_the_command_line_goes_first_also_where_a_job_resumes(tmp_path: Path) -> None:
    kept = {"SPOTMPI_CHECKPOINT": str(tmp_path / "kept"), "SPOTMPI_CHECKPOINT_EVERY": "4"}
    policy = Schedule({0: SSGD(), 10: LOCAL})
    calm = replace(decided(tmp_path, policy), workers=2, optimizer=lambda: SGD(lr=0.05))
    events = calm.run().events
    kills = [Kill(worker, events * 3 // 4 + worker) for worker in range(2)]
    dead = replace(calm, kills=kills, environ=kept).run()
    assert not dead.finals
    assert [one["strategy_name"] for one in dead.of("strategy")] == ["localsgd:h=3"]
    again = {**kept, "SPOTMPI_RESUME": "1", "SPOTMPI_STRATEGY": "ssgd"}
    result = replace(calm, environ=again).run()
    check(result)
    assert result.of("start")[-1]["strategy_name"] == "localsgd:h=3"
    assert result.of("strategy")[-1]["strategy_name"] == "ssgd"


class Odd(Policy):
    """One that was not thought through."""

    strategies = (SSGD(), LOCAL)

    def __init__(self, wants: object) -> None:
        self.wants = wants

    def decide(self, metrics: Metrics) -> Strategy | None:
        """Something."""
        return self.wants  # type: ignore[return-value]


def _train(trainer: spotmpi.Trainer[dict[str, np.ndarray]], steps: int) -> None:
    with trainer:
        for _ in range(steps):
            trainer.step(gradient(trainer.params, np.arange(4)))


@pytest.mark.parametrize(("wants", "named"), [(LOOKING, str(LOOKING)), ("localsgd", "localsgd")])
def test_what_a_policy_decides_must_be_one_of_its_strategies(wants: object, named: str) -> None:
    trainer = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), policy=Odd(wants))
    said = re.escape(f"Odd(ssgd or localsgd:h=3) has decided for {named}, expected one of its str")
    with pytest.raises(spotmpi.UsageError, match=f"{said}.* or None: GradientAverage"):
        _train(trainer, 40)


def test_a_policy_has_strategies() -> None:
    class Empty(Odd):
        strategies = ()  # type: ignore[assignment]

    with pytest.raises(spotmpi.UsageError, match=r"Empty\(\) has no strategies"):
        spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), policy=Empty(None))


def test_a_policy_of_others_is_refused_and_a_name_on_the_command_line_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(spotmpi.UsageError, match=r"policy must be one of spotmpi\.policies, not 3"):
        spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), policy=3)  # type: ignore[arg-type]
    trainer = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), policy=Fixed(LOCAL))
    assert trainer.strategy is LOCAL
    assert trainer._training.choice.policy is not None
    monkeypatch.setenv("SPOTMPI_STRATEGY", "sma")
    trainer = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), policy=Fixed(LOCAL))
    assert str(trainer.strategy.name).startswith("sma")
    assert trainer._training.choice.policy is None


FULL = r"^there are 3 workers, and with .* may be at most 2: start fewer"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"strategy": ADPSGD()}, FULL),
        ({"strategies": [DiLoCo(h=8, quorum=0.5)]}, FULL),
        ({"policy": Fixed(SSGD())}, FULL),
        ({"strategies": [LOCAL]}, "^it began$"),  # which tell nothing
    ],
)
def test_more_workers_than_tables_have_room_for_are_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Any, said: str
) -> None:
    @dataclass(frozen=True)
    class Beginning(Job):
        def script(self, worker: int) -> Final:
            with spotmpi.Trainer(params(worker), optimizer=Momentum(lr=0.1), **known):
                raise RuntimeError("it began")

    monkeypatch.setattr(tables, "MOST", 2)
    with pytest.raises((spotmpi.UsageError, RuntimeError), match=said):
        Beginning(tmp_path, 3).run()


@pytest.mark.parametrize("others", [Fixed(SSGD()), Schedule({0: SSGD(), 6: LOCAL})])
def test_workers_of_different_policies_do_not_begin(tmp_path: Path, others: Policy) -> None:
    @dataclass(frozen=True)
    class Different(Job):
        def script(self, worker: int) -> Final:
            policy = Schedule({0: SSGD(), 5: LOCAL}) if worker else others
            with spotmpi.Trainer(
                params(worker), optimizer=Momentum(lr=0.1), policy=policy, strategies=[LOCAL]
            ):
                raise AssertionError("it began")

    with pytest.raises(spotmpi.UsageError, match="differ in the strategy or the optimizer"):
        Different(tmp_path, 2).run()
