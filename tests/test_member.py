"""Workers come and leave while others die: the real trainer, script and all, in the simulator."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import Left, UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice
from spotmpi.optimizers import SGD, Momentum
from spotmpi.strategies import SSGD
from spotmpi.trace.replay import check_replicas, steps
from spotmpi.training.briefing import Briefing
from tests import simulated
from tests.simulated import Final, Job, Result, bits, check, gradient, params


@dataclass(frozen=True)
class Changes:
    """Who comes, who is told to leave, and who dies."""

    arrivals: tuple[Arrival, ...]
    notices: tuple[LeaveNotice, ...]
    kills: tuple[Kill, ...]

    @classmethod
    def draw(cls, workers: int, events: int, seed: int) -> Changes:
        """A seeded schedule for a run of so many ``events``; one worker stays throughout."""
        chance = random.Random(seed)
        near = 12 * workers
        arrivals = tuple(
            Arrival(workers + number, chance.randrange(events))
            for number in range(chance.randint(1, 3))
        )
        others = chance.sample(range(workers), workers - 1)
        notices, kills = [], []
        for arrival in arrivals:
            fate, at = chance.random(), arrival.at + chance.randrange(10 * near)
            if fate < 0.2:
                kills.append(Kill(arrival.worker, at))
            elif fate < 0.4:
                notices.append(LeaveNotice(arrival.worker, at))
        for worker in others:
            at = chance.randrange(events)
            if chance.random() < 0.5:  # in the middle of something
                at = max(0, chance.choice(arrivals).at + chance.randrange(-near, 4 * near))
            fate = chance.random()
            if fate < 0.3:
                kills.append(Kill(worker, at))
            elif fate < 0.6:
                notices.append(LeaveNotice(worker, at))
        return cls(arrivals, tuple(notices), tuple(kills))


def campaign(
    calm: Job, runs: int, first: int = 0, holds: Callable[[Result], None] = check
) -> list[Result]:
    """Seeded runs of one kind of job, each with other changes; each is checked."""

    def draw(events: int, seed: int) -> dict[str, Any]:
        return vars(Changes.draw(calm.workers, events, seed))

    return simulated.campaign(calm, range(first, first + runs), draw, holds)


def joined(results: Sequence[Result]) -> list[int]:
    """Newcomers that came to train and stayed to the end, in all runs."""
    return [
        worker
        for result in results
        for worker, final in result.finals.items()
        if worker >= result.job.workers and final.began
    ]


def left(results: Sequence[Result]) -> list[int]:
    """Workers that left, in all runs, as the trace has it."""
    return [w for result in results for record in result.of("change") for w in record["left"]]


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.first("5")
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path, workers: int) -> None:
    results = campaign(Job(tmp_path / "calm", workers, samples=83), runs=8)
    assert len(joined(results)) > 2
    assert len(left(results)) > 2
    assert any(result.of("recovery") for result in results)


def test_a_learning_rate_that_does_not_follow_the_workers_stays_as_they_come(
    tmp_path: Path,
) -> None:
    results = campaign(Job(tmp_path / "calm", 3, samples=83, scale_lr="none"), runs=8)
    assert joined(results)


def test_the_learning_rate_follows_the_number_of_those_who_train(tmp_path: Path) -> None:
    """And not the number of those who learn."""
    result = Job(tmp_path, 2, samples=400, arrivals=[Arrival(2, 60), Arrival(3, 700)]).run()
    check(result)
    rates = {
        len(record["workers"]): record["rate"]
        for record in result.of("step")
        if all(part["weight"] for part in record["contributions"])
    }
    assert rates == {2: 0.05, 3: 0.05 * (3 / 2), 4: 0.05 * (4 / 2)}
    changed = {
        worker: record["step"] for record in result.of("change") for worker in record["joined"]
    }
    for record in result.of("step"):
        assert not {worker for worker, step in changed.items() if step >= record["step"]} & {
            *record["workers"]
        }


MANY = np.arange(44) / 7
"""More numbers than go with one round, and none that float32 has."""


@dataclass(frozen=True)
class MeansInTheLoop(Job):
    """A script that asks for means, of numbers and arrays, in its loops and outside of them."""

    def script(self, worker: int) -> Final:
        """Stops on something that is equal on all workers."""
        told: list[Any] = []
        began = 0
        trainer = spotmpi.Trainer(
            params(worker), optimizer=self.optimizer(), strategy=SSGD(), seed=self.seed
        )
        with trainer:
            told.append(trainer.mean(np.arange(3.0) + worker))
            for number in range(self.passes):
                for batch in trainer.batches(self.samples, self.batch_size):
                    rehearsal = trainer.worker not in trainer.workers
                    trainer.step(gradient(trainer.params, batch))
                    began = trainer.steps if rehearsal else began
                    size = trainer.mean(np.linalg.norm(trainer.params["w"]))
                    assert (trainer.mean(MANY) == MANY).all()
                    if trainer.mean([size, 1.0])[1] < 1.0:
                        break
                told.append(trainer.mean(np.full(2, 10.0 * number + worker)))
                told.append(trainer.mean(MANY + worker))
                told.append(trainer.mean(np.full(3, 20.0 * number + worker)))
        assert len({one.dtype for one in told}) == 1
        means = tuple(float(x) for one in told for x in one)
        return Final(bits(trainer.params), trainer.steps, Counter(), (), False, means, began)


@dataclass(frozen=True)
class NoBatches(Job):
    """A script that counts its steps itself, with a mean before them, between them and after."""

    def script(self, worker: int) -> Final:
        """So many steps as another job has samples."""
        began = 0
        trainer = spotmpi.Trainer(
            params(worker), optimizer=self.optimizer(), strategy=SSGD(), seed=self.seed
        )
        with trainer:
            first = trainer.mean(3.0 + worker)
            while trainer.steps < self.samples:
                rehearsal = trainer.worker not in trainer.workers
                drawn = trainer.rng.integers(0, 1000, size=2)
                trainer.step(gradient(trainer.params, drawn))
                began = trainer.steps if rehearsal else began
                if trainer.steps % 5 == 0:
                    for factor in (1.0, 2.0):
                        assert trainer.mean(factor * trainer.steps) == factor * trainer.steps
            last = trainer.mean(4.0 + worker)
        assert trainer.steps == self.samples
        return Final(
            bits(trainer.params), trainer.steps, Counter(), (), False, (first, last), began
        )


class Means(Job):
    """A script that asks for means only, with some parameters of float32."""

    def script(self, worker: int) -> Final:
        """Means of numbers that float32 cannot hold, or that a product with 1/7 misses."""
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            told = [trainer.mean(x) for x in (16777217.0, 1e300, 3.0, 0.1)]
            told.append(trainer.mean(16777217.0 + worker))
            told.extend(trainer.mean(np.full((3, 3), 0.1 * worker))[2])
        return Final(b"", trainer.steps, Counter(), (), False, tuple(map(float, told)), 0)


def test_means_are_those_of_float64_and_exact(tmp_path: Path) -> None:
    finals = Means(tmp_path, workers=7).run().finals
    tenths = float(sum(Fraction(0.1 * worker) for worker in range(7)) / 7)
    due = (16777217.0, 1e300, 3.0, 0.1, 16777220.0, tenths, tenths, tenths)
    assert [final.means for final in finals.values()] == [due] * 7


def agree(result: Result) -> None:
    """All that can be said of scripts whose steps are not dealt: replicas are equal."""
    check_replicas(result.records)
    if not result.finals:
        return
    assert len({(final.bits, final.steps, final.means) for final in result.finals.values()}) == 1
    assert [record["step"] for record in steps(result.records)] == list(
        range(next(iter(result.finals.values())).steps)
    )


@pytest.mark.parametrize("kind", [MeansInTheLoop, NoBatches])
@pytest.mark.first("MeansInTheLoop")
def test_newcomers_follow_scripts_of_other_kinds(tmp_path: Path, kind: type[Job]) -> None:
    results = campaign(kind(tmp_path / "calm", 3), runs=8, holds=agree)
    assert len(joined(results)) > 2


def test_a_learner_adds_nothing_to_the_rest_of_a_mean_that_is_tried_again(tmp_path: Path) -> None:
    """Found by a campaign: what the failure left in its place was summed the second time."""
    kills = Kill(2, 1101), Kill(0, 401)
    arrivals = Arrival(4, 931), Arrival(5, 1806), Arrival(6, 360)
    job = MeansInTheLoop(tmp_path, seed=20094, kills=kills, arrivals=arrivals)
    agree(replace(job, notices=[LeaveNotice(5, 1850)]).run())


@dataclass(frozen=True)
class TooManyNumbers(Job):
    """A script that asks for more numbers than anybody keeps."""

    def script(self, worker: int) -> Final:
        """Before its only loop."""
        trainer = spotmpi.Trainer(
            params(worker), optimizer=self.optimizer(), strategy=SSGD(), seed=self.seed
        )
        with trainer:
            for _ in range(3):
                trainer.mean(np.full(1000, float(worker)))
            for batch in trainer.batches(self.samples, self.batch_size, self.passes):
                trainer.step(gradient(trainer.params, batch))
        return Final(bits(trainer.params), trainer.steps, Counter(), (), False, (), 0)


@pytest.mark.matrix
def test_a_newcomer_that_cannot_be_told_all_that_its_script_asks_for_is_turned_away(
    tmp_path: Path,
) -> None:
    """Else it would go on with its own numbers in the place of the mean."""
    calm = TooManyNumbers(tmp_path, 2)
    events = calm.run().events
    for at in range(0, events, 14):
        job = replace(calm, folder=tmp_path / f"{at}", arrivals=[Arrival(2, at)])
        job.folder.mkdir()
        result = job.run()
        agree(result)
        assert set(result.finals) == {0, 1}
        assert not result.of("change")  # and cost the others nothing


BIG = np.arange(1500.0)


class OneBigValue(Job):
    """A script in which one worker reads something large for all."""

    def script(self, worker: int) -> Final:
        """Before the loop."""
        began = 0
        trainer = spotmpi.Trainer(params(worker), optimizer=self.optimizer(), strategy=SSGD())
        with trainer:
            read = trainer.once(lambda: BIG)
            for batch in trainer.batches(self.samples, self.batch_size, self.passes):
                rehearsal = trainer.worker not in trainer.workers
                trainer.step(gradient(trainer.params, batch))
                began = trainer.steps if rehearsal else began
            assert np.array_equal(read, BIG)
        return Final(bits(trainer.params), trainer.steps, Counter(), (), False, (), began)


def test_what_a_newcomer_is_told_on_its_admission_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait until its sponsor has written it: it has learnt the rest before."""
    lengths: dict[bool, set[int]] = {True: set(), False: set()}
    encode = Briefing.encode

    def noted(self: Briefing) -> bytes:
        told = encode(self)
        lengths[self.admission is not None].add(len(told))
        return told

    monkeypatch.setattr(Briefing, "encode", noted)
    result = OneBigValue(tmp_path, 2, samples=90, arrivals=[Arrival(2, 60)]).run()
    assert result.finals[2].began
    assert len({final.bits for final in result.finals.values()}) == 1
    assert min(lengths[False]) > BIG.nbytes
    assert max(lengths[True]) < 2000


