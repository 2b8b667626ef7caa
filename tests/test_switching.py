"""Trainings that change their strategy under way, through deaths, joins, leaves and resumes.

What each comes to is computed again from its trace, which says when all changed to what.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.fabric import Arena, DoubleBuffer, Shape
from spotmpi.fabric.sim.faults import Kill
from spotmpi.fabric.solo import SoloFabric
from spotmpi.operators import Narrow
from spotmpi.optimizers import SGD, Adam, Momentum
from spotmpi.policies import Policy
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps
from spotmpi.strategies import ADPSGD, EASGD, SSGD, DiLoCo, LocalSGD, Lookahead, Strategy
from spotmpi.training.model import Model
from spotmpi.training.state.rate import Rate
from spotmpi.training.state.training_state import TrainingState
from spotmpi.training.steps import digest_check
from spotmpi.training.steps.worker_tables import WorkerTables
from tests.fabric.crew import at_once, company
from tests.simulated import Final, Job, Result, bits, check_gradients, gradient, params
from tests.test_member import campaign, joined, left

ALL: Sequence[Callable[[], Strategy]] = (
    SSGD,
    lambda: LocalSGD(h=3),
    lambda: EASGD(every=2, pull=0.5),
    lambda: Lookahead(every=4, mix=0.25),
    lambda: DiLoCo(h=8, outer=0.5, momentum=0.75, fragments=2, delay=2, mix=0.25),
    lambda: Narrow("int8") >> DiLoCo(h=4, outer=0.75, momentum=0.5),
    lambda: Narrow("bf16") >> SSGD(),
)


@dataclass(frozen=True)
class Changing(Job):
    """A script that changes the strategy now and then, on all workers alike."""

    samples: int = 85
    scale_lr: str = "none"
    strategies: Sequence[Callable[[], Strategy]] = ALL
    every: int = 5
    seen: list[str] = field(default_factory=list)

    policy: Policy | None = None

    def script(self, worker: int) -> Final:
        """Every so many steps it wants one that is drawn alike on all workers."""
        known = [make() for make in self.strategies]
        trainer = spotmpi.Trainer(
            params(worker),
            optimizer=self.optimizer(),
            strategy=known[0],
            strategies=known[1:],
            policy=self.policy,
            seed=self.seed,
            scale_lr=self.scale_lr,
        )
        gradients: Counter[int] = Counter()
        stopped, began = False, 0
        try:
            with trainer:
                for _ in trainer.passes(self.passes):
                    for batch in trainer.batches(self.samples, self.batch_size):
                        rehearsal = trainer.worker not in trainer.workers
                        gradients[trainer.steps] += not rehearsal
                        trainer.step(gradient(trainer.params, batch), loss=1.0)
                        began = trainer.steps if rehearsal else began
                        if trainer.steps % self.every == 0:
                            chance = random.Random(f"{self.seed}/{trainer.steps}")
                            trainer.strategy = chance.choice(known)
                        self.seen.append(str(trainer.strategy))
                    assert trainer.mean(2.0) == 2.0
        except spotmpi.Stopped:
            stopped = True
        final = bits(trainer.model), trainer.steps, gradients, ()
        return Final(*final, stopped, (), began, bits(trainer.params))


def check(result: Result) -> None:
    """All that is promised of such a job."""
    finals, done, job = result.finals, steps(result.records), result.job
    assert isinstance(job, Changing)
    if not finals:
        return
    check_exactly_once(result.records, job.samples, job.passes)
    check_replicas(result.records)
    assert len({final.bits for final in finals.values()}) == 1
    known = [make() for make in job.strategies]
    found = [
        bits(replay(result.records, params(first), gradient, job.optimizer(), known[0], known[1:]))
        for first in range(done[0]["workers"][0] + 1)
    ]
    assert next(iter(finals.values())).bits in found
    assert {final.steps for final in finals.values()} == {len(done)}
    if not result.of("resume"):
        check_gradients(result)
    for record in result.of("recovery") + result.of("recovered"):
        assert record["lost_steps"] == record["recomputed_gradients"] == 0


def changes(results: list[Result]) -> set[tuple[str, str]]:
    """From what to what."""
    return {
        (one["before"].partition(":")[0], one["strategy_name"].partition(":")[0])
        for result in results
        for one in result.of("strategy")
    }


def test_a_digest_is_of_the_model_before_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is made while the script goes on."""
    known = [lambda: EASGD(every=2, pull=0.5), lambda: DiLoCo(h=4, mix=0.25), SSGD]
    at_once = Changing(tmp_path, 3, strategies=known).run()
    monkeypatch.setattr(digest_check, "LEAST_BESIDE", 0)
    (tmp_path / "beside").mkdir()
    beside = Changing(tmp_path / "beside", 3, strategies=known).run()
    assert len(beside.of("strategy")) > 1
    found, expected = ([one["digest"] for one in job.of("step")] for job in (beside, at_once))
    assert found == expected


