"""The trainer without MPI: ``python train.py`` simply trains, and says what is wrong with it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy knows bfloat16 from here on
import numpy as np
import pytest

import spotmpi
from spotmpi import locks
from spotmpi.arrays.layout import HALVES
from spotmpi.errors import UsageError
from spotmpi.operators import Apply, Every, GradientAverage
from spotmpi.optimizers import SGD, Momentum
from spotmpi.replay import check_exactly_once, replay
from spotmpi.strategies import SMA, SSGD, DiLoCo, LocalSGD, Strategy, named
from spotmpi.trace import records as trace
from spotmpi.training import process
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


def test_a_training_that_cannot_begin_lets_go_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script may try again, as a notebook does."""
    kept = tmp_path / "kept"
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(kept))
    with trainer() as one:
        one.step(gradient(one.params, np.arange(8)))
        one.save()
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    monkeypatch.setattr(process, "_process", process.Process())
    other = spotmpi.Trainer([np.zeros(9)], optimizer=SGD(lr=0.1))
    with pytest.raises(spotmpi.SpotmpiError, match="checkpoint"):
        other.__enter__()
    locks.release(locks.hold(kept, None))


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
        ({"bucket_mb": 0}, "bucket_mb is a number of megabytes, more than 0, not 0"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trainer(**arguments)


def test_a_checkpoint_needs_a_place() -> None:
    with pytest.raises(UsageError, match="--checkpoint DIR"), trainer() as one:
        one.save()


def test_one_that_is_asked_for_amid_a_round_s_steps_is_written_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))
    with trainer(strategy=LocalSGD(h=8)) as one:
        for batch in one.batches(40, batch_size=1):
            if one.steps == 9:
                one.save()
            one.step(gradient(one.params, batch))
            one.mean(1.0)  # a round, but none after which anything could be kept
    kept = sorted(int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*.h5"))
    assert kept == [16, 40]


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


def gradients() -> dict[str, np.ndarray]:
    """For the model of the tests."""
    return gradient(params(0), np.arange(3))


def test_gradients_may_come_one_by_one_and_the_rest_with_the_step() -> None:
    found = []
    for give in ([], ["w"], ["b", "w"], ["w", "b"]):
        with trainer() as one:
            for batch in one.batches(23, batch_size=4):
                grads = gradient(one.params, batch)
                for key in give:
                    one.ready(key, grads.pop(key))
                if give:
                    one.step(grads or None, loss=1.0)
                else:
                    one.step(grads, loss=1.0)
            found.append(bits(one.params))
    assert len(set(found)) == 1


def test_a_list_of_parameters_is_named_by_its_indices() -> None:
    grads = [np.ones(2, np.float32), np.full(3, 2.0)]
    with spotmpi.Trainer(
        [np.zeros(2, np.float32), np.zeros(3)], optimizer=SGD(lr=1.0), strategy=SSGD()
    ) as one:
        one.ready(1, grads[1])
        one.step({0: grads[0]})
        one.ready(1, grads[1])
        one.step(grads)  # of which one is known
        assert [array.tolist() for array in one.params] == [[-2, -2], [-4, -4, -4]]


def test_gradients_that_come_one_by_one_in_place() -> None:
    with trainer() as one, trainer_of_another_step() as expected:
        grads = gradients()
        for key, array in one.gradients.items():
            array[...] = grads[key]
            one.ready(key, array)
        one.step()
        assert bits(one.params) == expected


@contextlib.contextmanager
def trainer_of_another_step() -> Iterator[bytes]:
    """What the parameters are after one step with `gradients`."""
    flat = params(0)
    yield bits({key: flat[key] - flat[key].dtype.type(0.1) * g for key, g in gradients().items()})


MISTAKES = {
    r"params has no array 'c': its arrays are 'w', 'b'": lambda one, g: one.ready("c", g["w"]),
    r"params has no array \['w'\]": lambda one, g: one.ready(["w"], g["w"]),
    r'grads\["w"\] is of shape \(4,\), expected': lambda one, g: one.ready("w", g["w"][1:]),
    r'grads\["w"\] is float64, expected': lambda one, g: one.ready("w", g["w"].astype(float)),
    r'grads\["w"\] is a list, expected': lambda one, g: one.ready("w", [1.0]),
    r"the gradient of params\['w'\] was given twice": lambda one, g: (
        one.ready("w", g["w"]),
        one.ready("w", g["w"]),
    ),
    r"the gradient of params\['b'\] was given twice: .* once to ready\(\), or": lambda one, g: (
        one.ready("b", g["b"]),
        one.step({"w": g["w"], "b": g["b"].copy()}),
    ),
    r"without the gradient of params\['w'\], which ready": lambda one, g: (
        one.ready("b", g["b"]),
        one.step(),
    ),
    r"step\(\) was given a ndarray after ready": lambda one, g: (
        one.ready("b", g["b"]),
        one.step(g["w"]),
    ),
    r"step\(\) was called without gradients, and ready\(\) was": lambda one, g: one.step(),
    r"trainer.mean\(\) came after trainer.ready\(\), in step 0: call trainer.step": lambda one, g: (
        one.ready("b", g["b"]),
        one.mean(1.0),
    ),
    r"trainer.once\(\) came after trainer.ready": lambda one, g: (
        one.ready("b", g["b"]),
        one.once(lambda: 1),
    ),
    r"worker 0: the end of the block came after trainer.ready": lambda one, g: one.ready(
        "b", g["b"]
    ),
    r'the gradient of grads\["b"\] holds NaN': lambda one, g: one.ready("b", g["b"] * np.nan),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_with_gradients_that_come_one_by_one_is_one_clear_sentence(message: str) -> None:
    with (
        pytest.raises(UsageError, match=message) as told,
        trainer(check_finite=True, bucket_mb=1e-9) as one,
    ):
        MISTAKES[message](one, gradients())
    assert "\n" not in str(told.value)


def test_a_batch_is_used_by_one_step_also_where_its_gradients_come_one_by_one() -> None:
    def train(*calls: Any) -> None:
        with trainer() as one:
            for _ in one.batches(23, batch_size=4):
                for call in calls:
                    call(one)

    step = lambda one: one.step(gradients())  # noqa: E731
    ready = lambda one: one.ready("w", gradients()["w"])  # noqa: E731
    with pytest.raises(UsageError, match=r"trainer.ready\(\) was called again, in step 1"):
        train(step, ready)
    with pytest.raises(UsageError, match="the batch of step 0 was not used"):
        train(ready)


# Nested parameters.


def test_nested_parameters_train_as_flat_ones_do() -> None:
    layers = [{"w": np.ones(3, np.float32), "b": np.zeros(())} for _ in range(2)]
    with (
        spotmpi.Trainer({"layers": layers, "head": np.ones(2)}, optimizer=Momentum(lr=0.5)) as one,
    ):
        assert isinstance(one.params["layers"][1], dict)
        for step in range(4):
            grads = one.gradients
            assert grads is one.gradients
            for layer in grads["layers"]:
                layer["w"][...] = 1 + step
                layer["b"][...] = 2
            grads["head"][...] = 3
            if step == 1:
                one.ready("layers/1/w", grads["layers"][1]["w"])
                one.step(
                    {"layers/0/w": grads["layers"][0]["w"], "head": grads["head"]}
                    | {f"layers/{n}/b": grads["layers"][n]["b"] for n in range(2)}
                )
            elif step == 2:
                one.ready("head", grads["head"])
                one.step({"layers": grads["layers"]})
            elif step == 3:
                one.ready("head", grads["head"])
                one.step(grads)
            else:
                one.step(grads)
        trained = one.params
    flat = {f"layers/{n}/{k}": x for n, layer in enumerate(layers) for k, x in layer.items()}
    with spotmpi.Trainer({**flat, "head": np.ones(2)}, optimizer=Momentum(lr=0.5)) as other:
        for step in range(4):
            of = {"w": 1.0 + step, "b": 2.0, "head": 3.0}
            other.step(
                {name: np.full_like(x, of[name.split("/")[-1]]) for name, x in other.params.items()}
            )
        assert other.params["layers/1/w"].tobytes() == trained["layers"][1]["w"].tobytes()
        assert other.params["layers/0/b"] == trained["layers"][0]["b"]
        assert other.params["head"].tobytes() == trained["head"].tobytes()
    with pytest.raises(ValueError, match="read-only"):
        trained["layers"][0]["w"][...] = 0


# Micro-batches.


def test_micro_batches_count_by_their_samples() -> None:
    """The step is that with the whole batch, but for the last bits; so is its loss."""
    found = []
    for way in ("whole", "parts", "rest"):
        with trainer(optimizer=Momentum(lr=0.1)) as one:
            for batch in one.batches(23, batch_size=8, passes=2):
                if way == "whole":
                    one.step(gradient(one.params, batch), loss=float(batch.mean()))
                    losses = one.loss
                    found.append(losses)
                    continue
                parts = [batch[at : at + 3] for at in range(0, len(batch), 3)]
                last = parts.pop() if way == "rest" else None
                for part in parts:
                    one.accumulate(gradient(one.params, part), len(part), float(part.mean()))
                one.accumulate({"w": None}, 0)  # of no samples: nobody looks
                if last is None:
                    one.step()
                else:
                    one.step(gradient(one.params, last), float(last.mean()))
                found.append(one.loss)
            found.append(np.concatenate([one.params["w"], one.params["b"][None]]))
    third = len(found) // 3
    for way in (1, 2):
        for expected, got in zip(found[:third], found[way * third :], strict=False):
            np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "localsgd:h=3",
        "lookahead",
        "sma",
        "easgd:every=3",
        "diloco:h=4,delay=1",
        "adpsgd:control=4",
    ],
)
def test_with_every_strategy_a_step_with_micro_batches_is_that_with_their_mean(name: str) -> None:
    found = []
    for accumulates in (False, True):
        with trainer(optimizer=Momentum(lr=0.1), strategy=named(name)) as one:
            for batch in one.batches(23, batch_size=4, passes=2):
                if accumulates:
                    one.accumulate(gradient(one.params, batch), len(batch), 1.5)
                    one.step()
                else:
                    one.step(gradient(one.params, batch), 1.5)
            found.append((bits(one.params), one.loss))
    assert found[0] == found[1]


