"""Files that one job has for itself: locks that end with the process that holds them, however.

A lock is a small file that stays locked (flock) while its holder lives. The kernel gives it up with
the process, also after SIGKILL; NFS does so between hosts, and forgets a host that is gone within
its lease (a minute or two). In the file stands who holds it. Where a file system has no locks, only
a holder on this very host is found.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from spotmpi.errors import SpotmpiError

__all__ = ["InUse", "Lock", "hold", "release"]

_NAME = ".spotmpi.lock"
"""In a folder of checkpoints."""

_LONGEST = 4096
"""Bytes of what stands in the file."""

_HELD = (errno.EAGAIN, errno.EACCES)


class InUse(SpotmpiError):
    """Somebody else holds it, who is named."""


def hold(folder: Path | None, file: Path | None, **about: str) -> list[Lock]:
    """Lock a folder of checkpoints and a trace, if there are any; both must be there to be made.

    Raises InUse, with what to do. One that cannot be locked at all is not ours to write either, and
    whoever writes says so.
    """
    places = [] if folder is None else [(folder, folder / _NAME)]
    if file is not None:
        real = Path(os.path.realpath(file))
        places.append((file, real.with_name(f".{real.name}.lock")))
    held: list[Lock] = []
    for what, path in places:
        try:
            held.append(Lock(path, **about))
        except InUse as error:
            release(held)
            raise InUse(
                f"{what} is in use by {error}, and two jobs there would destroy each other's "
                "work: wait for its end, stop it, or name another place"
            ) from None
        except OSError:
            continue
    return held


def release(held: Iterable[Lock]) -> None:
    """Let all of them go."""
    for lock in held:
        lock.release()


class Lock:
    """Held from its making until `release`, or until this process ends. Local.

    Raises InUse if another process holds it, OSError if the file cannot be made.
    """

    def __init__(self, path: Path, **about: str) -> None:
        """``about``: what others are told of this holder, beside its host and its process."""
        self.path = path
        self._about = about
        while True:
            self._descriptor = _opened(self.path)
            try:
                self.guarded = self._take()
                """The file system has locks; else only holders on this host are found."""
                # The one before may have removed it between the two calls.
                if os.fstat(self._descriptor).st_nlink:
                    break
            except BaseException:
                os.close(self._descriptor)
                raise
            os.close(self._descriptor)
        self.note()

    def _take(self) -> bool:
        """Whether the file system has locks. Raises InUse."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            known = self._read()
            if error.errno in _HELD:
                raise InUse(_described(known)) from None
            if known.get("host") == socket.gethostname() and _lives(known):
                raise InUse(_described(known)) from None
            return False
        return True

    def note(self, **about: str) -> None:
        """Write more of what others are told."""
        self._about.update(about)
        process = {"pid": os.getpid(), "began": _began(os.getpid())}
        text = json.dumps({"host": socket.gethostname(), **process, **self._about}).encode()
        with suppress(OSError):  # a full disk: it is held all the same
            os.pwrite(
                self._descriptor, text[:_LONGEST].ljust(os.fstat(self._descriptor).st_size), 0
            )

    def release(self) -> None:
        """Let it go. The file goes with it."""
        with suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)

    def _read(self) -> dict[str, Any]:
        """What its holder, or the last one, has written."""
        try:
            found = json.loads(os.pread(self._descriptor, _LONGEST, 0))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _opened(path: Path) -> int:
    # No link: it may lie where others can put files, and is written to.
    how = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | how, 0o666)
    except PermissionError:
        return os.open(path, os.O_RDONLY | how)  # another user's, which can be locked all the same


def _described(known: dict[str, Any]) -> str:
    """Who that is, in a sentence's end."""
    if not known:
        return "a process that has not said who it is"
    what = {key: str(value)[:200] for key, value in known.items()}
    job = what.get("job", "a job")
    who = f"{job} (process {what.get('pid')} on {what.get('host')}"
    script = f", {what['script']}" if "script" in what else ""
    return "".join(c for c in f"{who}{script})" if c.isprintable())


def _lives(known: dict[str, Any]) -> bool:
    pid = known.get("pid")
    return isinstance(pid, int) and _began(pid) == known.get("began") != 0


def _began(pid: int) -> int:
    """When a process of this host began, in the kernel's ticks: tells it from a later one of its
    number. 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])
