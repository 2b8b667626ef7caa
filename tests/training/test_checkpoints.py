"""When checkpoints are written, by whom, and that none is lost with its writer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.errors import CheckpointError
from spotmpi.fabric.solo import SoloFabric
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.settings import Settings
from spotmpi.trace.records import Trace, read
from spotmpi.training.keeping import checkpoint_file, checkpoint_folder
from spotmpi.training.keeping.checkpoint_writer import CheckpointWriter
from spotmpi.training.keeping.checkpoints import Checkpoints
from tests.running import LIMIT


class Disk:
    """Takes a checkpoint when it is told to, and not before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._save = checkpoint_file.save
        self.begun: queue.Queue[tuple[int, str]] = queue.Queue()
        """Steps, and the threads that want to write them."""
        self._fate: queue.Queue[BaseException | None] = queue.Queue()
        monkeypatch.setattr(checkpoint_file, "save", self._slowly)

    def _slowly(self, folder: Path, step: int, *rest: Any) -> Path:
        self.begun.put((step, threading.current_thread().name))
        if (fate := self._fate.get(timeout=LIMIT)) is not None:
            raise fate
        return self._save(folder, step, *rest)

    def go_on(self, fate: BaseException | None = None) -> None:
        """Let one more write go on, or fail."""
        self._fate.put(fate)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A slow one."""
    return Disk(monkeypatch)


class Alone(SoloFabric):
    """A fabric that nothing but its clock, its threads and its worker's id is asked of."""

    def __init__(self, me: int) -> None:
        super().__init__()
        self.me = me
        self.now = 0.0

    def clock(self) -> float:
        """The test's."""
        return self.now


def finite(state: Mapping[str, Any]) -> bool:
    """All that is kept here is."""
    return True


def writer(folder: Path | None, fabric: SoloFabric, trace: Path | None = None) -> CheckpointWriter:
    """One that writes files as trainings do."""
    channel = LauncherChannel.open(Settings())
    return CheckpointWriter(folder, finite, checkpoint_file.save, Trace(trace), channel, fabric)


class Crew:
    """Keepers of several workers that commit the same rounds; one round is one step here."""

    def __init__(self, folder: Path, workers: int = 2, every: int | None = None) -> None:
        self.folder = folder
        self.steps = 0
        self.alive = list(range(workers))
        self.fabrics = [Alone(worker) for worker in range(workers)]
        self.keepers = [
            Checkpoints(writer(folder, fabric), every, self.state, fabric.clock)
            for fabric in self.fabrics
        ]

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """A copy of an array that changes with every step."""
        self.values = getattr(self, "values", np.zeros(1))
        self.values[0] = self.steps
        return {"params/0": self.values.copy()}, {"made_by": "a test"}

    def commit(self, wanted: bool = False, level: bool = True) -> None:
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
                asked or keeper.due(self.steps - 1, self.steps),
                confirmed,
                leader=keeper is keepers[0],
                level=level,
            )

    @property
    def kept(self) -> list[int]:
        """Steps of the checkpoints in the folder, newest first, when nothing is being written."""
        for keeper in self.keepers:
            keeper.wait()
        return [int(path.stem.split("-")[1]) for path in checkpoint_folder.published(self.folder)]


def test_a_checkpoint_holds_the_boundary_that_it_was_due_at_and_waits_until_it_is_stable(
    tmp_path: Path,
) -> None:
    crew = Crew(tmp_path, every=3)
    for _ in range(3):
        crew.commit()
    assert crew.kept == []
    crew.commit()
    assert crew.kept == [3]
    found = checkpoint_file.load_latest(tmp_path, pytest.fail)
    assert found.state["params/0"] == [3.0]