def test_micro_batches_of_a_batch_that_is_left_count_for_nothing() -> None:
    expected = {key: array - np.float32(0.1) for key, array in params(0).items()}
    ones = {key: np.ones_like(array) for key, array in params(0).items()}
    with trainer() as one:
        for _ in one.batches(23, batch_size=8):
            one.accumulate({key: 100 * array for key, array in ones.items()}, 2)
            assert one.mean(4.0) == 4.0  # the others may wait for something else meanwhile
            break
        one.accumulate(ones, 5, 1.5)
        one.accumulate({key: 4 * array for key, array in ones.items()}, 0)
        one.step()
        assert one.loss == 1.5
        for key, array in expected.items():
            np.testing.assert_allclose(one.params[key], array, rtol=1e-6)


ABOUT_PARTS = {
    r"worker 0: 3 samples were accumulated in step 0, whose batch has 4: accumulate the r": (
        lambda one, g: (one.accumulate(g, 3), one.step())
    ),
    r"worker 0: 5 samples were accumulated in step 0, whose batch has 4: give each of th": (
        lambda one, g: (one.accumulate(g, 3), one.accumulate(g, 2))
    ),
    r"step\(\) was given a gradient in step 0, of which all was accumulated": (
        lambda one, g: (one.accumulate(g, 4), one.step(g))
    ),
    r"accumulate\(\) was given 1.5 for the number of samples": (
        lambda one, g: one.accumulate(g, 1.5)
    ),
    r"accumulate\(\) was given -1 for the number of samples": (
        lambda one, g: one.accumulate(g, -1)
    ),
    r'grads\["b"\] is missing': lambda one, g: one.accumulate({"w": g["w"]}, 1),
    r"trainer.accumulate\(\) was called again, in step 1, for a batch that is used": (
        lambda one, g: (one.step(g), one.accumulate(g, 1))
    ),
    r"trainer.ready\(\) came after trainer.accumulate": (
        lambda one, g: (one.accumulate(g, 1), one.ready("w", g["w"]))
    ),
    r"trainer.accumulate\(\) came after trainer.ready": (
        lambda one, g: (one.ready("w", g["w"]), one.accumulate(g, 1))
    ),
    r'the gradient of grads\["w"\] holds NaN': (
        lambda one, g: (
            one.accumulate(g, 1),
            one.accumulate({**g, "w": g["w"] * np.float32(np.nan)}, 2),
            one.step(g),
        )
    ),
    r"the batch of step 0 was not used": lambda one, g: one.accumulate(g, 4),
}


