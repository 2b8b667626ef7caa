"""The private folders of one job.

They lie in shared memory, belong to one user alone, and hold everything that a job leaves on the
host. The launcher has one that bears the job's name, with the socket where it is asked things.
Each start of the job has another: the boards, mpirun's session and the shared memory of MPI; so
has each agent. Everybody who needs a folder holds a shared lock on it, so that others can tell one
that nobody is left to remove.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from spotmpi.launcher_channel import BOARDS, DEATHS

__all__ = [
    "PREFIX",
    "all_of_mine",
    "create",
    "home",
    "hold",
    "is_name",
    "make",
    "new_name",
    "of_starts",
    "remove",
    "remove_abandoned",
    "remove_when_free",
]

PREFIX = "spotmpi-"
"""How the names of jobs, and so of their folders, begin."""

_LONGEST = 40
"""Letters of a name: with the folder and the socket's name it must fit an address."""


def home() -> Path:
    """Return the folder in which job folders are made: shared memory where there is one."""
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK | os.X_OK):
        return shared
    import tempfile  # here, not above: every wrapper would pay for it

    return Path(tempfile.gettempdir())


def all_of_mine() -> list[Path]:
    """Return the folders that look like jobs of this user, whether or not anybody holds them."""
    found = []
    for folder in home().glob(f"{PREFIX}*"):
        try:
            status = folder.lstat()
        except OSError:
            continue  # removed meanwhile
        if status.st_uid == os.getuid() and stat.S_ISDIR(status.st_mode):
            found.append(folder)
    return found


def is_name(text: str) -> bool:
    """Whether a job may be called so, after `PREFIX`: a word of at most 40 letters, digits and
    ``-_.``, which begins with a letter or a digit."""
    word = text.isascii() and all(letter.isalnum() or letter in "-_." for letter in text)
    return word and text[:1].isalnum() and len(text) <= _LONGEST


def new_name(beginning: str = PREFIX) -> str:
    """Return a name that no other job has, and that begins so."""
    return f"{beginning}{os.urandom(6).hex()}"


def of_starts(job: str) -> str:
    """Return how the names of folders begin that starts of this job have: as no job is called."""
    return f"{job}+"


def make(name: str) -> tuple[Path, int]:
    """Make the folder of this name, and return it and the lock's descriptor.

    Raises FileExistsError if there is one.
    """
    while True:
        folder = home() / name
        folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # taken for abandoned, in the instant before it is locked
            return folder, hold(folder)


def create(workers: int, beginning: str = PREFIX) -> tuple[str, Path, int]:
    """Make a folder for one start of a job, and return its name, which begins so, itself and the
    lock's descriptor."""
    folder, lock = make(new_name(beginning))
    (folder / DEATHS).write_bytes(bytes(8 * workers))
    for board in BOARDS:
        (folder / board).touch(mode=0o600)
    return folder.name, folder, lock


def hold(folder: Path) -> int:
    """Lock a job's folder against being taken for abandoned; returns the descriptor.

    The lock ends with the last process that holds the descriptor or a copy inherited by fork.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    if not folder.exists():
        os.close(lock)
        raise FileNotFoundError(folder)
    return lock


def remove(folder: Path, patience: float = 2.0) -> None:
    """Remove a job's folder. Others may be removing it, and the dying may still write to it.

    Another job may make a folder of this name as soon as it is gone: that one stays.
    """
    import shutil  # here, not above: every wrapper would pay for it

    deadline, this = time.monotonic() + patience, _number(folder)
    while this is not None and this == _number(folder) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)


def _number(folder: Path) -> int | None:
    """Return by which number the file system knows it; None if it is gone."""
    try:
        return folder.lstat().st_ino
    except FileNotFoundError:
        return None


def remove_when_free(folder: Path, patience: float = 5.0) -> None:
    """Remove a folder as soon as nobody holds it, if that comes. Blocking, for so many seconds.

    For who has seen that its holder dies: that may be seen before the lock is free.
    """
    deadline = time.monotonic() + patience
    with suppress(FileNotFoundError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.001)
            else:
                remove(folder)
                break
        os.close(lock)


def remove_abandoned() -> None:
    """Remove this user's job folders that no living process holds (all were killed at once)."""
    for folder in home().glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            remove(folder)
        finally:
            os.close(lock)
