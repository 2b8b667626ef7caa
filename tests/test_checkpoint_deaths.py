"""Checkpoints while disks refuse, several write at once, writers die: the last good one stays."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spotmpi.errors import CheckpointError, UsageError
from spotmpi.training.keeping import checkpoint_folder
from spotmpi.training.keeping.checkpoint_file import load_latest, save
from spotmpi.training.keeping.checkpoint_folder import check_writable
from spotmpi.training.keeping.entries import Value

STATE: dict[str, Value] = {
    **{f"params/{i}": np.full((i, 3), i, dtype=np.float32) for i in range(6)},
    "rate": 0.1,
    "strategy": "SSGD",
}


def nowhere(sentence: str) -> None:
    pytest.fail(f"a warning where none is due: {sentence}")


def simple(step: int, size: int = 100) -> dict[str, Value]:
    """A state that tells its step wherever one looks."""
    return {"params/0": np.full(size, step, dtype=np.float64), "step": step, "text": str(step)}


def run_python(script: str, *args: object) -> str:
    """The output of a Python script that must succeed."""
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------------ disks that refuse


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/spotmpi", "/sys/kernel"])
def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"no checkpoint can be written into .*; name a folder"):
        check_writable(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_is_created_and_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_missing_folder_is_an_error_of_the_save(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file or directory"):
        save(tmp_path / "gone", 1, {})


def test_a_disk_that_is_full_at_any_point_leaves_the_last_good_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    descriptors: Callable[[], list[str]],
) -> None:
    size = save(tmp_path, 1, STATE).stat().st_size
    write, room = os.write, 0

    def write_while_there_is_room(fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= (count := write(fd, data[:room]))
        return count

    monkeypatch.setattr(os, "write", write_while_there_is_room)
    open_files = len(descriptors())
    for space in [*range(0, size - 512, 101), size - 513]:
        room = space
        with pytest.raises(CheckpointError, match=r"step 2 could not .* No space left on device"):
            save(tmp_path, 2, STATE)
        assert [path.name[-4:] for path in tmp_path.iterdir()] == ["1.h5"]
    assert len(descriptors()) == open_files
    assert load_latest(tmp_path, nowhere).step == 1
    room = size - 512
    save(tmp_path, 2, STATE)
    assert load_latest(tmp_path, nowhere).step == 2


@pytest.mark.matrix
def test_a_limit_on_file_sizes_leaves_the_last_good_one(tmp_path: Path) -> None:
    script = """
import os, resource, sys
from pathlib import Path
from spotmpi.training.keeping.checkpoint_file import load_latest, save
from spotmpi.errors import CheckpointError
import numpy as np
folder = Path(sys.argv[1])
state = {f"params/{i}": np.ones(5000) for i in range(10)}
size = save(folder, 1, state).stat().st_size
for limit in [0, 1, 511, 512, 513, 700, *range(1000, size, 9973), size - 1]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save(folder, 2, state)
    except CheckpointError as error:
        assert "File too large" in str(error) and "step 2" in str(error), error
    else:
        raise SystemExit(f"{limit} bytes were enough for {size}")
    assert os.listdir(folder) == ["checkpoint-000000000001.h5"], os.listdir(folder)
    assert load_latest(folder, print).step == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (2 * size, resource.RLIM_INFINITY))
save(folder, 2, state)
"""
    run_python(script, tmp_path)
    assert load_latest(tmp_path, nowhere).step == 2


@pytest.mark.parametrize("call", ["fsync", "pwrite"])
def test_a_disk_that_fails_late_is_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    save(tmp_path, 1, simple(1))

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(CheckpointError, match="Input/output error"):
        save(tmp_path, 2, simple(2))
    monkeypatch.undo()
    assert load_latest(tmp_path, nowhere).step == 1
    assert len(list(tmp_path.iterdir())) == 1


# -------------------------------------------------------------------------------- several writers


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the name of this host."""
    return lambda name: monkeypatch.setattr("socket.gethostname", lambda: name)


def test_temporaries_of_dead_writers_go_and_those_of_live_ones_stay(
    tmp_path: Path, host: Callable[[str], None]
) -> None:
    host("near")
    dead, fd = checkpoint_folder.open_temporary(tmp_path, 1)
    os.close(fd)
    live, live_fd = checkpoint_folder.open_temporary(tmp_path, 1)
    host("far.away")
    recent, fd = checkpoint_folder.open_temporary(tmp_path, 1)
    os.close(fd)
    old, fd = checkpoint_folder.open_temporary(tmp_path, 1)
    os.close(fd)
    os.utime(old, (0, 0))
    os.utime(live, (0, 0))
    foreign = tmp_path / ".checkpoint-1.near.tmp"
    foreign.touch()
    host("near")
    save(tmp_path, 2, simple(2))
    assert {path for path in (dead, live, recent, old, foreign) if path.exists()} == {
        live,
        recent,
        foreign,
    }
    os.close(live_fd)


def test_a_temporary_taken_for_a_dead_one_at_birth_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    seen: list[int] = []

    def meddle(fd: int, how: int) -> None:
        seen.append(fd)
        if len(seen) == 1:
            for path in tmp_path.iterdir():  # another writer was here between open and lock
                path.unlink()
        if len(seen) == 2:
            raise OSError(errno.EAGAIN, "locked")  # or is just about to
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", meddle)
    path, fd = checkpoint_folder.open_temporary(tmp_path, 1)
    assert len(seen) == 3
    assert path.stat().st_ino == os.fstat(fd).st_ino
    os.close(fd)