@pytest.mark.parametrize("message", ABOUT_PARTS)
def test_a_mistake_with_micro_batches_is_one_clear_sentence(message: str) -> None:
    def train() -> None:
        with trainer(check_finite=True) as one:
            for _ in one.batches(12, batch_size=4):
                ABOUT_PARTS[message](one, gradients())

    with pytest.raises(UsageError, match=message) as told:
        train()
    assert "\n" not in str(told.value)


def test_what_was_accumulated_and_never_stepped_is_noticed() -> None:
    with pytest.raises(UsageError, match="the end of the block came after"), trainer() as one:
        one.accumulate(gradients(), 1)


# Half precision.


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("way", ["step", "gradients", "ready", "accumulate", "LocalSGD", "SMA"])
def test_parameters_of_half_precision_are_rounded_and_what_is_trained_is_not(
    half: str, way: str
) -> None:
    """Steps that are far too small for half precision add up."""
    steps, rate = 64, 2.0**-13
    strategy = {"LocalSGD": LocalSGD(h=4), "SMA": SMA()}.get(way, SSGD())
    start = {"h": np.ones((3, 5), half), "s": np.ones(2, np.float32)}
    with spotmpi.Trainer(start, optimizer=SGD(lr=rate), strategy=strategy) as one:
        seen = one.params["h"]
        for _ in range(steps):
            grads: Any = {"h": np.ones((3, 5), half), "s": np.ones(2, np.float32)}
            if way == "gradients":
                for key, array in one.gradients.items():
                    array[...] = grads[key]
                grads = one.gradients
            if way == "ready":
                one.ready("h", grads.pop("h"))
            if way == "accumulate":
                one.accumulate(grads, 1)
                grads = None
            one.step(grads)
        assert one.params["h"] is seen
        assert seen.dtype == one.model["h"].dtype == np.dtype(half)
        for shown in (one.params, one.model):
            assert (shown["h"] == shown["s"][0].astype(half)).all()
        if way != "SMA":  # which is drawn back
            assert one.params["s"].tolist() == [1 - steps * rate] * 2