@dataclass(frozen=True)
class Stranger(Job):
    """Newcomers come with another script, and what they are told is kept."""

    other: tuple[tuple[str, Any], ...] = ()
    refusals: list[str] = field(default_factory=list)

    def script(self, worker: int) -> Final:
        """The first workers' differs from it."""
        if worker < self.workers:
            return super().script(worker)
        own: dict[str, Any] = {
            "params": params(worker),
            "optimizer": Momentum(lr=0.05),
            "strategy": SSGD(),
            "seed": self.seed,
            **dict(self.other),
        }
        with pytest.raises(UsageError) as refusal, spotmpi.Trainer(own.pop("params"), **own):
            pass
        self.refusals.append(str(refusal.value))
        raise Left("refused")


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"seed": 99}, r"the seed \(worker 3 has 99\)"),
        ({"params": {"w": np.zeros(6, np.float32)}}, "the names, shapes or dtypes of the param"),
        ({"optimizer": SGD(lr=0.05)}, "the strategy or the optimizer"),
        (
            {"scale_lr": "sqrt", "lr_warmup": 3},
            r"how the learning rate follows the workers \(worker 3 has scale_lr='sqrt', lr_wa",
        ),
    ],
)
def test_a_newcomer_with_another_script_is_told_what_differs(
    tmp_path: Path, other: dict[str, Any], what: str
) -> None:
    """And the others go on as if it had never come."""
    job = Stranger(tmp_path, 3, samples=90, arrivals=[Arrival(3, 50)], other=tuple(other.items()))
    result = job.run()
    check(result)
    assert set(result.finals) == {0, 1, 2}
    assert not result.of("change")
    (refusal,) = job.refusals
    assert re.match(f"worker 3 and worker 0 differ in {what}", refusal)
    assert "all workers must run the same script" in refusal


