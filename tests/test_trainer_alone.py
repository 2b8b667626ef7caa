"""The trainer without MPI: ``python train.py`` simply trains, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.optimizers import SGD, Momentum
from spotmpi.strategies import SSGD
from spotmpi.trace import records as trace
from spotmpi.trace.replay import check_exactly_once, replay
from tests.simulated import bits, gradient, params


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the tests themselves run under one."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)


def trainer(**arguments: Any) -> spotmpi.Trainer[Any]:
    """One for the model of the tests."""
    return spotmpi.Trainer(
        params(0), **{"optimizer": SGD(lr=0.1), "strategy": SSGD(), "seed": 3, **arguments}
    )


def test_it_trains_as_a_loop_by_hand_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPOTMPI_TRACE", str(tmp_path / "trace.jsonl"))
    with trainer(optimizer=Momentum(lr=0.1)) as one:
        assert one.leader
        assert one.workers == (0,)
        for batch in one.batches(23, batch_size=4, passes=2):
            one.step(gradient(one.params, batch), loss=2.5)
            assert one.loss == 2.5
        assert one.mean(4.0) == 4.0
        np.testing.assert_array_equal(one.mean(np.arange(200.0)), np.arange(200.0))
    records = list(trace.read(tmp_path / "trace.jsonl"))
    check_exactly_once(records, 23, 2)
    assert bits(one.params) == bits(replay(records, params(0), gradient, Momentum(lr=0.1)))
    assert one.steps == 12
    assert records[-1]["event"] == "end"


def test_several_that_cannot_reach_each_other_do_not_each_train_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path / "kept"))
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(UsageError, match="SLURM_STEP_NUM_TASKS=8 says that this is one of"):
        trainer().__enter__()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with trainer() as one:
        assert one.workers == (0,)


def test_a_loop_without_batches_counts_each_worker_as_one_sample() -> None:
    with trainer() as one:
        one.step({"w": np.ones(5, np.float32), "b": np.array(2.0)})
    np.testing.assert_allclose(one.params["b"], params(0)["b"] - 0.2)


@pytest.mark.parametrize("call", ["step", "mean", "save", "batches"])
def test_nothing_works_before_the_trainer_is_entered_or_after_it_is_left(call: str) -> None:
    def attempt() -> object:
        if call == "batches":
            return next(one.batches(5, 1))
        return getattr(one, call)(*([] if call == "save" else [params(0)]))

    one = trainer()
    with pytest.raises(UsageError, match=rf"trainer.{call}\(\) belongs inside"):
        attempt()
    with one:
        pass
    with pytest.raises(UsageError, match=rf"trainer.{call}\(\) belongs inside"):
        attempt()


def test_a_batch_that_is_not_used_is_noticed() -> None:
    with pytest.raises(UsageError, match="the batch of step 0 was not used"), trainer() as one:
        for _ in one.batches(10, 2):
            pass


def test_a_batch_that_is_used_twice_is_noticed() -> None:
    """The second step would count as one of a worker with one sample."""

    def train() -> None:
        with trainer() as one:
            for batch in one.batches(10, 2):
                one.step(gradient(one.params, batch))
                one.step(gradient(one.params, batch))

    with pytest.raises(UsageError, match=r"step\(\) was called again, in step 1, for a batch that"):
        train()


def test_a_gradient_that_is_not_finite_is_refused_with_its_batch() -> None:
    wrong = {"w": np.full(5, np.nan, np.float32), "b": np.array(0.0)}

    def train() -> None:
        with trainer(check_finite=True) as one:
            for _ in one.batches(10, 2):
                one.step(wrong)

    with pytest.raises(UsageError, match=r"worker 0, step 0: the gradient of .*w.* holds NaN"):
        train()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer must be one of spotmpi.optimizers"),
        ({"strategy": SSGD}, "strategy must be one of spotmpi.strategies"),
        ({"lr_reference": 0}, "lr_reference is a number of workers, at least 1, not 0"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainer(**arguments)


def test_a_checkpoint_needs_a_place() -> None:
    with pytest.raises(UsageError, match="--checkpoint DIR"), trainer() as one:
        one.save()


def test_a_checkpoint_is_written_where_the_script_asks_and_training_resumes_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path / "kept"))

    def train(stop_at: int | None) -> spotmpi.Trainer[Any]:
        with trainer(optimizer=Momentum(lr=0.1)) as one:
            for batch in one.batches(23, batch_size=4, passes=2):
                one.step(gradient(one.params, batch))
                if one.steps == stop_at:
                    one.save()
                    break
        return one

    assert train(stop_at=5).steps == 5
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    resumed = train(stop_at=None)
    monkeypatch.delenv("SPOTMPI_RESUME")
    monkeypatch.delenv("SPOTMPI_CHECKPOINT")
    assert bits(resumed.params) == bits(train(stop_at=None).params)
    assert resumed.steps == 12


def test_the_random_generator_follows_from_seed_worker_and_step() -> None:
    def draws(seed: int) -> list[float]:
        found = []
        with trainer(seed=seed) as one:
            for batch in one.batches(6, 2):
                found.append(float(one.rng.random()))
                one.step(gradient(one.params, batch))
        return found

    assert draws(1) == draws(1) != draws(2)
    assert len(set(draws(1))) == 3


def test_an_error_of_the_script_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), trainer() as one:
        one.step({"w": np.ones(5, np.float32), "b": np.array(1 / 0)})