def test_it_is_written_once_and_not_again_by_anybody(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.commit()
    assert crew.kept == [1]
    written = checkpoint_folder.published(tmp_path)[0].stat().st_mtime_ns
    for _ in range(5):
        crew.commit()
    crew.alive = [1]
    for _ in range(3):
        crew.commit()
    assert crew.kept == [1]
    assert checkpoint_folder.published(tmp_path)[0].stat().st_mtime_ns == written


def test_a_new_leader_writes_the_one_that_died_with_its_writer(tmp_path: Path) -> None:
    """With the state of its own day."""
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.alive = [1]
    crew.commit()
    assert crew.kept == []
    crew.commit()
    assert crew.kept == [2]


def test_a_newcomer_that_remains_alone_writes_one_that_may_have_been_due(tmp_path: Path) -> None:
    """It came too late to hear of it, and the others died before they could write it."""
    crew = Crew(tmp_path)
    crew.alive = [0]
    crew.commit(wanted=True)
    crew.keepers[1].joins(0)
    crew.alive = [1]
    crew.commit()
    crew.commit()
    assert crew.kept == [2]


def test_a_newcomer_hears_as_all_do_that_none_is_due(tmp_path: Path) -> None:
    crew = Crew(tmp_path)
    crew.alive = [0]
    crew.commit(wanted=True)
    crew.commit()
    crew.keepers[1].joins(1)
    crew.alive = [0, 1]
    assert crew.kept == [1]
    for _ in range(3):
        crew.commit()
    crew.alive = [1]
    for _ in range(3):
        crew.commit()
    assert crew.kept == [1]


def test_what_one_worker_asks_for_the_leader_writes(tmp_path: Path) -> None:
    crew = Crew(tmp_path, workers=3)
    crew.keepers[2].asked = True
    crew.commit()
    crew.commit()
    assert crew.kept == [1]


@pytest.mark.parametrize("due", [True, False])
def test_the_last_state_is_kept_whether_one_is_due_or_not(tmp_path: Path, due: bool) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=due)
    assert crew.keepers[0].keep(crew.steps, complete=True)
    assert crew.kept == [1]
    found = checkpoint_file.load_latest(tmp_path, pytest.fail)
    assert found.about == {"made_by": "a test", "step": 1, "written_by": 0, "complete": True}


def test_what_is_kept_already_is_not_written_again(tmp_path: Path, disk: Disk) -> None:
    """Unless training is over, which the file must say."""
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.commit()
    for _ in range(2):
        disk.go_on()
    crew.keepers[0].wait()
    crew.keepers[0].published = False
    assert crew.keepers[0].keep(1, complete=False)
    assert disk.begun.qsize() == 1
    assert crew.keepers[0].keep(1, complete=True)
    assert disk.begun.qsize() == 2


def test_training_goes_on_while_one_is_written_and_all_hear_when_it_is_there(
    tmp_path: Path, disk: Disk
) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    for _ in range(4):
        crew.commit()
        assert not crew.keepers[0].published
        assert not checkpoint_folder.published(tmp_path)
    assert disk.begun.get(timeout=LIMIT) == (1, "spotmpi-checkpoint-1")
    disk.go_on()
    assert crew.kept == [1]
    crew.commit()
    assert crew.keepers[0].published
    crew.commit()
    crew.alive = [1]
    crew.commit()
    crew.commit()
    assert disk.begun.empty(), "it was written again, although all had heard"
    found = checkpoint_file.load_latest(tmp_path, pytest.fail)
    assert found.state["params/0"] == [1.0], "it holds what the training had come to meanwhile"


def test_one_that_died_with_its_writer_is_written_by_the_next(tmp_path: Path, disk: Disk) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.commit()
    assert disk.begun.get(timeout=LIMIT)[0] == 1
    crew.alive = [1]  # the other one is killed while it writes
    crew.commit()
    crew.commit()
    assert disk.begun.get(timeout=LIMIT)[0] == 3
    disk.go_on()
    disk.go_on()
    assert 3 in crew.kept


def test_a_second_one_waits_for_the_first_and_is_confirmed_for_itself(
    tmp_path: Path, disk: Disk
) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.commit()
    crew.commit(wanted=True)
    disk.go_on()
    crew.commit()
    assert checkpoint_folder.published(tmp_path)[0].name == "checkpoint-000000000001.h5"
    assert not crew.keepers[0].published, "the first was taken for the second"
    disk.go_on()
    assert crew.kept == [3, 1]
    assert crew.keepers[0].published


@pytest.mark.parametrize("how", ["leave", "end"])
def test_whoever_ends_its_part_waits_for_what_it_writes(
    tmp_path: Path, disk: Disk, how: str
) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.commit()
    disk.begun.get(timeout=LIMIT)
    keeper = crew.keepers[0]
    leaving = threading.Thread(
        target=keeper.wait if how == "leave" else partial(keeper.keep, crew.steps, complete=True)
    )
    leaving.start()
    assert leaving.is_alive()
    for _ in range(2):
        disk.go_on()
    leaving.join(LIMIT)
    assert not leaving.is_alive()
    last = checkpoint_folder.published(tmp_path)[0].name
    assert last == f"checkpoint-{1 if how == 'leave' else 2:012}.h5"