@pytest.mark.matrix
def test_a_newcomer_that_comes_when_nothing_is_left_to_do_goes_again(tmp_path: Path) -> None:
    """Whenever it comes, the others end as they would have without it, or with it."""
    calm = Job(tmp_path / "calm", 2, samples=9, passes=1)
    calm.folder.mkdir()
    events = calm.run().events
    late = 0
    for at in range(events // 3, events, 3):
        job = replace(calm, folder=tmp_path / f"{at}", arrivals=[Arrival(2, at)])
        job.folder.mkdir()
        result = job.run()
        check(result)
        assert {0, 1} <= set(result.finals)
        late += 2 not in result.finals
    assert late > 3


def test_all_who_are_left_but_one_may_be_told_to_leave_at_once(tmp_path: Path) -> None:
    result = Job(tmp_path, 5, samples=90, notices=[LeaveNotice(w, 100) for w in (0, 1, 3, 4)]).run()
    check(result)
    assert set(result.finals) == {2}
    assert not result.of("recovery")
    assert sorted(w for record in result.of("change") for w in record["left"]) == [0, 1, 3, 4]


def test_when_all_are_told_to_leave_all_stop_together(tmp_path: Path) -> None:
    result = Job(tmp_path, 3, samples=90, notices=[LeaveNotice(w, 144) for w in range(3)]).run()
    assert set(result.finals) == {0, 1, 2}
    assert {final.stopped for final in result.finals.values()} == {True}
    assert len({(final.bits, final.steps) for final in result.finals.values()}) == 1
    assert result.of("end")[0]["outcome"] == "stopped"


@pytest.mark.matrix
def test_a_newcomer_is_no_more_there_after_all_who_could_teach_it_are_lost(tmp_path: Path) -> None:
    """It was taken in and knows nothing yet: what it would go on with is no model."""
    calm = Job(tmp_path / "calm", 1, samples=40, arrivals=[Arrival(1, 40)])
    calm.folder.mkdir()
    events = calm.run().events
    alone = 0
    for at in range(40, events, 5):
        job = replace(calm, folder=tmp_path / f"{at}", kills=[Kill(0, at)])
        job.folder.mkdir()
        result = job.run()
        if 1 not in result.finals:
            alone += 1
            continue
        # What the lost one had committed and not shown yet, nobody else can show.
        shown = [record["step"] for record in result.of("step")]
        missing = set(range(result.finals[1].steps)) - {*shown}
        assert missing <= {*range(result.finals[1].began - 2, result.finals[1].began)}, at
        assert shown == sorted({*shown})
    assert alone > 3


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [2, 3, 4, 6, 12])
def test_a_long_campaign_of_changes(tmp_path: Path, workers: int) -> None:
    results = campaign(Job(tmp_path / "calm", workers, samples=150), runs=600, first=10_000)
    assert len(joined(results)) > 100


@pytest.mark.campaign
@pytest.mark.parametrize("kind", [MeansInTheLoop, NoBatches])
def test_a_long_campaign_of_scripts_of_other_kinds(tmp_path: Path, kind: type[Job]) -> None:
    campaign(kind(tmp_path / "calm", 4), runs=400, first=20_000, holds=agree)
