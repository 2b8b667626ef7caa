"""What a job is found by, from its first start to its end: a name, and a socket where it answers.

A job may be started again (its workers were lost before all were ready, or all of them were, with
``--keep-alive``). Whoever knows its name, asks it or waits for its end needs not know of that.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from spotmpi import job_folder
from spotmpi.errors import UsageError
from spotmpi.launch import processes
from spotmpi.launch.control_messages import Report
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.head.control_socket import Answer, ControlSocket

__all__ = ["JobHome"]

_FOR_CLEARING = 5.0
"""Seconds for killed processes to be gone."""

_CLEARED = "cleared"
"""A file in the folder of a job whose launcher was killed, until all of that job is gone."""

_PAUSE = 0.02
"""Seconds between two tries to get a name."""

_SEEN, _GONE = 0.5, 60.0
"""Seconds in which a keeper sees that its launcher was killed, and in which it is done."""


class JobHome:
    """The name of a job, and the private folder with its socket. A context manager.

    Entering raises UsageError if there is a job of this name on this host, after half a second; it
    waits for what is left of one that was killed. Leaving blocks for half a second if somebody
    waits for the job's end. If this process is killed, the folder goes, too.
    """

    def __init__(self, name: str | None = None, came: list[int] | None = None) -> None:
        """``name``: without `job_folder.PREFIX`; None: one that no other job has."""
        self.name = job_folder.new_name() if name is None else f"{job_folder.PREFIX}{name}"
        self.since = time.time()
        self.loop = Loop()
        """Of the launcher."""
        self.came = [] if came is None else came
        """Signals that came when no start was there to hear them."""
        self.last: Report | None = None
        """How the last start ended."""
        self._answer: Answer
        """Of the start that runs."""
        self._folder = Path()
        self._lock = -1
        self._desk: ControlSocket | None = None

    def __enter__(self) -> JobHome:
        job_folder.remove_abandoned()
        asked = time.monotonic()
        while True:
            try:
                self._folder, self._lock = job_folder.make(self.name)
                break
            except FileExistsError:
                cleared = (job_folder.home() / self.name / _CLEARED).exists()
                if time.monotonic() > asked + (_GONE if cleared else _SEEN):
                    raise UsageError(
                        f"there is a job {self.name} on this host: give another --name, or end "
                        "that one"
                    ) from None
            time.sleep(_PAUSE)
        self._keeper = _keeper(self._folder, self._lock)
        return self

    def serve(self, answer: Answer) -> str:
        """Have a start of the job answer from now on. Returns why nobody can ask, if so."""
        self._answer = answer
        try:
            self._desk = self._desk or ControlSocket(
                self.loop, self._folder, lambda asked: self._answer(asked)
            )
        except OSError as error:
            return f"spotmpi status, stop, grow and shrink cannot be used: {error}"
        return ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._desk is not None:
            self._desk.close(self.last)
        job_folder.remove(self._folder)
        os.close(self._lock)
        os.kill(self._keeper, signal.SIGKILL)
        os.waitpid(self._keeper, 0)


def _keeper(folder: Path, lock: int) -> int:
    """Start a process that removes this folder, and all else of the job of this name on this host,
    when this one has died; return its id.

    It holds the folder's lock as well: no other job has the name before all of this one is gone,
    which is known by it. Only a process without threads may call this.
    """
    alive, _ours = os.pipe()  # the launcher's end: closed by its death
    keeper = os.fork()
    if keeper == 0:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            os.setsid()  # whoever kills all of the launcher's group, this one remains
            processes.name_this("spotmpi-keeper")
            for other in map(int, os.listdir("/proc/self/fd")):  # the launcher's end among them
                if other > 2 and other not in (alive, lock):
                    with suppress(OSError):
                        os.close(other)
            os.read(alive, 1)
            if os.fstat(lock).st_nlink:  # or the launcher removed it: another job may have the name
                (folder / _CLEARED).touch()
                # mpirun outlives the launcher by an instant, in which it makes folders.
                processes.sweep(f"SPOTMPI_JOB={folder.name}", _FOR_CLEARING)
                for start in folder.parent.glob(f"{job_folder.of_starts(folder.name)}*"):
                    job_folder.remove_when_free(start)
                job_folder.remove(folder)
        finally:
            os._exit(0)
    os.close(alive)
    return keeper
