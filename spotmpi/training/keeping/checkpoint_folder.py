"""A folder of checkpoints: the names of its files, which of them stay, and who may write.

All functions are local and blocking. `checkpoint_file` knows what is in a file.
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
"""Number of checkpoints that stay in a folder."""

STEP_DIGITS = 12
ABANDONED_SECONDS = 24 * 3600
"""Age at which another host's temporary file counts as dead: its locks may not be visible."""

_NAME = re.compile(rf"checkpoint-(\d{{{STEP_DIGITS}}})(?P<not_finite>\.not-finite)?\.h5", re.ASCII)
_TEMPORARY = re.compile(r"\.checkpoint-\d+\.(?P<host>.*)\.[0-9a-f]{16}\.tmp", re.ASCII)


def path_of(folder: Path, step: int, finite: bool = True) -> Path:
    """Return the path of the checkpoint of a step. A checkpoint whose parameters are not ``finite``
    says so by its name, and no run goes on from it."""
    return folder / f"checkpoint-{step:0{STEP_DIGITS}}{'' if finite else '.not-finite'}.h5"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, by its name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def is_finite(path: Path) -> bool:
    """Return True if a run can go on from a checkpoint, by its name: its parameters are finite."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return match["not_finite"] is None


def published(folder: Path) -> list[Path]:
    """Return a folder's checkpoints by their names, newest step first, usable or not.

    Raises OSError if the folder cannot be listed.
    """
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name)), reverse=True)


def newest(folder: Path) -> Path | None:
    """Return the newest finite checkpoint, by the names, if any. Raises OSError as `published`."""
    return next(filter(is_finite, published(folder)), None)


def some(folder: Path) -> bool:
    """Return True if the folder holds any checkpoint, usable or not."""
    try:
        return bool(published(folder))
    except OSError:
        return False


def check_writable(folder: Path) -> None:
    """Create the folder if need be, and prove that a checkpoint can be written there. Blocking.

    Raises UsageError with what to do. It is meant for the start of a run, not for its end.
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
    """Raise UsageError if the folder holds checkpoints. A run that does not resume must not add its
    own: the later steps of the earlier run would be taken for its newest."""
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
    """Open a new private temporary file, locked for as long as this process lives.

    The lock tells a live writer's file from a dead one's: the kernel drops it with the process. A
    process id could belong to another process by then.
    """
    while True:
        host = socket.gethostname().replace("/", "_")[:64]
        name = f".checkpoint-{step:0{STEP_DIGITS}}.{host}.{os.urandom(8).hex()}.tmp"
        fd = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Between the two calls another writer may have taken the file for a dead writer's, and
        # have locked or removed it. Then it is not ours any more, and we take another.
        if _lock(fd) is not False and os.fstat(fd).st_nlink == 1:
            return folder / name, fd
        os.close(fd)


def _lock(fd: int) -> bool | None:
    """Return True if the lock is ours, False if a live process has it, None without locks here."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def flush(folder: Path) -> None:
    """Make the names in a folder durable: a rename is on the disk only after this."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def tidy(folder: Path, step: int, now: float, finite: bool = True) -> None:
    """Remove what the checkpoint of ``step`` has made superfluous, and what dead writers left.

    Only checkpoints *before* ``step`` are ever removed. A later one may be there if it was damaged
    and the run went on from an earlier one. If it counted among the two that stay, a good one would
    be removed in its favour. A checkpoint that is not ``finite`` removes none that is. Only the
    last one that is not finite stays, until a finite one has come as far. ``now`` is the file
    system's clock, which may not be this host's.
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
    """Return a reason in few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return str(error) or type(error).__name__
