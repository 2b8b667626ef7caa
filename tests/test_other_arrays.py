"""Trainings with arrays that NumPy cannot look into: all that happens to NumPy's happens to them.

They run with arrays in boxes, with CuPy's (on a device that is none), and with NumPy's, and nothing
may differ by a bit: not the parameters, not the trace, not the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.arrays.backend import DEVICE
from spotmpi.errors import LeftAlone, UsageError
from spotmpi.fabric.sim.faults import Arrival, Kill, LeaveNotice
from spotmpi.optimizers import LAMB, SGD, Adam, Momentum, Optimizer
from spotmpi.protocol.boundary import Payload
from spotmpi.protocol.control_word import SUMS
from spotmpi.replay import replay, steps
from spotmpi.rounds import state_transfer
from spotmpi.strategies import SSGD
from spotmpi.training.keeping import checkpoint_file
from tests import fake_cupy as cupy
from tests.boxed import Boxed, box, boxed_all, boxes, unbox, unboxed_all
from tests.chaos.others import STRATEGIES
from tests.rounds.asking import AskingOnly
from tests.rounds.test_sum import Sums
from tests.simulated import Job, Model, Result, bits, check, gradient, params
from tests.test_member import Changes, agree, campaign, joined, left


def boxed_gradient(params: dict[str, Any], samples: np.ndarray) -> dict[str, Any]:
    """The same as of NumPy's."""
    return boxed_all(gradient(unboxed_all(params), samples))


IN_BOXES = Model(
    lambda worker: boxed_all(params(worker)), boxed_gradient, lambda tree: bits(unboxed_all(tree))
)


def on_device(tree: dict[str, Any]) -> dict[str, Any]:
    """A dict of arrays, as CuPy's."""
    return {key: cupy.asarray(array) for key, array in tree.items()}


def from_device(tree: dict[str, Any]) -> dict[str, Any]:
    """And back."""
    return {key: array.get() for key, array in tree.items()}


ON_DEVICE = Model(
    lambda worker: on_device(params(worker)),
    lambda params, samples: on_device(gradient(from_device(params), samples)),
    lambda tree: bits(from_device(tree)),
)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """spotmpi knows the other libraries."""
    with boxes(), cupy.installed():
        yield


def twins(job: Job) -> tuple[Result, Result]:
    """The same job with arrays of all libraries; what came of them must be the same."""
    results = []
    for name, model in (("numpy", Model()), ("boxed", IN_BOXES), ("cupy", ON_DEVICE)):
        one = replace(job, folder=job.folder / name, model=model)
        kept = job.environ.get("SPOTMPI_CHECKPOINT")
        if kept is not None:
            one = replace(one, environ={**job.environ, "SPOTMPI_CHECKPOINT": f"{kept}-{name}"})
        one.folder.mkdir(parents=True, exist_ok=True)
        results.append(one.run())
    numpys, *others = results
    for other in others:
        assert other.finals == numpys.finals
        assert other.events == numpys.events
        assert timeless(other.records) == timeless(numpys.records)
    return numpys, others[0]


