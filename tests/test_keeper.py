"""When checkpoints are written, by whom, and that none is lost with its writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi import checkpoint
from spotmpi.channel import Channel
from spotmpi.errors import CheckpointError
from spotmpi.keeper import Keeper
from spotmpi.settings import Settings
from spotmpi.trace import Trace


class Crew:
    """Keepers of several workers that commit the same rounds; one round is one step here."""

    def __init__(self, folder: Path, workers: int = 2, every: int | None = None) -> None:
        self.folder = folder
        self.steps = 0
        self.alive = list(range(workers))
        self.keepers = [
            Keeper(folder, every, self.state, Trace(None), Channel.open(Settings()), worker)
            for worker in range(workers)
        ]

    def state(self) -> dict[str, Any]:
        """A live array, which changes with every step."""
        self.values = getattr(self, "values", np.zeros(1))
        self.values[0] = self.steps
        return {"params/0": self.values}

    def commit(self, wanted: bool = False) -> None:
        """One round, on all alive; the words that they bring are summed first."""
        keepers = [self.keepers[worker] for worker in self.alive]
        asked = wanted or any(keeper.asked for keeper in keepers)
        confirmed = any(keeper.published for keeper in keepers)
        number, self.steps = self.steps, self.steps + 1
        for keeper in keepers:
            keeper.asked = False
            keeper.committed(
                number,
                self.steps,
                asked or keeper.due(self.steps),
                confirmed,
                leader=keeper is keepers[0],
            )

    @property
    def kept(self) -> list[int]:
        """Steps of the checkpoints in the folder, newest first."""
        return [int(path.stem.split("-")[1]) for path in checkpoint.published(self.folder)]


def test_a_checkpoint_holds_the_boundary_that_it_was_due_at_and_waits_until_it_is_stable(
    tmp_path: Path,
) -> None:
    crew = Crew(tmp_path, every=3)
    for _ in range(3):
        crew.commit()
    assert crew.kept == []
    crew.commit()
    assert crew.kept == [3]
    found = checkpoint.load_latest(tmp_path, pytest.fail)
    assert found.state["params/0"] == [3.0]


def test_it_is_written_once_and_not_again_by_anybody(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.commit()
    written = checkpoint.published(tmp_path)[0].stat().st_mtime_ns
    for _ in range(5):
        crew.commit()
    crew.alive = [1]
    for _ in range(3):
        crew.commit()
    crew.keepers[1].finish(crew.steps, leader=True)
    assert crew.kept == [1]
    assert checkpoint.published(tmp_path)[0].stat().st_mtime_ns == written


def test_a_new_leader_writes_the_one_that_died_with_its_writer(tmp_path: Path) -> None:
    """With the state of its own day."""
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.alive = [1]
    crew.commit()
    assert crew.kept == []
    crew.commit()
    assert crew.kept == [2]


def test_what_one_worker_asks_for_the_leader_writes(tmp_path: Path) -> None:
    crew = Crew(tmp_path, workers=3)
    crew.keepers[2].asked = True
    crew.commit()
    crew.commit()
    assert crew.kept == [1]


def test_the_end_writes_what_is_still_due(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    for keeper in crew.keepers:
        keeper.finish(crew.steps, leader=keeper is crew.keepers[0])
    assert crew.kept == [1]


def test_without_a_folder_nothing_happens(tmp_path: Path) -> None:
    keeper = Keeper(None, 1, dict, Trace(None), Channel.open(Settings()), 0)
    keeper.committed(0, 1, wanted=True, confirmed=False, leader=True)
    keeper.finish(1, leader=True, must=True)
    assert not list(tmp_path.iterdir())


def test_training_goes_on_when_one_cannot_be_written_but_a_stop_must_not_pretend(
    tmp_path: Path,
) -> None:
    crew = Crew(tmp_path / "gone")
    crew.commit(wanted=True)
    with pytest.warns(RuntimeWarning, match="worker 0, step 1: "):
        crew.commit()
    crew.commit(wanted=True)
    with (
        pytest.warns(RuntimeWarning, match="worker 0, step 3: "),
        pytest.raises(CheckpointError, match="stops at step 3 but its checkpoint could not"),
    ):
        crew.keepers[0].finish(crew.steps, leader=True, must=True)
