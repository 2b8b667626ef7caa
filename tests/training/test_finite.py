"""NaN and infinity in what is trained: found at once, said once, and kept out of what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.arrays.layout import Layout
from spotmpi.arrays.registry import Registry, State
from spotmpi.fabric.sim.faults import Arrival
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.optimizers import SGD
from spotmpi.settings import Settings
from spotmpi.strategies import named
from spotmpi.training import process
from spotmpi.training.state import finite
from spotmpi.training.state.finite import Finite
from tests import simulated
from tests.simulated import Job, Model

LOST = 17
"""The sample whose gradient is NaN."""


def gradient(params: dict[str, np.ndarray], samples: np.ndarray) -> dict[str, np.ndarray]:
    """Of one element of one array, in one step of one worker."""
    found = simulated.gradient(params, samples)
    if LOST in samples:
        found["w"][3] = np.nan
    return found


class Heard:
    """What workers tell the launcher of this."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[dict[str, Any]] = []
        self.ends: list[str] = []
        monkeypatch.setattr(LauncherChannel, "mute", False)

        def tell(_channel: LauncherChannel, event: str, **fields: Any) -> None:
            if event == "not_finite":
                self.found.append(fields)
            if event == "ends_not_finite":
                self.ends.append(fields["why"])

        monkeypatch.setattr(LauncherChannel, "tell", tell)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """By a launcher."""
    return Heard(monkeypatch)


@pytest.mark.parametrize("seed", range(4))
def test_all_find_it_in_its_step_and_who_brought_it_says_so(
    heard: Heard, tmp_path: Path, seed: int
) -> None:
    """Whether sums arrive where contributions were or not, and whoever multiplies."""
    done = Job(tmp_path, seed=seed, passes=1, model=Model(gradient=gradient)).run()
    (step,) = (
        record["step"]
        for record in done.of("step")
        for one in record["contributions"]
        if LOST in one["samples"]
    )
    assert [one["step"] for one in heard.found] == [step] * 4
    assert sum(one["brought"] for one in heard.found) == 1
    assert all(one["why"].startswith('params["w"] holds NaN') for one in heard.found)
    assert len(heard.ends) == 4


EACH = """lookahead:every=2 localsgd:h=3 sma easgd:every=2 diloco:h=4 diloco:h=4,quorum=0.5
diloco:h=4,fragments=2,delay=1 adpsgd:control=4 gossip:control=4 parameterserver:control=4
hogwild:control=4"""


@pytest.mark.parametrize("name", EACH.split())
def test_with_every_strategy_all_find_it_in_one_round(
    heard: Heard, tmp_path: Path, name: str
) -> None:
    """At the latest in the round that brings it to all."""
    model = Model(gradient=gradient)
    Job(tmp_path, seed=1, passes=1, strategy=lambda: named(name), model=model).run()
    assert len(heard.found) == 4
    assert len({one["step"] for one in heard.found}) == 1
    assert any(one["brought"] for one in heard.found)
    assert len(heard.ends) == 4


def test_a_newcomer_knows_what_is_spared(heard: Heard, tmp_path: Path) -> None:
    """Of what was not finite at the beginning nothing is ever said, by nobody."""

    def params(worker: int) -> dict[str, np.ndarray]:
        return {**simulated.params(worker), "mask": np.array([0, -np.inf], np.float32)}

    def pull(params: dict[str, np.ndarray], samples: np.ndarray) -> dict[str, np.ndarray]:
        return {**simulated.gradient(params, samples), "mask": np.zeros(2, np.float32)}

    model = Model(params, pull)
    done = Job(tmp_path, 2, samples=200, model=model, arrivals=[Arrival(2, 150)]).run()
    assert len(done.finals) == 3
    assert heard.found == []
    assert heard.ends == []


# Alone: nobody listens but the script.


def train(steps: int, wrong: int | None = None, **arguments: Any) -> spotmpi.Trainer[Any]:
    """A training of steps without batches, one of which has an infinite gradient."""
    start = arguments.pop("params", {"w": np.zeros(5, np.float32)})
    with spotmpi.Trainer(start, optimizer=SGD(lr=0.1), **arguments) as trainer:
        while trainer.steps < steps:
            pull = {key: np.ones_like(array) for key, array in start.items()}
            if trainer.steps == wrong:
                pull["w"][2] = np.inf
            trainer.step(pull, loss=1.0)
    return trainer


