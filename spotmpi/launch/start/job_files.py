"""What a job writes for its user, checkpoints and a trace: its own alone, and looked at before any
worker starts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from spotmpi import locks
from spotmpi.launch.start.program import Program
from spotmpi.settings import Settings
from spotmpi.training.keeping import checkpoint_folder

__all__ = ["JobFiles", "Kept"]

_FINISHED = "finished.json"
"""In a folder of checkpoints: what ended there with code 0."""


@dataclass(frozen=True)
class Kept:
    """The newest checkpoint that is whole."""

    step: int
    path: Path
    finished: bool
    """The same command, of the same script, ended with it: nothing is left to do."""


class JobFiles:
    """Of one job. A context manager: nobody else writes them meanwhile; raises `locks.InUse`.

    ``say`` is given what the user should know of them.
    """

    def __init__(self, settings: Settings, program: Program, say: Callable[[str], None]) -> None:
        self._folder = settings.checkpoint
        self._trace = settings.trace
        self._program = program
        self._say = say
        self._locks: list[locks.Lock] = []

    def __enter__(self) -> JobFiles:
        self._locks = locks.hold(self._folder, self._trace, script=self._program.short)
        for lock in self._locks:
            if not lock.guarded:
                self._say(
                    f"{lock.path.parent} is on a file system without locks: see to it that no "
                    "other job writes there"
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        locks.release(self._locks)
        self._locks = []

    def begins(self, job: str) -> None:
        """The job begins, under this name, which others may be told; what ended before it did not
        end with it."""
        for lock in self._locks:
            lock.note(job=job)
        if self._folder is not None:
            with suppress(OSError):
                (self._folder / _FINISHED).unlink()

    def newest(self) -> Kept | None:
        """What a job can go on from; None if there is no checkpoint. Blocking: it is verified.

        Raises CheckpointError if there are some and none is usable.
        """
        folder = self._folder
        if folder is None or not checkpoint_folder.some(folder):
            return None
        from spotmpi.training.keeping import checkpoint_file  # HDF5: only for those who need it

        found = checkpoint_file.load_latest(folder, self._say, arrays=False)
        finished = found.about.get("complete") is True and self._said() == self._end(found.step)
        return Kept(found.step, found.path, finished)

    def finished(self) -> None:
        """The job has ended with code 0: with the last checkpoint, if there is any."""
        folder = self._folder
        if folder is None or not checkpoint_folder.some(folder):
            return
        if (newest := checkpoint_folder.newest(folder)) is None:
            return
        step = checkpoint_folder.step_of(newest)
        temporary = folder / f".{_FINISHED}.tmp"
        try:
            temporary.write_text(json.dumps(self._end(step)))
            temporary.replace(folder / _FINISHED)
        except OSError as error:
            self._say(
                f"that the training is complete could not be written into {folder}: "
                f"{error.strerror}; started again, its script runs once more"
            )

    def _end(self, step: int) -> dict[str, object]:
        """What tells this end from that of another script, or of other arguments."""
        task = hashlib.sha256(self._program.source(os.getcwd()))
        if self._program.is_module:
            task.update(self._program.called.encode())
        task.update(json.dumps(list(self._program.arguments)).encode())
        return {"step": step, "task": task.hexdigest()}

    def _said(self) -> object:
        assert self._folder is not None
        try:
            return json.loads((self._folder / _FINISHED).read_text())
        except (OSError, ValueError):
            return None