def timeless(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what the wall clock, the kernel and the folder say."""
    return [
        {
            key: value
            for key, value in record.items()
            if key not in ("at", "path", "time") and not key.endswith(("seconds", "_ms"))
        }
        for record in records
        if record["event"] != "timing"
    ]


def states(folder: Path) -> list[dict[str, Any]]:
    """What the checkpoints in a folder hold, bit by bit."""
    found = [checkpoint_file.load_latest(folder, lambda _why: None)]
    return [
        {
            key: (value.dtype, value.shape, value.tobytes()) if hasattr(value, "dtype") else value
            for key, value in one.state.items()
        }
        for one in found
        if one is not None
    ]


@pytest.mark.parametrize("strategy", ["SSGD", "accumulating", "coarsely"])
@pytest.mark.first("accumulating")
def test_workers_come_and_leave_and_die_at_any_event(tmp_path: Path, strategy: str) -> None:
    made = STRATEGIES.get(strategy, SSGD)
    calm = Job(tmp_path / "calm", 3, samples=85, strategy=made)
    events = twins(calm)[0].events
    results = []
    for seed in range(4):
        drawn = Changes.draw(calm.workers, events, seed)
        job = replace(calm, folder=tmp_path / f"{seed}", seed=seed, **vars(drawn))
        results.append(twins(job)[1])
    assert joined(results)
    assert left(results)
    assert any(result.of("recovery") for result in results)


@pytest.mark.parametrize("optimizer", [Adam, LAMB])
@pytest.mark.matrix
def test_optimizers_that_count_do_so_whatever_the_arrays(
    tmp_path: Path, optimizer: Callable[[float], Optimizer]
) -> None:
    calm = Job(tmp_path / "calm", 3, samples=85, optimizer=lambda: optimizer(0.05))
    events = twins(calm)[0].events
    results = []
    for seed in range(4):
        drawn = Changes.draw(calm.workers, events, seed)
        job = replace(calm, folder=tmp_path / f"{seed}", seed=seed, **vars(drawn))
        results.append(twins(job)[1])
        check(replace(results[-1], job=calm))
    assert joined(results)
    assert any(result.of("recovery") for result in results)


def test_a_model_of_many_pages_is_learnt_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer has a slice of parameters and velocities with each round, also of halves."""
    monkeypatch.setattr(state_transfer, "_LEAST", 16)
    shapes = {"w": ((15, 31), np.float32), "b": ((301,), np.float64)}

    def large(worker: int) -> dict[str, Any]:
        chance = np.random.default_rng(worker)
        return {key: chance.random(shape).astype(d) for key, (shape, d) in shapes.items()}

    def moved(tree: dict[str, Any], samples: np.ndarray) -> dict[str, Any]:
        return {key: (array * array.dtype.type(samples.sum() % 7)) for key, array in tree.items()}

    def moved_in_boxes(tree: dict[str, Any], samples: np.ndarray) -> dict[str, Any]:
        return boxed_all(moved(unboxed_all(tree), samples))

    finals = []
    for name, model in (
        ("numpy", Model(large, moved, bits)),
        ("boxed", Model(lambda w: boxed_all(large(w)), moved_in_boxes, IN_BOXES.bits)),
    ):
        job = Job(tmp_path / name, 2, samples=90, arrivals=[Arrival(2, 40)], model=model, passes=1)
        job.folder.mkdir()
        result = job.run()
        assert joined([result]) == [2]
        finals.append(result.finals)
    assert finals[0] == finals[1]


@pytest.mark.matrix
def test_a_job_that_lost_every_worker_resumes_and_the_checkpoints_are_the_same(
    tmp_path: Path,
) -> None:
    kept = {"SPOTMPI_CHECKPOINT_EVERY": "2", "SPOTMPI_CHECKPOINT": str(tmp_path / "kept")}
    calm = Job(tmp_path, 3, samples=60, environ=kept)
    events = twins(replace(calm, folder=tmp_path / "calm", environ={}))[0].events
    kills = [Kill(worker, events // 2 + 3 * worker) for worker in range(3)]
    dead = replace(calm, folder=tmp_path / "first", kills=kills)
    assert not twins(dead)[0].finals
    names = ("numpy", "boxed")
    assert states(tmp_path / "kept-numpy") == states(tmp_path / "kept-boxed") != []
    again = replace(
        calm, folder=tmp_path / "again", workers=2, environ={**kept, "SPOTMPI_RESUME": "1"}
    )
    for result in twins(again):
        assert len(result.of("resume")) == 1
        assert set(result.finals) == {0, 1}
    assert states(tmp_path / "kept-numpy") == states(tmp_path / "kept-boxed")
    # A checkpoint is the memory of the host: either library goes on from the other's.
    crossed = []
    for name, other in (names, names[::-1]):
        model = Model() if name == "numpy" else IN_BOXES
        environ = {**again.environ, "SPOTMPI_CHECKPOINT": str(tmp_path / f"kept-{other}")}
        one = replace(again, folder=tmp_path / f"crossed-{name}", environ=environ, model=model)
        one.folder.mkdir()
        crossed.append(one.run().finals)
    assert crossed[0] == crossed[1] != {}


def test_when_all_are_told_to_leave_the_state_is_kept(tmp_path: Path) -> None:
    """Written by the thread that ends last, from memory that it may not touch by itself."""
    kept = {"SPOTMPI_CHECKPOINT": str(tmp_path / "kept")}
    notices = [LeaveNotice(worker, 144) for worker in range(3)]
    for result in twins(Job(tmp_path, 3, samples=90, notices=notices, environ=kept)):
        assert {final.stopped for final in result.finals.values()} == {True}
    assert states(tmp_path / "kept-numpy") == states(tmp_path / "kept-boxed") != []


# Alone.


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even when the tests themselves run under MPI."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)


def trainer(**more: Any) -> spotmpi.Trainer[Any]:
    """For the model of the tests."""
    given = {"optimizer": Momentum(lr=0.1), "strategy": SSGD(), "seed": 3, **more}
    return spotmpi.Trainer(IN_BOXES.params(0), **given)


@pytest.mark.usefixtures("alone")
def test_alone_it_trains_what_a_replay_of_its_trace_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.jsonl"
    monkeypatch.setenv("SPOTMPI_TRACE", str(trace))
    with trainer() as one:
        for batch in one.batches(23, batch_size=4, passes=2):
            one.step(boxed_gradient(one.params, batch), loss=2.5)
    assert all(isinstance(array, Boxed) for array in one.params.values())
    done = steps(spotmpi.trace.records.read(trace))
    replayed = replay(done, params(0), gradient, Momentum(lr=0.1))
    in_boxes = replay(done, IN_BOXES.params(0), boxed_gradient, Momentum(lr=0.1))
    assert IN_BOXES.bits(one.params) == bits(replayed) == IN_BOXES.bits(in_boxes)


@pytest.mark.usefixtures("alone")
def test_a_mean_of_an_array_that_is_elsewhere_is_of_its_numbers() -> None:
    with trainer() as one:
        found = one.mean(box(np.arange(6.0).reshape(2, 3)))
        assert one.mean(box(4.5)) == 4.5
    np.testing.assert_array_equal(found, np.arange(6.0).reshape(2, 3))


class SumsElsewhere(Sums):
    """The arrays are on a device."""

    def ask(self, trainer: Any, size: int) -> Sequence[int]:
        """Sum arrays of this size."""
        mine = cupy.asarray(np.full((size, 2), 2.0**trainer.worker, np.float32))
        found, workers = trainer.sum([mine])
        assert set(found[0].get().flat) == {sum(2.0**one for one in workers)}
        return tuple(workers)


def test_sums_are_of_the_library_of_what_is_summed(tmp_path: Path) -> None:
    results = campaign(SumsElsewhere(tmp_path / "calm", 3), runs=8, holds=agree)
    assert len(joined(results)) > 2


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("what", "kind"), [*SUMS.items()])
def test_a_newcomer_that_learns_brings_the_same_memory_as_the_others(what: Any, kind: int) -> None:
    """It knows the kind of the round, and not what its script will sum."""
    with trainer() as one:
        known = one._participant._exchange.memory
        known.carry(Payload(kind, 5))
        (shape,) = known.alone.layout
    assert (shape.dtype, shape.backend is DEVICE) == what


def test_workers_that_sum_arrays_of_two_libraries_are_told_so(tmp_path: Path) -> None:
    class Both(AskingOnly):
        def ask(self, trainer: Any, worker: int) -> Sequence[int]:
            ones = np.ones(3)
            return trainer.sum(cupy.asarray(ones) if worker else ones).workers

    with pytest.raises(LeftAlone, match=r"1 in sum\(\) of float64, 1 in sum\(\) of float64 on a"):
        Both(tmp_path, 2).run()


@pytest.mark.usefixtures("alone")
def test_a_gradient_that_is_not_finite_is_named() -> None:
    wrong = boxed_all({"w": np.full(5, np.nan, np.float32), "b": np.array(0.0)})

    def train() -> None:
        with trainer(optimizer=SGD(lr=0.1), check_finite=True) as one:
            one.step(wrong)

    with pytest.raises(UsageError, match=r'the gradient of grads\["w"\] holds NaN'):
        train()


@pytest.mark.usefixtures("alone")
def test_a_group_delivers_averages_in_arrays_of_the_library() -> None:
    with spotmpi.Group(boxed_all(params(0))) as one:
        found = one.average(boxed_all({"w": np.arange(5, dtype=np.float32), "b": np.array(2.0)}))
    assert unbox(found["w"]).tolist() == [0, 1, 2, 3, 4]
    assert unbox(found["b"]) == 2.0


@pytest.mark.usefixtures("alone")
def test_half_precision_on_a_device_is_that_in_the_memory_of_the_host() -> None:
    start = {"h": np.linspace(1, 2, 7).astype(np.float16), "s": np.ones(2, np.float32)}
    found = []
    for to, back in ((dict, dict), (on_device, from_device)):
        with spotmpi.Trainer(to(start), optimizer=Momentum(lr=2.0**-12)) as one:
            for _ in range(9):
                part = to({key: array * array for key, array in back(one.params).items()})
                one.accumulate(part, 2)
                one.accumulate(part, 1)
                one.step()
            assert type(one.params["h"]) is type(to(start)["h"])
            found.append({key: array.tolist() for key, array in back(one.params).items()})
    assert found[0] == found[1]
    assert found[0]["h"] != start["h"].tolist()


@pytest.mark.usefixtures("alone")
def test_parameters_of_two_libraries_are_refused() -> None:
    mixed = {**params(0), "w": box(params(0)["w"])}
    with pytest.raises(UsageError, match=r'"b"\] is a NumPy array, and params\["w"\] a Boxed'):
        spotmpi.Trainer(mixed, optimizer=SGD(lr=0.1), strategy=SSGD())


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros(5, np.float32), r'grads\["w"\] is a ndarray, .* make it a Boxed array'),
        (box(np.zeros(5)), r'"w"\] is float64, .* convert it to float32'),
        (box(np.zeros(4, np.float32)), r'"w"\] is of shape \(4,\), expected .* \(5,\)'),
    ],
)
def test_gradients_that_do_not_fit_are_refused_by_name(wrong: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said), trainer() as one:
        one.step({**IN_BOXES.params(0), "w": wrong})
