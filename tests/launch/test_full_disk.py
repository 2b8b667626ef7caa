"""A disk that is full, and freed later: training goes on, and is kept as soon as it can be."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import spotmpi
from spotmpi.launch.commands import client
from tests.launch.test_operating import folder_of, step, until
from tests.running import Running

TRAINER = Path(__file__).parent / "scripts" / "trainer.py"


class Disk:
    """A small one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """To the last byte."""
        room = True
        with self._ballast.open("ab", buffering=0) as file:
            while room:
                try:
                    file.write(bytes(1024))
                except OSError:
                    room = False

    def free(self) -> None:
        """Make room."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield Disk(folder)
    subprocess.run(["umount", "-l", folder], check=True)


def resting(start, disk: Disk, *more: object) -> Running:
    """A job of 30 steps in the middle of its training, and no room for what comes of it."""
    running = start(
        "run", "-n", 2, "--checkpoint", disk.folder, *more, TRAINER, 30, "say:1@19", "rest:1@20"
    )
    running.until("worker 1 at step 19")
    disk.fill()
    return running


def go_on(running: Running) -> None:
    """Wake the worker that rests, which may not have come to that."""
    for wrapper in running.wrappers:
        for worker in running.children(wrapper):
            os.kill(worker, signal.SIGUSR1)


@pytest.mark.matrix
def test_training_goes_on_and_the_job_stops_when_there_is_room(start, disk: Disk) -> None:
    running = start(
        *("run", "-n", 2, "--checkpoint", disk.folder, "--checkpoint-every", 20, TRAINER)
    )
    running.until("^spotmpi: checkpoint of step 20 written")
    disk.fill()
    running.until(
        r"^spotmpi: the checkpoint of step \d+ could not be written into \S+: No space left on "
        r"device; those that were there are untouched; make room: it is tried again, and training"
    )
    folder, last = folder_of(running), spotmpi.load(disk.folder).step
    for _ in range(2):
        refused = start("stop", "--job", folder.name)
        assert refused.wait() == 1, refused.output
        assert re.search(
            rf"^spotmpi stop: {folder.name} goes on: the checkpoint of step \d+ could not be "
            r"written into \S+: No space left on device; those",
            refused.output,
            re.M,
        ), refused.output
    running.until("^spotmpi: the workers did not stop: the checkpoint of step", times=2)
    now = client.status(folder)
    assert now.unsaved is not None
    assert not now.stopping
    until(folder, step((now.step or 0) + 20))
    assert spotmpi.load(disk.folder).step == last
    disk.free()
    stop = start("stop", "--job", folder.name)
    assert stop.wait() == 0, stop.output
    assert running.wait() == 75, running.output
    assert spotmpi.load(disk.folder).step > (now.step or 0)
    assert running.output.count("could not be written") <= 4
    assert "script" not in running.output


@pytest.mark.matrix
def test_a_checkpoint_that_was_due_is_written_when_there_is_room(start, disk: Disk) -> None:
    """Though no other is due."""
    running = start("run", "-n", 2, "--checkpoint", disk.folder, "--checkpoint-every", 9, TRAINER)
    running.until("^spotmpi: checkpoint of step 9 written")
    disk.fill()
    running.until("could not be written into")
    disk.free()
    before = running.output.count("written to")
    running.until("^spotmpi: checkpoint of step .* written to", times=before + 1)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait() == 75


def test_the_end_waits_for_room(start, disk: Disk) -> None:
    running = resting(start, disk)
    go_on(running)
    running.until("the checkpoint of step 30 could not be written")
    disk.free()
    assert running.wait() == 0, running.output
    assert spotmpi.load(disk.folder).complete


@pytest.mark.matrix
def test_whoever_does_not_want_to_wait_ends_the_job_without_it(start, disk: Disk) -> None:
    running = resting(start, disk)
    go_on(running)
    running.until("the checkpoint of step 30 could not be written")
    name = folder_of(running).name
    refused = start("stop", "--job", name)
    assert refused.wait() == 1
    now = start("stop", "--now", "--job", name)
    assert now.wait() == 0, now.output
    assert "ended with code 74" in now.output
    assert "the job was ended, without a checkpoint" in now.output
    assert running.wait() == 74
    assert "spotmpi: spotmpi stop --now; the job was ended, without a checkpoint" in running.output
    assert not list(disk.folder.glob("*.h5"))


@pytest.mark.matrix
def test_a_disk_that_stays_full_is_a_code_of_its_own(start, disk: Disk, tmp_path: Path) -> None:
    """What stands behind the training is done all the same."""
    (tmp_path / "impatient.py").write_text(
        "import runpy, sys\n"
        "from spotmpi.training.keeping import checkpoints\n"
        "checkpoints.MOST_TRIES = 2\n"
        f"runpy.run_path({str(TRAINER)!r}, run_name='__main__')\n"
    )
    disk.fill()
    running = start("run", "-n", 2, "--checkpoint", disk.folder, "impatient.py", 5)
    assert running.wait() == 71
    assert re.search(r"cannot begin: no checkpoint .* No space left on device", running.output)
    disk.free()
    arguments = "impatient.py", 30, "say:1@19", "rest:1@20"
    running = start("run", "-n", 2, "--checkpoint", disk.folder, *arguments)
    running.until("worker 1 at step 19")
    disk.fill()
    go_on(running)
    assert running.wait() == 74, running.output
    assert "worker 0 took 30 steps with 2" in running.output
    assert (
        "spotmpi: the training is over, but its end could not be kept: the checkpoint of step 30 "
        "could not be written" in running.output
    )