@pytest.mark.parametrize("call", ["committed", "keep"])
def test_a_bug_in_writing_is_raised_in_the_next_call(tmp_path: Path, disk: Disk, call: str) -> None:
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.commit()
    disk.go_on(MemoryError("no room for a layout"))

    def go_on() -> None:
        if call == "keep":
            crew.keepers[0].keep(crew.steps, complete=True)
        while True:
            crew.commit()

    with pytest.raises(MemoryError, match="no room for a layout"):
        go_on()


def test_none_is_begun_in_the_middle_of_a_round_s_steps(tmp_path: Path) -> None:
    """One was due, and the worker that was to write it is lost."""
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    crew.alive.pop(0)
    for _ in range(3):
        crew.commit(level=False)
    assert crew.kept == []
    level = crew.steps + 1
    crew.commit()
    crew.commit(level=False)
    assert crew.kept == [level]


def test_without_a_folder_nothing_happens(tmp_path: Path) -> None:
    fabric = SoloFabric()
    keeper = Checkpoints(writer(None, fabric), 1, lambda: ({}, {}), fabric.clock)
    keeper.committed(0, 1, wanted=True, confirmed=False, leader=True)
    keeper.wait()
    assert not list(tmp_path.iterdir())


def test_one_that_the_disk_refuses_is_tried_again_less_and_less_often(
    tmp_path: Path, disk: Disk
) -> None:
    """And written with the state of that day, when there is room again."""
    crew = Crew(tmp_path)
    crew.commit(wanted=True)
    refused = CheckpointError("the disk is full")
    tries = []
    for _ in range(7):
        disk.go_on(refused)

    def go_on_for(seconds: int) -> None:
        for second in range(seconds):
            crew.fabrics[0].now = float(second)
            for _ in range(3):
                crew.commit(wanted=second == 20)
                for keeper in crew.keepers:
                    keeper.wait()
            while not disk.begun.empty():
                disk.begun.get()
                tries.append(second)

    with pytest.warns(RuntimeWarning, match="worker 0, step .*: the disk is full"):
        go_on_for(70)
    assert tries == [0, 1, 3, 7, 15, 31, 63]
    assert crew.kept == []
    crew.fabrics[0].now = 200.0
    disk.go_on()
    for _ in range(2):
        crew.commit()
    assert crew.kept == [crew.steps - 1]
    for _ in range(5):
        crew.commit()
    assert crew.kept == [crew.steps - 6], "it was written again"
    assert crew.keepers[0].published


def test_training_goes_on_when_one_cannot_be_written_but_a_stop_must_not_pretend(
    tmp_path: Path,
) -> None:
    crew = Crew(tmp_path / "gone")
    crew.commit(wanted=True)
    crew.commit()
    with pytest.warns(RuntimeWarning, match="worker 0, step 1: "):
        crew.keepers[0].wait()
    assert not crew.keepers[0].published
    with pytest.warns(RuntimeWarning, match="worker 0, step 2: "):
        assert not crew.keepers[0].keep(crew.steps, complete=False)
    (tmp_path / "gone").mkdir()
    assert crew.keepers[0].keep(crew.steps, complete=False)


def test_the_trace_tells_for_how_long_others_had_to_wait(tmp_path: Path, disk: Disk) -> None:
    file, fabric = tmp_path / "t.jsonl", Alone(0)

    def state() -> tuple[dict[str, Any], dict[str, Any]]:
        fabric.now += 0.25  # to copy it takes so long
        return {"params/0": np.zeros(1)}, {}

    keeper = Checkpoints(writer(tmp_path, fabric, file), None, state, fabric.clock)
    keeper.committed(0, 1, wanted=True, confirmed=False, leader=True)
    keeper.committed(1, 2, wanted=False, confirmed=False, leader=True)
    disk.begun.get(timeout=LIMIT)
    disk.go_on()
    keeper.wait()
    (told,) = read(file)
    assert (told["event"], told["step"], told["copy_ms"]) == ("checkpoint", 1, 250.0)
    assert (told["began"], told["wait_ms"]) == (0.25, 0.0)
