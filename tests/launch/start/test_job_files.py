"""A job's checkpoints and trace: nobody else's while it runs, and looked at before it starts."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi import locks
from spotmpi.errors import CheckpointError, UsageError
from spotmpi.launch.start.job_files import JobFiles
from spotmpi.launch.start.program import Program
from spotmpi.locks import InUse, Lock
from spotmpi.settings import Settings
from spotmpi.trace import records
from spotmpi.training.keeping import checkpoint_file

HOLDER = """
import signal, sys
from pathlib import Path
from spotmpi.locks import Lock
lock = Lock(Path(sys.argv[1]), script="theirs.py")
lock.note(job="spotmpi-1")
print("held", flush=True)
signal.pause()
"""


@pytest.fixture
def elsewhere(tmp_path: Path):
    """Another process that holds a lock, and its file."""
    path = tmp_path / ".spotmpi.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder, path
        holder.kill()


def test_who_holds_it_is_named(elsewhere, tmp_path: Path) -> None:
    holder, path = elsewhere
    who = f"spotmpi-1 (process {holder.pid} on {socket.gethostname()}, theirs.py)"
    with pytest.raises(InUse, match=f"^{re.escape(who)}$"):
        Lock(path)
    with pytest.raises(InUse, match=re.escape(f"{tmp_path} is in use by {who}, and two jobs")):
        locks.hold(tmp_path, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_holder_however_that_ends(elsewhere, number: int) -> None:
    holder, path = elsewhere
    holder.send_signal(number)
    holder.wait()
    assert path.exists()
    Lock(path).release()
    assert not path.exists()


def test_one_that_is_released_while_another_opens_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, lock = Lock(tmp_path / "lock"), fcntl.flock

    def late(*given: Any) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        first.release()
        lock(*given)

    monkeypatch.setattr(fcntl, "flock", late)
    second = Lock(tmp_path / "lock")
    with pytest.raises(InUse):
        Lock(tmp_path / "lock")
    second.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_a_holder_on_this_host_is_found(
    elsewhere, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    holder, path = elsewhere

    def none(*given: Any) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(InUse, match=f"process {holder.pid} on"):
        Lock(path)
    holder.kill()
    holder.wait()
    lock = Lock(path)
    assert not lock.guarded
    lock.release()


@pytest.mark.parametrize("said", ["", "garbage", "[]", '{"pid": "x", "host": 3}', "\0" * 9000])
def test_whatever_stands_in_the_file_it_can_be_taken_and_refused(tmp_path: Path, said: str) -> None:
    (tmp_path / "lock").write_text(said)
    lock = Lock(tmp_path / "lock")
    assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    with (tmp_path / "lock").open("r+b", buffering=0) as file:
        file.write(b'{"host": "\\u001b[2J"}'.ljust(200))
    with pytest.raises(InUse) as caught:
        Lock(tmp_path / "lock")
    assert "\x1b" not in str(caught.value)
    lock.release()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "lock").symlink_to("mine")
    with pytest.raises(OSError, match="symbolic links"):
        Lock(tmp_path / "lock")
    assert (tmp_path / "mine").read_text() == "precious"


def test_another_user_s_lock_counts_as_well(
    elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, path = elsewhere
    open_it = os.open

    def as_another_user(name: Any, flags: int, *mode: int) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return open_it(name, flags, *mode)

    monkeypatch.setattr(os, "open", as_another_user)
    with pytest.raises(InUse, match=f"process {holder.pid} on"):
        locks.hold(tmp_path, None)
    holder.kill()
    holder.wait()
    (held,) = locks.hold(tmp_path, None)
    monkeypatch.undo()
    with pytest.raises(InUse):
        Lock(path)
    held.release()


def test_two_names_of_one_trace_are_one(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    (tmp_path / "also").symlink_to("run.jsonl")
    held = locks.hold(None, tmp_path / "run.jsonl")
    with pytest.raises(InUse):
        locks.hold(None, tmp_path / "also")
    locks.release(held)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["also", "run.jsonl"]


# What is in them.


@pytest.mark.parametrize(
    ("content", "good"),
    [
        (b"", True),
        (b'{"event":"start","at":1}\n', True),
        (b'   \n{"event":"mended","at":1}\n', False),
        (b'   {"event":"mended","at":1}\n', True),
        (b'{"eve', True),
        (b"import os\n", False),
        (b'{"loss": 1}\n', False),
        (b"\0" * 4096, False),
    ],
)
def test_only_a_trace_is_replaced_by_a_trace(tmp_path: Path, content: bytes, good: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    if good:
        records.Trace(path).close()
    else:
        for open_it in (records.check, records.Trace):
            with pytest.raises(UsageError, match="it holds something else, which would be lost"):
                open_it(path)
    assert path.read_bytes() == content


class Run:
    """Files of one command's job, and what was said of them."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.said: list[str] = []
        self.script = folder / "train.py"
        self.script.touch()
        settings = Settings(checkpoint=folder)
        self.files = JobFiles(settings, Program(str(self.script), arguments), self.said.append)


def keep(folder: Path, step: int, complete: bool) -> None:
    checkpoint_file.save(folder, step, {"params/0": np.zeros(1)}, {"complete": complete})


def test_an_empty_folder_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    with Run(tmp_path).files as files:
        assert files.newest() is None
        files.finished()
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_training_is_complete_when_its_job_has_finished_and_not_before(tmp_path: Path) -> None:
    """What stands behind the training in its script has yet to be done."""
    keep(tmp_path, 7, complete=True)
    with Run(tmp_path, "--passes", "3").files as files:
        found = files.newest()
        assert found is not None
        assert (found.step, found.finished) == (7, False)
        files.finished()
        found = files.newest()
        assert found is not None
        assert found.finished


def test_a_job_that_begins_has_not_finished(tmp_path: Path) -> None:
    """Though another one had come to the same end."""
    keep(tmp_path, 7, complete=True)
    with Run(tmp_path).files as files:
        files.finished()
        files.begins("spotmpi-2")
        found = files.newest()
        assert found is not None
        assert not found.finished
        with pytest.raises(InUse, match=r"spotmpi-2 \(process \d+ on \S+, train.py\)"):
            locks.hold(tmp_path, None)


def test_another_command_has_something_left_to_do(tmp_path: Path) -> None:
    keep(tmp_path, 7, complete=True)
    run = Run(tmp_path, "--passes", "3")
    run.files.finished()

    def finished(*arguments: str) -> bool:
        found = Run(tmp_path, *arguments).files.newest()
        assert found is not None
        return found.finished

    assert finished("--passes", "3")
    assert not finished("--passes", "4")
    run.script.write_text("passes = 4")
    assert not finished("--passes", "3")
    run.script.write_text("")
    keep(tmp_path, 9, complete=True)
    assert not finished("--passes", "3")
    (tmp_path / "finished.json").write_text("nonsense")
    assert not finished("--passes", "3")


def test_damaged_ones_are_said_and_none_that_is_usable_is_an_error(tmp_path: Path) -> None:
    for step in (1, 2):
        keep(tmp_path, step, complete=False)
    os.truncate(tmp_path / "checkpoint-000000000002.h5", 700)
    run = Run(tmp_path)
    found = run.files.newest()
    assert found is not None
    assert found.step == 1
    assert "000000000002.h5 is not usable (truncated" in run.said[0]
    os.truncate(tmp_path / "checkpoint-000000000001.h5", 700)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is usable"):
        run.files.newest()