@pytest.mark.parametrize("seed", range(3))
def test_all_change_to_it_after_the_same_round(tmp_path: Path, seed: int) -> None:
    job = Changing(tmp_path, 3, seed=seed)
    result = job.run()
    check(result)
    assert set(result.finals) == {0, 1, 2}
    assert len(result.of("strategy")) > 1
    assert {one["strategy"] for one in result.of("strategy")} <= set(job.seen)


def test_a_script_may_want_another_one_in_every_step(tmp_path: Path) -> None:
    """Each is followed for a round at least: that is when the next wish is heard."""
    results = campaign(Changing(tmp_path / "calm", 3, every=1), runs=6, holds=check)
    for result in results:
        assert len(result.of("strategy")) > len(steps(result.records)) // 8
    assert any(result.of("recovery") for result in results)


@pytest.mark.parametrize("optimizer", [Momentum, Adam])
@pytest.mark.first("Adam")
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path, optimizer: Any) -> None:
    calm = Changing(tmp_path / "calm", 3, optimizer=lambda: optimizer(lr=0.05))
    results = campaign(calm, runs=7, holds=check)
    assert joined(results)
    assert left(results)
    assert any(result.of("recovery") for result in results)
    assert len(changes(results)) > 5


@pytest.mark.parametrize(("optimizer", "rises"), [(Momentum, 0), (Adam, 20)])
def test_the_rate_rises_where_memory_began_again_and_the_optimizer_asks_for_it(
    tmp_path: Path, optimizer: Any, rises: int
) -> None:
    pair = (lambda: LocalSGD(h=2), SSGD)
    job = Changing(tmp_path, 3, strategies=pair, optimizer=lambda: optimizer(lr=0.05), samples=400)
    result = job.run()
    check(result)
    done, since = [one["rate"] for one in steps(result.records)], len(steps(result.records))
    turns = [(one["step"], one["strategy_name"]) for one in result.of("strategy")]
    assert {name.partition(":")[0] for _, name in turns} == {"localsgd", "ssgd"}
    for (first, name), (last, _) in zip(turns, [*turns[1:], (since, "")], strict=True):
        for number, rate in enumerate(done[first:last], 1):
            rising = name == "ssgd" and number < rises
            assert rate == pytest.approx(0.05 * (number / rises if rising else 1.0))


@pytest.mark.matrix
def test_a_job_that_lost_every_worker_goes_on_with_the_strategy_it_had(tmp_path: Path) -> None:
    every = {"SPOTMPI_CHECKPOINT_EVERY": "4"}
    calm = Changing(tmp_path, optimizer=lambda: SGD(lr=0.05), workers=3)
    events = calm.run().events
    after = set()
    for seed in range(4):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kept = {**every, "SPOTMPI_CHECKPOINT": str(place / "kept")}
        moment = events * (2 * seed + 7) // 16
        kills = [Kill(worker, moment + 3 * worker) for worker in range(3)]
        dead = replace(calm, folder=place, seed=seed, kills=kills, environ=kept)
        assert not dead.run().finals
        again = {**kept, "SPOTMPI_RESUME": "1"}
        whole = replace(dead, workers=2, kills=(), environ=again).run()
        assert whole.of("resume")
        check(whole)
        after.add(whole.of("start")[-1]["strategy"])
    assert len(after) > 2