def test_a_file_system_without_locks_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    other, fd = checkpoint_folder.open_temporary(tmp_path, 1)
    save(tmp_path, 2, simple(2))
    assert other.exists(), "nobody knows whether its writer lives"
    os.close(fd)


def test_nothing_is_removed_before_the_new_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save(tmp_path, step, simple(step))
    calls: list[str] = []

    def spy(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            what = args[0]
            if isinstance(what, int):
                what = Path(f"/proc/self/fd/{what}").readlink()
            calls.append(f"{name} {Path(what).suffix or 'folder'}")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((os, "fsync"), (os, "pwrite"), (Path, "replace"), (Path, "unlink")):
        spy(owner, name)
    save(tmp_path, 3, simple(3))
    assert calls == ["pwrite .tmp", "fsync .tmp", "replace .tmp", "fsync folder", "unlink .h5"]


def test_two_processes_may_save_at_once(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import numpy as np
from spotmpi.training.keeping.checkpoint_file import load_latest, save
folder, first = Path(sys.argv[1]), int(sys.argv[2])
def complain(sentence): raise SystemExit(sentence)
for step in range(first, 60, 2 if first < 2 else 1):
    state = {"params/0": np.full(3000, step, dtype=np.float64), "step": step, "text": str(step)}
    save(folder, step, state)
    loaded = load_latest(folder, complain)
    assert loaded.step >= step and loaded.state["step"] == loaded.step, loaded
"""
    commands = [[sys.executable, "-c", script, str(tmp_path), str(first)] for first in (0, 1, 2)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], errors
    assert load_latest(tmp_path, nowhere).step >= 58
    names = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in names if name.endswith(".tmp")]
    assert 2 <= len(names) <= 4


# ------------------------------------------------------------------------------------ kill -9

FORKS = """
import json, os, random, select, signal, sys
from pathlib import Path
import numpy as np
from spotmpi.training.keeping import checkpoint_file as checkpoint, checkpoint_folder
from spotmpi.training.keeping.checkpoint_file import load_latest, save

folder = Path(sys.argv[1])
def complain(sentence): raise SystemExit(sentence)
def state(step, size=%d):
    return {"params/0": np.full(size, step, dtype=np.float64), "step": step, "text": str(step)}
def good(least):
    loaded = load_latest(folder, complain)
    assert loaded.step >= least, (loaded.step, least)
    assert loaded.state["step"] == loaded.step and (loaded.state["params/0"] == loaded.step).all()
    return loaded.step
"""

EVERY_CALL = (
    FORKS % 1000
    + """
save(folder, 0, state(0)), save(folder, 1, state(1))
deaths = {}
for point in range(1000):
    child = os.fork()
    if child == 0:
        count = 0
        def die_here(name):
            global count
            count += 1
            if count > point:
                os.pwritev(out, [name.encode()], 0)
                os.kill(os.getpid(), signal.SIGKILL)
        def wrap(owner, name):
            original = getattr(owner, name)
            def call(*args, **kwargs):
                die_here("before " + name)
                result = original(*args, **kwargs)
                die_here("after " + name)
                return result
            setattr(owner, name, call)
        out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for owner, name in ((os, "open"), (os, "close"), (os, "fsync"), (os, "pwrite"),
                            (os, "preadv"), (Path, "replace"), (Path, "unlink"),
                            (os, "write"), (checkpoint.h5py, "File"),
                            (checkpoint.h5py.File, "close")):
            wrap(owner, name)
        save(folder, 2, state(2))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    deaths[Path(sys.argv[2]).read_text()] = good(1)
    checkpoint_folder.tidy(folder, 1, 0.0)
    left = [name for name in os.listdir(folder) if name.endswith(".tmp")]
    assert not left, left
    save(folder, 0, state(0)), save(folder, 1, state(1))
    (folder / "checkpoint-000000000002.h5").unlink(missing_ok=True)
else:
    raise SystemExit("it never finished")
good(2)
print(json.dumps(deaths))
"""
)

ANY_MOMENT = (
    FORKS % 100_000
    + """
chance, last, kills = random.Random(int(sys.argv[2])), 0, int(sys.argv[3])
save(folder, 0, state(0))
for _ in range(kills):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        for step in range(last + 1, 1_000_000):
            save(folder, step, state(step))
            os.write(tell, step.to_bytes(8, "little"))
    os.close(tell)
    watch = os.pidfd_open(child)
    select.select([watch], [], [], chance.uniform(0.0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(watch)
    while done := os.read(told, 8):
        last = int.from_bytes(done, "little")
    os.close(told)
    last = good(last)
save(folder, last + 1, state(last + 1))
assert len(os.listdir(folder)) == 2, os.listdir(folder)
print(last)
"""
)


def test_a_kill_before_and_after_every_call_loses_nothing(tmp_path: Path) -> None:
    (folder := tmp_path / "checkpoints").mkdir()
    deaths = json.loads(run_python(EVERY_CALL, folder, tmp_path / "where"))
    assert deaths["before replace"] == 1
    assert deaths["after replace"] == 2
    assert {"before fsync", "after pwrite", "before unlink", "after write"} <= set(deaths)


@pytest.mark.matrix
def test_a_kill_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    assert int(run_python(ANY_MOMENT, tmp_path, 1, 40)) > 0


@pytest.mark.campaign
def test_a_thousand_kills_lose_nothing(tmp_path: Path) -> None:
    assert int(run_python(ANY_MOMENT, tmp_path, 2, 1000)) > 0
