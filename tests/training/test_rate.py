"""The learning rate: how it follows the workers, step by step, and what survives of that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill
from spotmpi.optimizers import SGD, Adam, Cosine, Momentum, StepDecay, Warmup
from spotmpi.replay import replay, steps
from spotmpi.strategies import SSGD
from spotmpi.training.state.progress import Progress
from spotmpi.training.state.rate import Rate
from tests.simulated import Job, bits, gradient, params, rates
from tests.test_member import campaign, joined, left


def walk(rate: Rate, actives: list[int]) -> list[float]:
    """What holds in steps with so many workers, one after the other."""
    found = []
    for active in actives:
        rate.now(active + 3, rate.asked)  # what was tried, and not committed, does not count
        found.append(rate.now(active, rate.asked))
        rate.taken()
    return found


def test_it_follows_the_workers_in_a_line_with_the_square_root_or_not_at_all() -> None:
    for scale, expected in (
        ("linear", [0.8, 0.4, 0.2, 1.6]),
        ("sqrt", [0.8, 0.8 * 0.5**0.5, 0.4, 0.8 * 2**0.5]),
        ("none", [0.8, 0.8, 0.8, 0.8]),
    ):
        rate = Rate(SGD(lr=0.8), 4, scale)
        assert walk(rate, [4, 2, 1, 8]) == pytest.approx(expected)


def test_it_comes_to_a_new_value_in_a_straight_line_from_where_it_is() -> None:
    rate = Rate(SGD(lr=1.0), 4, "linear", warmup=4)
    assert walk(rate, [4, 4]) == [1.0, 1.0]
    assert walk(rate, [8] * 6) == [1.25, 1.5, 1.75, 2.0, 2.0, 2.0]
    assert walk(rate, [4, 4]) == [1.75, 1.5]
    assert walk(rate, [8, 8, 8, 8, 8]) == [1.625, 1.75, 1.875, 2.0, 2.0]


def test_it_begins_with_what_holds_for_the_workers_that_there_are() -> None:
    assert walk(Rate(SGD(lr=1.0), 4, "linear", warmup=10), [2, 2]) == [0.5, 0.5]


def test_a_round_of_several_steps_goes_as_far_as_these() -> None:
    rate = Rate(SGD(lr=1.0), 4, "linear", warmup=4)
    walk(rate, [4])
    for expected in (1.75, 2.0):
        assert rate.now(8, 1.0, steps=3) == expected
        rate.taken()


def test_what_is_kept_and_what_is_told_goes_on_where_it_was() -> None:
    one = Rate(SGD(lr=1.0), 4, "linear", warmup=4)
    walk(one, [4, 8])
    assert one.now(8, 1.0) == 1.5  # which all are about to take
    told, kept = json.loads(json.dumps(one.snapshot([0, 1]))), dict(one.kept())
    one.taken()
    newcomer, resumed = (Rate(SGD(lr=9.0), None, "linear", warmup=4) for _ in range(2))
    newcomer.restore(told)
    resumed.resume(kept, "there")
    assert walk(newcomer, [8, 8, 2]) == walk(one, [8, 8, 2]) == [1.75, 2.0, 1.625]
    assert walk(resumed, [8]) == [9.0 * 1.5]
    fresh = Rate(SGD(lr=1.0), None, "linear", warmup=4)
    fresh.restore(json.loads(json.dumps(Rate(SGD(lr=2.0), 4).snapshot(None))))
    assert walk(fresh, [2]) == [1.0]


def test_it_rises_again_from_nothing_if_it_is_to() -> None:
    rate = Rate(SGD(lr=1.0), 4)
    rate.begin_again(4)  # there is nothing before the first step
    assert walk(rate, [4, 4]) == [1.0, 1.0]
    rate.begin_again(0)
    assert walk(rate, [4]) == [1.0]
    rate.begin_again(4)
    assert walk(rate, [4] * 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    rate.begin_again(4)
    assert walk(rate, [4, 4]) == [0.25, 0.5]
    assert walk(rate, [2, 2, 2]) == [0.5, 0.5, 0.5]  # on to what two workers have, in two steps


def test_a_warm_up_that_is_longer_does_not_end_sooner() -> None:
    rate = Rate(SGD(lr=1.0), 4, "linear", warmup=10)
    walk(rate, [4, 8, 8])
    rate.begin_again(4)
    assert walk(rate, [8, 8, 8, 8]) == [0.25, 0.5, 0.75, 1.0]


def test_a_checkpoint_of_an_earlier_version_has_its_way_to_a_new_value() -> None:
    one = Rate(SGD(lr=1.0), 4, "linear", warmup=4)
    walk(one, [4, 8])
    kept = dict(one.kept())
    del kept["lr/factor/whole"]
    resumed = Rate(SGD(lr=1.0), None, "linear", warmup=4)
    resumed.resume(kept, "there")
    assert walk(resumed, [8, 8]) == walk(one, [8, 8]) == [1.5, 1.75]


def test_a_schedule_is_asked_for_the_step_to_come_and_told_whole() -> None:
    progress, mine = Progress(0), SGD(lr=Warmup(10, 1.0))
    rate = Rate(mine, 2)
    rate.follow(progress)
    assert rate.asked == 0.1
    progress.steps = 4
    assert rate.asked == rate.now(2, rate.asked) == 0.5
    other = SGD(lr=0.3)
    Rate(other).restore(json.loads(json.dumps(rate.snapshot(None))))
    assert other.lr == Warmup(10, 1.0)


# In trainings.


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.parametrize("scale", ["linear", "sqrt"])
@pytest.mark.first("linear-5")
def test_it_is_right_whoever_comes_and_goes(tmp_path: Path, scale: str, warmup: int) -> None:
    def optimizer() -> Momentum:
        return Momentum(lr=Cosine(0.05, 60, 5, 0.01))

    how: Any = {"scale_lr": scale, "lr_warmup": warmup, "optimizer": optimizer}
    results = campaign(Job(tmp_path / "calm", 3, samples=83, **how), runs=10)
    assert joined(results)
    assert left(results)
    seen = {record["rate"] for result in results for record in steps(result.records)}
    assert len(seen) > 50


@pytest.mark.parametrize("warmup", [0, 5])
@pytest.mark.matrix
def test_a_job_that_lost_every_worker_resumes_in_the_middle_of_its_way(
    tmp_path: Path, warmup: int
) -> None:
    how: Any = {"lr_warmup": warmup, "optimizer": lambda: Adam(lr=StepDecay(0.05, 7, 0.5))}
    calm = Job(tmp_path, 3, samples=85, **how)
    events = calm.run().events
    ways = set()
    for seed in range(4):
        place = tmp_path / f"{seed}"
        place.mkdir()
        kept = {"SPOTMPI_CHECKPOINT_EVERY": "1", "SPOTMPI_CHECKPOINT": str(place / "kept")}
        moment = events * (seed + 2) // 8
        kills = [Kill(2, moment - events // 12), Kill(0, moment), Kill(1, moment + 3)]
        dead = replace(calm, folder=place, seed=seed, kills=kills, environ=kept)
        assert not dead.run().finals
        whole = replace(dead, kills=(), environ={**kept, "SPOTMPI_RESUME": "1"}).run()
        done = steps(whole.records)
        assert [one["rate"] for one in done] == pytest.approx(list(rates(calm, done)), abs=1e-15)
        (begun,) = whole.of("resume")
        ways.add(done[begun["step"]]["rate"] / done[begun["step"] - 1]["rate"])
        end = bits(replay(done, params(0), gradient, calm.optimizer()))
        assert {final.bits for final in whole.finals.values()} == {end}
    assert len(ways) > 1


class Ended(NamedTuple):
    """What a script of `Switching` saw at its end."""

    bits: bytes
    began: bool


class Switching(Job):
    """A script that sets another rate in step 5, which a newcomer does not see."""

    def script(self, worker: int) -> Any:
        """One pass."""
        optimizer, rehearsed = SGD(lr=0.05), False
        made = spotmpi.Trainer(params(worker), optimizer=optimizer, strategy=SSGD(), seed=1)
        with made as trainer:
            for batch in trainer.batches(self.samples, self.batch_size):
                if trainer.worker not in trainer.workers:
                    rehearsed = True
                elif trainer.steps == 5:
                    optimizer.lr = StepDecay(0.04, 20, 0.5)
                trainer.step(gradient(trainer.params, batch))
        return Ended(bits(trainer.params), rehearsed)


def test_what_the_script_sets_between_steps_counts_and_newcomers_are_told(tmp_path: Path) -> None:
    """Also a schedule in place of a number."""
    result = Switching(tmp_path, 2, samples=300, arrivals=[Arrival(2, 300)]).run()
    assert joined([result]) == [2]
    assert len({final.bits for final in result.finals.values()}) == 1
    for record in steps(result.records):
        asked = 0.05 if record["step"] < 5 else StepDecay(0.04, 20, 0.5).rate(record["step"])
        active = sum(part["weight"] > 0 for part in record["contributions"])
        assert record["rate"] == pytest.approx(asked * active / 2)


# What is refused.


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"scale_lr": True}, 'scale_lr is True, expected one of "linear", "sqrt", "none"'),
        ({"scale_lr": "log"}, 'scale_lr is \'log\', expected one of "linear", "sqrt", "none"'),
        ({"lr_warmup": -1}, "lr_warmup is -1, expected a whole number of at least 0"),
        ({"lr_warmup": 2.5}, "lr_warmup is 2.5, expected a whole number of at least 0"),
        ({"lr_warmup": True}, "lr_warmup is True, expected a whole number of at least 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}$"):
        spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD(), **wrong)
