"""A folder of checkpoints: what its files are called, which of them stay, and who may write.

All functions are local and blocking. What is in a file, `checkpoint_file` knows.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
from pathlib import Path

from spotmpi.errors import UsageError

__all__ = [
    "STEP_DIGITS",
    "check_unused",
    "check_writable",
    "flush",
    "is_finite",
    "newest",
    "open_temporary",
    "path_of",
    "published",
    "some",
    "step_of",
    "tidy",
    "why",
]

KEPT = 2
"""How many checkpoints stay in a folder."""

STEP_DIGITS = 12
ABANDONED_SECONDS = 24 * 3600
"""Age from which a temporary file of another host, whose locks may not be visible, is dead."""

_NAME = re.compile(rf"checkpoint-(\d{{{STEP_DIGITS}}})(?P<not_finite>\.not-finite)?\.h5", re.ASCII)
_TEMPORARY = re.compile(r"\.checkpoint-\d+\.(?P<host>.*)\.[0-9a-f]{16}\.tmp", re.ASCII)


def path_of(folder: Path, step: int, finite: bool = True) -> Path:
    """Where the checkpoint of a step is; one whose parameters are not ``finite`` says so by its
    name, and nothing goes on from it."""
    return folder / f"checkpoint-{step:0{STEP_DIGITS}}{'' if finite else '.not-finite'}.h5"


def step_of(path: Path) -> int:
    """Of a checkpoint, by its name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def is_finite(path: Path) -> bool:
    """Whether a checkpoint is one to go on from, by its name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return match["not_finite"] is None


def published(folder: Path) -> list[Path]:
    """The checkpoints in a folder by their names, newest step first, whether usable or not.

    Raises OSError if the folder cannot be listed.
    """
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def newest(folder: Path) -> Path | None:
    """The newest one whose parameters are finite, by the names. Raises OSError as `published`."""
    return next(filter(is_finite, published(folder)), None)


def some(folder: Path) -> bool:
    """Whether there is any, usable or not."""
    try:
        return bool(published(folder))
    except OSError:
        return False


def check_writable(folder: Path) -> None:
    """Creates the folder if need be and proves that a checkpoint can be put there.

    Raises UsageError with what to do. Blocking; meant for the start of a run, not for its end.
    """
    try:
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for place in missing:
            flush(place.parent)
        temporary, fd = open_temporary(folder, 0)
        try:
            os.write(fd, b"\0")
        finally:
            os.close(fd)
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"no checkpoint can be written into {folder}: {why(error)}; "
            "name a folder on a disk that this user may write to and that has space"
        ) from error


def check_unused(folder: Path) -> None:
    """UsageError if the folder holds checkpoints: a run that does not resume must not add its own,
    because the later steps of the earlier run would be taken for its newest."""
    try:
        newest = published(folder)[:1]
    except OSError:
        return  # check_writable has more to say
    if newest:
        raise UsageError(
            f"{folder} holds checkpoints of an earlier run, the last of step {step_of(newest[0])}:"
            " go on from there (--resume), or name an empty folder"
        )


def open_temporary(folder: Path, step: int) -> tuple[Path, int]:
    """A new private file that no other writer has, locked for as long as this process lives.

    The lock is what tells a live writer's file from a dead one's: the kernel drops it with the
    process, where a process id could be somebody else's by then.
    """
    while True:
        host = socket.gethostname().replace("/", "_")[:64]
        name = f".checkpoint-{step:0{STEP_DIGITS}}.{host}.{os.urandom(8).hex()}.tmp"
        fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Between the two calls another writer may have locked the file, taking it for a dead
        # one's, or have removed it already: then it is not ours any more, and we take another.
        if _lock(fd) is not False and os.fstat(fd).st_nlink == 1:
            return folder / name, fd
        os.close(fd)


def _lock(fd: int) -> bool | None:
    """True if the lock is ours now, False if somebody alive has it, None without locks here."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def flush(folder: Path) -> None:
    """Makes the names in a folder durable: a rename is only on the disk after this."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def tidy(folder: Path, step: int, now: float, finite: bool = True) -> None:
    """Removes what the checkpoint of ``step`` has made superfluous, and what dead writers left.

    Only checkpoints *before* ``step`` are ever removed. A later one can be there if it was damaged
    and the run went on from an earlier one: counting it among the two would remove a good one in
    its favour. One that is not ``finite`` removes none that is, and only the last such one stays,
    until a finite one has come as far. ``now`` is the file system's clock, which may not be this
    host's.
    """
    with contextlib.suppress(OSError):
        here = published(folder)
        older = [path for path in here if is_finite(path) and step_of(path) < step]
        broken = [path for path in here if not is_finite(path) and step_of(path) < step + finite]
        for path in broken + older[KEPT - 1 :] * finite:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            with contextlib.suppress(OSError):
                _remove_if_dead(path, now)


def _remove_if_dead(path: Path, now: float) -> None:
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        locked = _lock(fd)
        here = locked and match["host"] == socket.gethostname().replace("/", "_")[:64]
        abandoned = locked is not False and now - os.fstat(fd).st_mtime > ABANDONED_SECONDS
        if here or abandoned:
            path.unlink()
    finally:
        os.close(fd)


def why(error: BaseException) -> str:
    """A reason in few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return str(error) or type(error).__name__
