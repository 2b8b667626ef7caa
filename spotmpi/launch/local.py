"""The launcher: starts a job on this host, watches it, ends it, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import platform
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from spotmpi.channel import record_death
from spotmpi.errors import EXIT_REQUEUE
from spotmpi.launch import folder as job_folder
from spotmpi.launch import mpirun, processes
from spotmpi.launch.console import Console, read
from spotmpi.launch.crew import Crew, Heard
from spotmpi.launch.doctor import cores
from spotmpi.launch.installation import Installation
from spotmpi.launch.verdict import Ending, Verdict, signal_name
from spotmpi.launch.worker import TASK
from spotmpi.settings import Settings

__all__ = ["launch"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_FOR_START = 60.0
"""Seconds for mpirun to start the wrappers; and one more for each worker."""

_FOR_CLEARING = 6.0
"""Seconds for killed processes to be gone."""

_FOR_MPIRUN = 2.0
"""Seconds for mpirun to end after its last wrapper; it hangs at times."""

_FOR_STOPPING = 30.0
"""Seconds for the other workers to stop after one did with code 75."""

_BEFORE_BURIAL = 0.25
"""Seconds from a death until orphans are looked for: survivors need the cores to recover."""

_DESCRIPTORS = 8
"""Descriptors for each worker that mpirun or the launcher may need, whichever needs more."""

_LONGEST_COMPLAINT = 1 << 14
"""Bytes that are kept of what mpirun says, the last ones."""


def launch(
    script: Path,
    arguments: Sequence[str],
    workers: int,
    settings: Settings,
    installation: Installation,
) -> int:
    """Run a job to its end and return its exit code (`verdict` lists them). Blocking.

    Belongs into the main thread of a process of its own: it handles signals, and kills whatever
    descends from this process when the job ends (children that were there before are spared).
    The settings must have been checked.
    """
    _allow_descriptors(_DESCRIPTORS * workers)
    job_folder.remove_abandoned()
    job, folder, lock = job_folder.create(workers)
    try:
        (folder / TASK).write_text(json.dumps([str(script), *arguments]))
        settings = replace(settings, job=job, job_dir=folder)
        command = mpirun.command(installation, workers, mpirun.wrapper(folder))
        environment = mpirun.environment(installation, workers, settings, os.environ, cores())
        return _Job(job, folder, workers).run(command, environment)
    finally:
        job_folder.remove(folder)
        os.close(lock)


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class _Job:
    """One job, from mpirun's start to the last process's end: an event loop."""

    def __init__(self, job: str, folder: Path, workers: int) -> None:
        self._job = job
        self._folder = folder
        self._workers = workers
        self._verdict = Verdict(workers, platform.node())
        self._select = selectors.PollSelector()  # epoll would refuse regular files
        self._console = Console(self._select)
        self._crew = Crew(self._select, folder, workers, self._console.watch)
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._complaints = bytearray()
        self._mpirun_gone = False
        self._ending = False
        self._out_of_patience = False

    def run(self, command: Sequence[str], environment: dict[str, str]) -> int:
        self._spared = processes.children(os.getpid())
        processes.adopt_orphans()
        with _signals_as_events(self._select, self._verdict.interrupted):
            self._start(command, environment)
            self._after(_FOR_START + self._workers, "start", self._not_started)
            while not self._over():
                self._turn()
            self._finish()
        ending = self._verdict.conclude()
        with self._console.closing():
            self._explain(ending)
        return ending.code

    def _over(self) -> bool:
        if self._verdict.ending is not None and not self._ending:
            self._ending = True
            self._timers.clear()
            self._crew.end()
            self._after(_FOR_CLEARING, "clear", self._give_up_waiting)
        if self._ending:
            return self._out_of_patience or self._crew.at_rest
        # Wrappers stay to the end: MPI would take one that leaves for a death, and while some
        # workers have finished, others may still be in the middle of something.
        return self._verdict.complete

    def _turn(self) -> None:
        """Wait for something to happen, and deal with all that has happened."""
        self._console.adjust()
        for key, _ in self._select.select(self._until_next_timer()):
            key.data()
        self._listen()
        now = time.monotonic()
        for name, (at, action) in list(self._timers.items()):
            if at <= now:
                del self._timers[name]
                action()
        for line in self._verdict.lines:
            self._console.say(line)
        self._verdict.lines.clear()

    def _listen(self) -> None:
        for heard in self._crew.hear():
            self._take(heard)
        if self._crew.all_met:
            self._timers.pop("start", None)

    def _take(self, heard: Heard) -> None:
        match heard.event:
            case "cleared":
                return
            case "runtime":
                # Not to be mistaken for the revocation of everybody that follows from it.
                self._verdict.runtime_gave_up()
            case "ended":
                status = int(heard.fields["status"])
                self._verdict.ended(heard.worker, status)
                if os.WIFSIGNALED(status):
                    self._after(_BEFORE_BURIAL, "bury", self._bury)
            case "vanished":
                record_death(str(self._folder), heard.worker, time.monotonic())
                self._verdict.lost(heard.worker, "SIGKILL")
                self._after(_BEFORE_BURIAL, "bury", self._bury)
            case _:
                self._verdict.told(heard.worker, heard.event, heard.fields)
        if self._verdict.stopping and "stop" not in self._timers and not self._ending:
            self._after(_FOR_STOPPING, "stop", self._not_stopping)

    def _start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        launcher = os.getpid()
        self._mpirun = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the launcher alone
            # Safe: this process has one thread. And mpirun must not outlive it.
            preexec_fn=lambda: processes.die_with_parent(launcher),
        )
        self._spared.append(self._mpirun.pid)
        assert self._mpirun.stdout is not None
        said = self._mpirun.stdout.fileno()
        os.set_blocking(said, False)
        self._select.register(said, selectors.EVENT_READ, lambda: self._read_complaints(said))
        self._pidfd = os.pidfd_open(self._mpirun.pid)
        self._select.register(self._pidfd, selectors.EVENT_READ, self._mpirun_ended)

    def _read_complaints(self, said: int) -> None:
        data = read(said)
        if data == b"":
            self._select.unregister(said)
        elif data:
            self._complaints += data
            del self._complaints[:-_LONGEST_COMPLAINT]

    def _mpirun_ended(self) -> None:
        self._select.unregister(self._pidfd)
        os.close(self._pidfd)
        self._mpirun_gone = True
        code = self._mpirun.wait()
        # The last words of wrappers come first: they may have ended mpirun, and not it them.
        self._listen()
        if self._verdict.complete:
            return
        if code < 0:
            self._verdict.runtime_killed(signal_name(-code))
        else:
            self._verdict.runtime_gave_up()

    def _finish(self) -> None:
        """Let wrappers and mpirun go, then kill whatever is left."""
        self._crew.dismiss()
        deadline = time.monotonic() + _FOR_MPIRUN
        while not self._mpirun_gone and time.monotonic() < deadline:
            self._console.adjust()
            for key, _ in self._select.select(max(0.0, deadline - time.monotonic())):
                key.data()
            self._crew.hear()
        if not self._mpirun_gone:
            self._mpirun.kill()
            self._mpirun.wait()
        self._spared.remove(self._mpirun.pid)
        assert self._mpirun.stdout is not None
        while data := read(self._mpirun.stdout.fileno()):
            self._complaints += data
        self._mpirun.stdout.close()
        # Not even what hid from its wrapper, or started while all this ended, may stay.
        processes.end_descendants(_FOR_CLEARING, keep=self._spared)
        processes.sweep(f"SPOTMPI_JOB={self._job}", _FOR_CLEARING)

    def _explain(self, ending: Ending) -> None:
        if ending.runtime:
            complaints = self._complaints.decode(errors="replace").strip()
            if complaints:
                self._console.say(f"mpirun said:\n{complaints}")
        if ending.text:
            self._console.say(ending.text.rstrip("\n"))
        if ending.sentence:
            self._console.say(ending.sentence)

    def _bury(self) -> None:
        """Kill what dead workers left behind and this process has inherited."""
        processes.end_descendants(1.0, keep=self._spared)

    # Time.

    def _after(self, seconds: float, name: str, action: Callable[[], None]) -> None:
        self._timers[name] = (time.monotonic() + seconds, action)

    def _until_next_timer(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(at for at, _ in self._timers.values()) - time.monotonic())

    def _give_up_waiting(self) -> None:
        self._out_of_patience = True

    def _not_started(self) -> None:
        self._verdict.not_started(f"mpirun did not start all {self._workers} workers in time")

    def _not_stopping(self) -> None:
        self._verdict.not_stopping(
            f"a worker stopped with code {EXIT_REQUEUE}, but others went on for "
            f"{_FOR_STOPPING:.0f} s and were ended"
        )


@contextmanager
def _signals_as_events(
    select: selectors.BaseSelector, take: Callable[[int], None]
) -> Iterator[None]:
    """Inside, call ``take`` from the event loop for each signal that asks this process to end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)

    def woken() -> None:
        for number in read(reading) or b"":
            if number in handled:
                take(number)

    # One that is ignored stays so: `nohup spotmpi run`, or `spotmpi run &` in a shell script.
    handled = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, _noted) for one in handled}
    previous = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    select.register(reading, selectors.EVENT_READ, woken)
    try:
        yield
    finally:
        select.unregister(reading)
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor carries the signal into the event loop."""