def test_what_is_kept_of_half_precision_is_all_that_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(steps: int) -> Any:
        monkeypatch.setattr(process, "_process", process.Process())
        with spotmpi.Trainer({"h": np.ones(3, np.float16)}, optimizer=SGD(lr=2.0**-13)) as one:
            while one.steps < steps:
                one.step({"h": np.ones(3, np.float16)})
            return one.params["h"]

    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path / "kept"))
    train(3)
    assert spotmpi.load(tmp_path / "kept").params["h"].tolist() == [1 - 3 * 2.0**-13] * 3
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    assert train(8).tolist() == [1 - 2.0**-10] * 3


@pytest.mark.parametrize(
    ("loss", "given"), [(np.zeros(3), "an array of shape (3,)"), ("low", "str"), ([1.0], "list")]
)
def test_a_loss_that_is_no_number_is_said(loss: Any, given: str) -> None:
    said = f"worker 0: the loss of step 0 is {re.escape(given)}, expected a number: give the mean"
    with trainer() as one, pytest.raises(UsageError, match=said):
        one.step(gradient(one.params, np.arange(8)), loss=loss)
    with trainer() as one, pytest.raises(UsageError, match=said):
        one.accumulate(gradient(one.params, np.arange(8)), 8, loss)


def test_nothing_is_asked_for_with_a_batch_in_hand_while_a_contribution_travels() -> None:
    delayed = DiLoCo(h=4, delay=2)

    def ask_in_the_loop() -> None:
        with spotmpi.Trainer([np.zeros(2)], optimizer=SGD(lr=0.1), strategy=delayed) as trainer:
            for _ in trainer.batches(8, batch_size=1):
                if trainer.steps == 2:
                    trainer.mean(1.0)
                trainer.step([np.ones(2)])

    with pytest.raises(
        UsageError,
        match=r"a round of .* is under way: call mean\(\), once\(\), gather\(\) and sum\(\) after",
    ):
        ask_in_the_loop()


class Latest(GradientAverage):
    """A round of one's own, of the latest gradient, that comes now and then."""

    carries = None


def test_gradients_may_come_one_by_one_where_a_round_of_them_comes_now_and_then() -> None:
    """The steps without a round take them as well."""
    strategy = Strategy(Every(2, Latest() >> Apply()))
    with spotmpi.Trainer([np.zeros(2)], optimizer=SGD(lr=1.0), strategy=strategy) as trainer:
        for step in range(2):
            trainer.ready(0, np.full(2, step + 1.0))
            trainer.step()
        of_two_samples = -2.0 / 2
        assert trainer.params[0].tolist() == [of_two_samples] * 2