def test_alone_a_script_is_warned_at_once_and_at_the_end() -> None:
    with pytest.warns(RuntimeWarning) as told:
        train(6, wrong=3)
    first, last = (str(one.message) for one in told)
    assert first.startswith('step 3: params["w"] holds NaN or infinity, which no later step heals')
    assert last == 'the training is over, and params["w"] holds NaN or infinity'


def test_a_loss_that_is_not_finite_is_nothing_as_long_as_parameters_are() -> None:
    """As where a script scales its loss for half precision, and leaves out what overflows."""
    with spotmpi.Trainer({"w": np.zeros(5, np.float16)}, optimizer=SGD(lr=0.1)) as trainer:
        for loss in (np.inf, np.nan, 1.0):
            trainer.step({"w": np.zeros(5, np.float16)}, loss=loss)
    assert trainer.steps == 3


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another process, with --resume."""
    monkeypatch.setattr(process, "_process", process.Process())
    monkeypatch.setenv("SPOTMPI_RESUME", "1")


def names(folder: Path) -> list[str]:
    """Of what was kept."""
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_the_last_finite_checkpoints_stay_and_training_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))
    monkeypatch.setenv("SPOTMPI_CHECKPOINT_EVERY", "2")
    with pytest.warns(RuntimeWarning, match="holds NaN or infinity"):
        train(20, wrong=5)
    kept = ["checkpoint-000000000002.h5", "checkpoint-000000000004.h5"]
    broken = "checkpoint-000000000020.not-finite.h5"
    assert names(tmp_path) == [*kept, broken]
    assert np.isinf(spotmpi.load(tmp_path / broken).params["w"][2])
    with pytest.warns(RuntimeWarning, match="its parameters are not finite.*0004.h5 is used"):
        assert spotmpi.load(tmp_path).step == 4
    start_again(monkeypatch)
    with pytest.warns(RuntimeWarning, match="its parameters are not finite.*0004.h5 is used"):
        assert np.allclose(train(21).params["w"], -2.1)
    assert names(tmp_path) == ["checkpoint-000000000020.h5", "checkpoint-000000000021.h5"]


def test_what_was_not_finite_at_the_start_may_be_so_also_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path))
    start = {"w": np.zeros(5, np.float32), "mask": np.array([0, -np.inf], np.float32)}
    train(3, params=start)
    assert names(tmp_path) == ["checkpoint-000000000003.h5"]
    start_again(monkeypatch)
    train(5, params=start)
    assert names(tmp_path) == ["checkpoint-000000000003.h5", "checkpoint-000000000005.h5"]


# Which piece is looked at.


@pytest.mark.parametrize("where", [0, 999, 1_000, 31_337, 99_999, 100_000, 100_002])
def test_all_of_a_large_model_is_seen_in_turn(monkeypatch: pytest.MonkeyPatch, where: int) -> None:
    monkeypatch.setattr(finite, "_LEAST", 1_000)
    registry = Registry()
    params = {"a": np.zeros(100_000, np.float32), "b": np.zeros(3)}
    layout = Layout.of(params)
    flats = layout.allocate()
    registry.add("params", layout, State(flats))
    watch = Finite(registry, "params", refuses=False)
    watch.begin()
    arrays = layout.views(flats)
    arrays["a" if where < 100_000 else "b"][where % 100_000] = np.nan
    said: list[int] = []

    class Channel(LauncherChannel):
        def tell(self, event: str, **fields: Any) -> None:
            said.append(fields["step"])

    channel = Channel.open(Settings())
    monkeypatch.setattr(LauncherChannel, "mute", False)
    for number in range(200):
        watch.look(number, number, None, lambda: False)
        watch.tell(channel, 0, leads=True)
    assert len(said) == 1
    assert said[0] < 64
    again = Finite(registry, "params", refuses=False)
    again.look(5, 5, np.nan, lambda: False)  # by the loss all is looked at
    again.tell(channel, 0, leads=True)
    assert said[1] == 5
