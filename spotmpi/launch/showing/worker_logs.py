"""Files in the folder that the user named: what each worker writes, and the log of the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["Log", "Logs"]


class Logs:
    """The files of one job. ``say`` tells the user what is wrong, once for all of them.

    Training is worth more than its logs: what cannot be written is lost, and leaves a gap that
    the file names as soon as it can be written to again.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._said = False
        self._logs: dict[str, Log] = {}

    def of(self, name: str) -> Log:
        """Return a file, which is for the user alone; what it had before is kept."""
        if name not in self._logs:
            self._logs[name] = Log(self._folder / f"{name}.log", self._complain)
        return self._logs[name]

    def close(self) -> None:
        """Let go of all files."""
        for log in self._logs.values():
            log.close()

    def _complain(self, path: Path, error: OSError) -> None:
        if not self._said:
            self._said = True
            self._say(
                f"{path} cannot be written ({error.strerror}); the training goes on, and what "
                "belongs into --log-dir is missing there until there is room for it"
            )


class Log:
    """One file, opened when it is first written to, and again when somebody has removed it."""

    def __init__(self, path: Path, complain: Callable[[Path, OSError], None]) -> None:
        self._path = path
        self._complain = complain
        self._descriptor: int | None = None
        self._missing = 0

    def write(self, data: bytes) -> None:
        """Append whole lines, at once and without a buffer. Never raises."""
        if self._missing:
            gap = f"\nspotmpi: {self._missing} bytes are missing here\n".encode()
            if not self._append(gap):
                self._missing += len(data)
                return
            self._missing = 0
        if not self._append(data):
            self._missing += len(data)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> bool:
        try:
            if self._descriptor is not None and os.fstat(self._descriptor).st_nlink == 0:
                self.close()
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                # A pipe without a reader would block the launcher.
                self._descriptor = os.open(self._path, flags | os.O_NONBLOCK, 0o600)
            size = os.fstat(self._descriptor).st_size
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, size)  # no half lines
                raise
        except OSError as error:
            self._complain(self._path, error)
            return False
        return True
