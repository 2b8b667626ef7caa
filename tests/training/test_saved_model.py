"""`spotmpi.load`: a trained model back in Python, as the script had it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.optimizers import SGD, Momentum
from spotmpi.strategies import SSGD
from spotmpi.training import process
from spotmpi.training.keeping import checkpoint_file

SHAPES: dict[Any, Any] = {"w": np.zeros((2, 3), np.float32), 7: np.zeros(4), "a/b": np.zeros(())}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the trainings of a test keep their checkpoints."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(tmp_path / "kept"))
    return tmp_path / "kept"


def ones(params: Any) -> Any:
    """A gradient."""
    if isinstance(params, dict):
        return {key: np.ones_like(array) for key, array in params.items()}
    return type(params)(np.ones_like(array) for array in params)


def train(params: Any, steps: int) -> Any:
    """What they have become."""
    with spotmpi.Trainer(params, optimizer=Momentum(lr=0.5), strategy=SSGD(), seed=3) as trainer:
        for _ in range(steps):
            trainer.step(ones(params))
        return trainer.params


@pytest.mark.parametrize(
    "params", [SHAPES, [*SHAPES.values()], (*SHAPES.values(),)], ids=["dict", "list", "tuple"]
)
def test_the_end_of_a_training_is_kept_and_comes_back_in_its_structure(
    folder: Path, params: Any
) -> None:
    """Without a number of steps, too, and though nobody asked."""
    trained = train(params, 3)
    found = spotmpi.load(folder)
    assert type(found.params) is type(params)
    keys: Any = params if isinstance(params, dict) else range(len(params))
    if isinstance(params, dict):
        assert list(found.params) == list(params)
        assert list(found.optimizer["velocity"]) == list(params)
    for key in keys:
        assert found.params[key].dtype == params[key].dtype
        assert np.array_equal(found.params[key], trained[key])
        found.params[key][...] = 1  # they are the caller's
    assert (found.step, found.complete) == (3, True)
    assert found.path == folder / "checkpoint-000000000003.h5"
    assert found.rest["seed"] == 3
    assert not {"steps", "params/w", "params/0"} & found.rest.keys()


def test_nested_parameters_come_back_by_their_names_and_in_a_structure_that_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tree(value: float) -> Any:
        return {"encoder": [{"w": np.full(3, value)}, {"w": np.full(2, value)}], "b": np.ones(1)}

    train(tree(7.0), 0)
    found = spotmpi.load(folder)
    assert list(found.params) == ["encoder/0/w", "encoder/1/w", "b"]
    assert list(found.optimizer["velocity"]) == list(found.params)
    like = found.like(tree(0.0))
    assert like["encoder"][1]["w"] is found.params["encoder/1/w"]
    assert like["encoder"][0]["w"].tolist() == [7, 7, 7]
    with pytest.raises(UsageError, match=r"are 'encoder/0/w', .*, and these are 'w': give it par"):
        found.like({"w": np.zeros(3)})
    # A flat dict of the same names is the same model.
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    monkeypatch.setattr(process, "_process", process.Process())
    zeros = {name: np.zeros_like(array) for name, array in found.params.items()}
    assert train(zeros, 0)["encoder/0/w"].tolist() == [7, 7, 7]


def test_a_file_may_be_called_anything(folder: Path, tmp_path: Path) -> None:
    trained = train({"w": np.zeros(2)}, 2)
    shutil.copy(spotmpi.load(folder).path, tmp_path / "model.h5")
    found = spotmpi.load(os.fspath(tmp_path / "model.h5"))
    assert found.step == 2
    assert np.array_equal(found.params["w"], trained["w"])


def test_a_checkpoint_on_the_way_is_no_complete_training(folder: Path) -> None:
    with spotmpi.Trainer([np.zeros(1)], optimizer=SGD(lr=1), strategy=SSGD()) as trainer:
        for _ in range(5):
            trainer.save()
            trainer.step([np.ones(1)])
    found = [spotmpi.load(path) for path in sorted(folder.iterdir())]
    assert [(one.step, one.complete) for one in found] == [(4, False), (5, True)]


def test_what_a_script_makes_of_the_last_average_is_kept(folder: Path) -> None:
    with spotmpi.Group([np.zeros(2)]) as group:
        for _ in range(3):
            group.state[0][...] += group.average([np.ones(2)])[0]
    found = spotmpi.load(folder)
    assert found.params[0].tolist() == [3.0, 3.0]
    assert found.optimizer == {}


def test_a_damaged_one_is_said_and_the_one_before_it_given(folder: Path) -> None:
    test_a_checkpoint_on_the_way_is_no_complete_training(folder)
    os.truncate(folder / "checkpoint-000000000005.h5", 700)
    with pytest.warns(RuntimeWarning, match=r"000000000005.h5 is not usable \(truncated"):
        assert spotmpi.load(folder).step == 4


@pytest.mark.parametrize("what", ["nothing", "empty", "text", "strange", "hostile"])
def test_what_is_no_model_is_said_in_one_sentence(tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    if what == "empty":
        place.mkdir()
    elif what == "text":
        place.write_text("a model")
    elif what == "strange":
        place = checkpoint_file.save(tmp_path, 1, {"params/w": np.zeros(1)})
    elif what == "hostile":
        structure = {"params": {"kind": "object", "keys": [["w"]]}}
        about = {"structure": structure}
        place = checkpoint_file.save(tmp_path, 1, {"params/w": np.zeros(1)}, about)
    with pytest.raises(spotmpi.CheckpointError, match=str(tmp_path)):
        spotmpi.load(place)


def test_neither_mpi_nor_a_launcher_is_needed(folder: Path) -> None:
    train({"w": np.zeros(2)}, 1)
    script = (
        "import sys, spotmpi; found = spotmpi.load(sys.argv[1])\n"
        "assert 'mpi4py' not in sys.modules\n"
        "print(found.params['w'].tolist())"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, folder], capture_output=True, text=True, check=True
    )
    assert said.stdout == "[-0.5, -0.5]\n"