@pytest.mark.parametrize("first", [LocalSGD(h=2), SSGD()], ids=lambda one: str(one.name))
def test_a_script_that_no_longer_has_the_strategy_of_its_checkpoint_is_told(
    tmp_path: Path, first: Strategy
) -> None:
    """A replay follows the one that the job goes on with, as the trace says it."""
    kept = {"SPOTMPI_CHECKPOINT": str(tmp_path / "kept"), "SPOTMPI_CHECKPOINT_EVERY": "4"}
    own = (lambda: first, lambda: EASGD(every=2, pull=0.5))
    (tmp_path / "calm").mkdir()
    optimizer = lambda: SGD(lr=0.05)  # noqa: E731
    calm = Changing(tmp_path / "calm", 2, strategies=own, every=1000, optimizer=optimizer)
    kills = [Kill(worker, calm.run().events // 2) for worker in range(2)]
    dead = replace(calm, folder=tmp_path, kills=kills, environ=kept)
    assert not dead.run().finals
    again = {**kept, "SPOTMPI_RESUME": "1"}
    others = replace(dead, strategies=(lambda: LocalSGD(h=3),), kills=(), environ=again)
    with pytest.warns(RuntimeWarning) as told:
        result = others.run()
    said = {str(one.message) for one in told}
    assert len(said) == 1
    assert said.pop().endswith(
        f".h5 was written with the strategy {first.name}, which this script does not have: it "
        "begins with localsgd:h=3 instead; to go on with the other one, name it in "
        "Trainer(strategies=[...]) or by --strategy"
    )
    assert result.of("start")[-1]["strategy_name"] == "localsgd:h=3"
    known = result.records, params(0), gradient, optimizer()
    assert result.finals[0].bits == bits(replay(*known, first, [LocalSGD(h=3)]))


def test_workers_at_their_own_pace_come_together_first(tmp_path: Path) -> None:
    """To synchronous steps and back: replicas are equal whenever a round is over."""
    pair = (lambda: ADPSGD(control=4), lambda: LocalSGD(h=2), SSGD)

    def holds(result: Result) -> None:
        check_replicas(result.records)
        assert len({final.bits for final in result.finals.values()}) <= 1

    calm = Changing(tmp_path / "calm", 3, strategies=pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Changing, "script", _without_means)
        results = campaign(calm, runs=20, holds=holds)
    assert {("adpsgd", "ssgd"), ("ssgd", "adpsgd"), ("adpsgd", "localsgd")} <= changes(results)
    assert joined(results)


def _without_means(job: Changing, worker: int) -> Final:
    known = [make() for make in job.strategies]
    trainer = spotmpi.Trainer(
        params(worker),
        optimizer=job.optimizer(),
        strategy=known[0],
        strategies=known[1:],
        seed=job.seed,
        scale_lr=job.scale_lr,
    )
    began = 0
    with trainer:
        for _ in range(job.passes):
            for number, batch in enumerate(trainer.batches(job.samples, job.batch_size)):
                rehearsal = trainer.worker not in trainer.workers
                trainer.step(gradient(trainer.params, batch), loss=1.0)
                began = trainer.steps if rehearsal else began
                if number % 3 == 2:
                    trainer.strategy = known[(job.seed + number // 3) % 3]
    final = bits(trainer.model), trainer.steps, Counter[int](), ()
    return Final(*final, False, (), began, bits(trainer.params))


def test_the_leader_is_the_one_who_is_asked(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Alone(Changing):
        def script(self, worker: int) -> Final:
            known = [SSGD(), LocalSGD(h=3)]
            trainer = spotmpi.Trainer(
                params(worker), optimizer=SGD(lr=0.05), strategy=known[0], strategies=known
            )
            with trainer:
                while trainer.steps < 12:
                    trainer.step(gradient(trainer.params, _SOME))
                    if trainer.worker == self.every:
                        trainer.strategy = known[1]
            final = bits(trainer.model), trainer.steps, Counter[int](), ()
            return Final(*final, False, (), 0, b"")

    asked = Alone(tmp_path / "a", 3, every=0)
    other = Alone(tmp_path / "b", 3, every=1)
    for one in (asked, other):
        one.folder.mkdir()
    (changed,) = asked.run().of("strategy")
    assert (changed["before"], changed["strategy_name"]) == ("ssgd", "localsgd:h=3")
    assert not other.run().of("strategy")


def test_what_another_worker_wants_counts_from_when_it_leads(tmp_path: Path) -> None:
    """However long ago it was said, and whatever the leaders before have wanted since."""
    known = [SSGD(), LocalSGD(h=2), LocalSGD(h=3), LocalSGD(h=4)]
    wanted = {0: (6, known[2]), 1: (2, known[1]), 2: (2, known[3])}

    @dataclass(frozen=True)
    class Disagreeing(Changing):
        def script(self, worker: int) -> Final:
            trainer = spotmpi.Trainer(
                params(worker), optimizer=SGD(lr=0.05), strategy=known[0], strategies=known
            )
            with trainer:
                while trainer.steps < 60:
                    trainer.step(gradient(trainer.params, _SOME))
                    moment, strategy = wanted[worker]
                    if trainer.steps == moment:
                        trainer.strategy = strategy
            final = bits(trainer.model), trainer.steps, Counter[int](), ()
            return Final(*final, False, (), 0, b"")

    calm = Disagreeing(tmp_path / "calm", 3)
    calm.folder.mkdir()
    result = calm.run()
    assert [(one["step"], one["strategy_name"]) for one in result.of("strategy")] == [
        (7, "localsgd:h=3")
    ]
    dying = Disagreeing(tmp_path / "dying", 3, kills=[Kill(0, result.events // 2)])
    dying.folder.mkdir()
    result = dying.run()
    assert result.finals.keys() == {1, 2}
    (recovery,) = result.of("recovery")
    first, second = result.of("strategy")
    assert (first["step"], first["strategy_name"]) == (7, "localsgd:h=3")
    assert second["strategy_name"] == "localsgd:h=2", "of worker 1, which leads then"
    assert 0 <= second["step"] - recovery["step"] <= 3, "after the first round that it leads"


_SOME = np.arange(4)


def test_a_strategy_that_was_not_named_is_refused() -> None:
    with pytest.raises(spotmpi.UsageError, match="strategies is one strategy, expected a list"):
        spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategies=SSGD())  # type: ignore[arg-type]
    trainer = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategies=[LocalSGD(h=3)])
    with pytest.raises(spotmpi.UsageError, match=r"Trainer\(strategies=\[\.\.\.\]\); it knows"):
        trainer.strategy = LocalSGD(h=4)
    trainer.strategy = LocalSGD(h=3)
    assert trainer.strategy.name == "ssgd"  # until a round


@pytest.mark.parametrize("own", [None, SSGD(), LocalSGD(h=2)])
def test_a_script_finds_its_own_strategy_behind_that_of_the_command_line(
    own: Strategy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_STRATEGY", "sma")
    known = {"strategy": own, "strategies": [LocalSGD(h=3), LocalSGD(h=3)]}
    trainer = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), **known)  # type: ignore[arg-type]
    back = SSGD() if own is None else own
    with trainer:
        for wanted in (LocalSGD(h=3), back):
            trainer.strategy = wanted
            for _ in range(4):
                trainer.step(gradient(trainer.params, _SOME))
            assert str(trainer.strategy) == str(wanted)
    assert len(trainer._training.choice.strategies) == 3


def test_gradients_in_place_stay_the_same_arrays_and_still_count() -> None:
    """Also where another strategy brings them elsewhere."""
    trainer = spotmpi.Trainer(
        params(0), optimizer=SGD(lr=1.0), strategies=[DiLoCo(h=4, fragments=2), LocalSGD(h=1)]
    )
    with trainer:
        first = trainer.gradients
        for wanted in (trainer.strategy, *trainer._training.choice.strategies[1:]):
            trainer.strategy = wanted
            first["w"][:] = 0.0
            first["b"][...] = 0.0
            for _ in range(4):
                trainer.step(first)
            before = trainer.params["w"].copy()
            first["w"][:] = 2.0
            for _ in range(4):
                trainer.step(first)
            assert trainer.strategy is wanted
            assert trainer.gradients is first
            assert (trainer.params["w"] < before).all()


def test_who_has_changed_still_finds_the_record_where_who_has_not_finds_it() -> None:
    """Else one of them would send it, and the other would not wait for it."""
    workers, made = company(2), {"w": np.zeros(5000, np.float32)}
    known = [Narrow("bf16") >> SSGD(), Narrow("bf16") >> LocalSGD(h=2)]
    trainings = [training_of(Model(made, SGD(lr=0.1)), *known) for _ in workers]
    for worker, training in zip(workers, trainings, strict=True):
        training.furnish(worker.plane.arena)
        worker.data = training.sync.arena
    at_once(workers, lambda worker: worker.plane.wait(worker.start()))
    (first, before), (second, after) = (
        (worker.plane, one.sync.arena) for worker, one in zip(workers, trainings, strict=True)
    )
    before.turn()
    trainings[0].follow(1)
    assert first.is_everywhere(before.record[0])
    assert second.is_everywhere(after.results[0])
    now = trainings[0].sync.arena.parts[0].narrowing
    assert now is not None
    assert now is not after.parts[0].narrowing
    assert now.rest is trainings[0].sync.state["narrow/rest"][0]


def training_of(model: Model[Any], *strategies: Strategy) -> TrainingState[Any]:
    """A training that may change to these."""
    return TrainingState(model, strategies, 0, Rate(model.optimizer), False)


def test_memory_of_an_earlier_strategy_stays_and_is_used_again() -> None:
    """A worker that has yet to commit the last round may need the record in it."""
    training = training_of(Model(params(1), SGD(lr=0.1)), SSGD(), DiLoCo(h=2, fragments=2))
    training.furnish(SoloFabric().arena)
    first = training.sync.arena
    training.follow(1)
    assert training.sync.arena is not first
    training.follow(0)
    assert training.sync.arena is first


def test_what_travels_for_some_steps_has_memory_of_its_own() -> None:
    """A script may compute the next gradient where the one before is brought from."""
    training = training_of(Model(params(1), SGD(lr=0.1)), SSGD(), DiLoCo(h=4, delay=2))
    training.furnish(SoloFabric().arena)
    first = training.sync.arena
    training.follow(1)
    assert training.sync.arena is not first


@pytest.mark.parametrize(("others", "tells"), [([LocalSGD(h=2)], False), ([ADPSGD()], True)])
def test_memory_for_what_workers_tell_of_their_paces_is_there_before_they_do(
    others: list[Strategy], tells: bool
) -> None:
    """Else all wait for it, and for what sums it, in the round after the change."""
    fabric, training = SoloFabric(), training_of(Model(params(1), SGD(lr=0.1)), SSGD(), *others)
    made: list[str] = []

    def arena(layout: Sequence[Shape], name: str = "", state: DoubleBuffer | None = None) -> Arena:
        made.append(name)
        return fabric.arena(layout, name, state)

    WorkerTables(arena, training, lambda: 5)
    assert ("paces/8" in made) == tells


def test_what_an_optimizer_remembers_begins_anew_only_where_workers_had_their_own() -> None:
    model = Model(params(1), Momentum(lr=0.1))
    training, velocity = (
        training_of(model, SSGD(), LocalSGD(h=2), EASGD(every=2)),
        model.memory["velocity"],
    )
    training.furnish(SoloFabric().arena)
    velocity[0][:] = 3.0
    for number, kept in ((1, 3.0), (2, 3.0), (1, 3.0), (0, 0.0)):
        training.follow(number)
        assert velocity[0].tolist() == [kept] * len(velocity[0])
