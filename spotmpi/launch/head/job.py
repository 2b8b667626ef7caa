"""One job under its launcher: started, watched, ended, and nothing of it left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from spotmpi.errors import EXIT_REQUEUE
from spotmpi.launch import messages, processes
from spotmpi.launch.control_messages import Report
from spotmpi.launch.head.control_requests import ControlRequests, Growing
from spotmpi.launch.head.fates import NEWCOMERS, JobEnding
from spotmpi.launch.head.job_home import JobHome
from spotmpi.launch.head.job_state import JobState
from spotmpi.launch.head.membership_changes import MembershipChanges
from spotmpi.launch.head.revoking import Revoking
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.head.status_report import StatusReport
from spotmpi.launch.host.wrappers import WorkerEvent
from spotmpi.launch.limits import Limits
from spotmpi.launch.liveness import Silences
from spotmpi.launch.notices import NoticeListener
from spotmpi.launch.processes import read
from spotmpi.launch.showing import live_line
from spotmpi.launch.showing.figures import Figures
from spotmpi.launch.showing.output import Output
from spotmpi.launch.showing.view import View
from spotmpi.launch.signal_events import as_events
from spotmpi.launch.start.private_network import Open
from spotmpi.launch.wording import signal_name, typed
from spotmpi.launcher_channel import Cause, Order
from spotmpi.notice import Notice
from spotmpi.settings import Settings, Watch

__all__ = ["STALL_TIMEOUT", "Job", "JobOptions", "MpirunStart", "Workers"]

_LOG = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_REQUESTS = _SIGNALS[:2]
"""They ask for an end in order."""

_BETWEEN_BEGINS = 0.1
"""Seconds until it is asked again what to start: that a process has ended wakes nobody."""

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

_FOR_A_WORD = 0.2
"""Seconds for the last words before the launcher is stopped."""

_BETWEEN_BURIALS = 0.05
"""Seconds until those that were killed are looked for again."""

_BETWEEN_LOOKS = 1.0
"""Seconds between two looks for workers that hold up all others; less for a short limit."""

_LONGEST_COMPLAINT = 1 << 14
"""Bytes that are kept of what mpirun says, the last ones."""

STALL_TIMEOUT = 600
"""Seconds for which others may wait for one that does nothing, unless told otherwise."""


class Workers(Protocol):
    """The processes that mpirun starts, and what stands behind them."""

    @property
    def all_met(self) -> bool:
        """Whether all of them have been there."""

    @property
    def at_rest(self) -> bool:
        """Whether no worker lives, as far as that can be known."""

    def hear(self) -> list[WorkerEvent]:
        """All that was said, ends last."""

    def pause(self) -> float | None:
        """Seconds until `hear` must be called, even if nothing happens."""

    def revoke(self, worker: int) -> None:
        """Have a worker killed, as if its host had been taken away."""

    def kill(self, worker: int) -> None:
        """Have MPI take a worker for dead, though it could not be killed."""

    def order(self, worker: int, order: Order) -> None:
        """Put an order where the worker finds it in its next round. May raise OSError."""

    def explain(self, worker: int, cause: Cause) -> None:
        """Have all others find why a worker is gone, or goes."""

    def progress(self) -> dict[int, Standing]:
        """How far those have come that live and train, as far as that is known."""

    def silences(self) -> dict[str, Silences]:
        """How silent the other hosts were that are there, by name."""

    def recruit(self, host: str) -> int | None:
        """Start one more worker on a host, if it is there and has room; returns its id."""

    def bring(self, worker: int) -> None:
        """A newcomer's stand-in will be spawned now."""

    @property
    def mute(self) -> bool:
        """Whether mpirun does not answer, so that nobody can be brought in."""

    def end(self) -> None:
        """Have every worker killed, without MPI seeing a death."""

    def dismiss(self, again: bool = False) -> None:
        """Let all go. ``again``: the job begins anew."""

    @property
    def gone(self) -> bool:
        """Whether all have gone."""


@dataclass(frozen=True)
class MpirunStart:
    """What mpirun is started with, once all is there."""

    command: Sequence[str]
    environment: dict[str, str]
    hosts: Sequence[str]
    """Of each worker."""
    folder: Path
    """The private one of this start."""
    network: Open
    """Where mpirun is to live."""


@dataclass(frozen=True)
class JobOptions:
    """How a job is run and shown, beside what it computes."""

    quiet: bool = False
    """Do not show what workers write."""
    verbose: bool = False
    """Show log lines."""
    log_dir: Path | None = None
    """Keep there what workers write, and log lines."""
    stall_timeout: float = STALL_TIMEOUT
    """Seconds after which one that does nothing while others wait counts as revoked; 0: never."""
    spares: int = 0
    """Workers that wait until others are lost, of those on the hosts."""
    replace: bool = False
    """Start another worker where one is revoked on a host that stays."""
    replace_asked: bool = False
    """The user said so."""
    keep_alive: bool = False
    """Wait for hosts when no worker remains, and go on from the newest checkpoint."""
    watch: Watch = field(default_factory=Watch)
    """What announces that the launcher's own host is taken away."""


class Job:
    """One job, from its first process's start to the last one's end: an event loop.

    Whatever else takes part is called back by ``loop``. ``task`` is the script and its arguments.
    It may have been started before, in the same ``home``, and goes on from the step ``resumed``.
    """

    def __init__(
        self,
        task: Sequence[str],
        settings: Settings,
        manner: JobOptions,
        limits: Limits,
        home: JobHome,
        figures: Figures | None = None,
        resumed: int | None = None,
    ) -> None:
        self._home = home
        self._crew: Workers
        self._keeps = settings.checkpoint is not None
        self._verdict = JobState(self._keeps, manner.keep_alive, manner.replace_asked)
        self.loop = home.loop
        self.console = Output(
            self.loop, limits.reader, manner.quiet, manner.log_dir, manner.verbose
        )
        self._standing = StatusReport(task[0], task[1:], settings, home.since, resumed)
        self.figures = figures or Figures()
        self._view = View(self.console)
        self.watchers: list[Callable[[Report], None]] = [self._view.look]
        """Are told how the job stands, once a second."""
        self._rehearsed = settings.revoke
        self._told_to_end = False
        """A signal has come that asks for the job's end, where a checkpoint can be kept."""
        self._resumed = resumed
        self.growing: Growing | None = None
        """Where more workers come from, if any can."""
        self._turnover: MembershipChanges
        self._requests: ControlRequests
        self._spares, self._replace = manner.spares, manner.replace
        self._least = settings.min_workers
        self._limits = limits
        self._stall_timeout = manner.stall_timeout
        self._revoking: Revoking
        self._mpirun: subprocess.Popen[bytes] | None = None
        self._spared = processes.children(os.getpid())
        """Children that were there before ..."""
        self._serving: list[int] = []
        """... and those that serve the job."""
        self._lookout: NoticeListener | None = None
        self._complaints = bytearray()
        self._mpirun_gone = True
        self._ending = False
        self._out_of_patience = False

    def spare(self, pid: int) -> None:
        """Take a child for one that serves the job: it is killed at the end, and no orphan."""
        self._serving.append(pid)

    def ended(self, pid: int) -> None:
        """Such a child has ended and was waited for: its id may come again."""
        self._serving.remove(pid)

    def look_out(self, watch: Watch) -> None:
        """Hear of notices for the launcher's own host from now on."""
        self._lookout = NoticeListener(
            self.loop, watch, partial(self.noticed, None), self.console.say
        )
        self._lookout.start()
        if self._lookout.pid is not None:
            self.spare(self._lookout.pid)

    def noticed(self, host: str | None, notice: Notice) -> None:
        """Take the notice that a host is to be taken away; None is the launcher's own."""
        self.console.say(notice.sentence(host, time.time()))
        if not notice.advice:
            self.figures.noticed(host, notice.left(time.time()), time.monotonic())
            self._turnover.noticed(host)

    def asked(self, workers: int) -> None:
        """So many workers are asked for in all, whether they are there or not, spares included."""
        processes.allow_descriptors(workers, self._serving)
        self._turnover.asked(workers)

    def newcomer(self, host: str, stay: int) -> int:
        """One more worker will be started on a host, in its ``stay``-th time; returns its id."""
        return self._turnover.newcomer(host, stay)

    def too_few(self, why: str) -> None:
        """End the job before it begins: its hosts are not there."""
        self._verdict.too_few(why)

    def run(self, crew: Workers, begin: Callable[[], MpirunStart | None]) -> JobEnding:
        """Run to the end, and return how it ended. ``begin`` is asked until it says what begins."""
        self._crew = crew
        self._turnover = MembershipChanges(
            crew,
            self._verdict,
            self.loop.after,
            self._spares,
            self._replace,
            self._keeps,
            self._least,
            self._limits,
        )
        self._revoking = Revoking(
            crew,
            self._verdict,
            self._turnover,
            self.figures,
            self.console.say,
            self._stall_timeout,
        )
        self._requests = ControlRequests(
            self._home.name,
            self._crew,
            self._verdict,
            self._standing,
            self._keeps,
            self._turnover.orders,
            self._turnover.part,
            self.growing,
        )
        if why := self._home.serve(self._requests.answer):
            self.console.say(why)
        processes.adopt_orphans()
        notices = () if self._lookout is None else self._lookout.signals
        with as_events(self.loop, {*_SIGNALS, signal.SIGTSTP, *notices}, self._signalled):
            while not self._over():
                if self._mpirun is None and (start := begin()) is not None:
                    self._start(start)
                self._turn()
            self._finish()
        ending = self._verdict.conclude()
        self._home.last = self._requests.report(ending)
        with self.console.closing():
            self._explain(ending)
        return ending

    def _signalled(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._pause_myself()
            return
        if self._lookout is not None and self._lookout.take(number):
            return
        if number in _REQUESTS and self._keeps and not self._told_to_end:
            self._told_to_end = True
            if self._verdict.started and self._verdict.training:
                self._verdict.asked_to_stop(
                    f"{typed(number)} (once more ends the job at once, without a checkpoint)"
                )
                self._turnover.noticed(None)
                return
        self._verdict.interrupted(typed(number), number)

    def _pause_myself(self) -> None:
        """Ctrl-Z reaches the launcher alone."""
        if self._crew.silences():
            self.console.say(
                f"Ctrl-Z does not stop this job: without its launcher the other hosts end their "
                f"workers after {self._limits.fence:.0f} s"
            )
            return
        self.console.show("")  # the shell goes on below
        self.console.say("Ctrl-Z stops the launcher alone; the workers go on; `fg` shows it again")
        self.console.flush(_FOR_A_WORD)
        os.kill(os.getpid(), signal.SIGSTOP)
        # SIGCONT alone says nothing: whoever sends SIGTERM often sends it, too.
        self.console.say("the launcher was stopped, and goes on; the workers did meanwhile")

    def _over(self) -> bool:
        if self._verdict.ending is not None and not self._ending:
            self._ending = True
            _LOG.info("the job ends: %r", self._verdict.ending)
            self.loop.cancel_all()
            self._crew.end()
            self.loop.after(_FOR_CLEARING, "clear", self._give_up_waiting)
        if self._ending:
            return self._out_of_patience or self._crew.at_rest
        if self._mpirun is None:
            return False
        # Wrappers stay to the end: MPI would take one that leaves for a death, and while some
        # workers have finished, others may still be in the middle of something.
        return self._verdict.complete

    def _turn(self) -> None:
        """Wait for something to happen, and deal with all that has happened."""
        self.console.adjust()
        self.loop.turn(self._patience(), self._listen)
        for line in self._verdict.lines:
            self.console.say(line)
        if self._verdict.lines:
            self._view.renew(self._requests.report)
        self._verdict.lines.clear()

    def _listen(self) -> None:
        began = self._verdict.started
        for heard in self._crew.hear():
            self._take(heard)
        if self._crew.all_met:
            self.loop.cancel("start")
        if self._verdict.started and not began:
            hosts = [one.host for one in self._verdict.fates if one.state not in NEWCOMERS]
            self.console.say(live_line.banner(self._home.name, hosts, self._resumed))
            self._turnover.began()
        self._turnover.tend()

    def _take(self, heard: WorkerEvent) -> None:
        worker = heard.worker
        _LOG.debug("of worker %d is heard: %r", worker, heard.said)
        self.figures.told(worker, heard.said)
        match heard.said:
            case messages.Cleared() | messages.Met():
                return
            case messages.RuntimeEnds():
                # Not to be mistaken for the revocation of everybody that follows from it.
                self._verdict.runtime_gave_up()
            case messages.Ended(status=status, in_mpi=in_mpi):
                self._verdict.ended(worker, status, in_mpi)
                self._gone(worker)
                if os.WIFSIGNALED(status):
                    self.loop.after(_BEFORE_BURIAL, "bury", self._bury)
            case messages.Vanished():
                self._verdict.lost(worker, "SIGKILL")
                self._gone(worker)
                self.loop.after(_BEFORE_BURIAL, "bury", self._bury)
            case messages.HostLost(how=how, kind=kind, stays=stays):
                self._verdict.lost(worker, how, kind, stays)
                self._gone(worker, with_host=True)
            case messages.Misses(workers=missed):
                self._revoking.part(worker, missed)
            case messages.GoesOn():
                self._verdict.refused_to_stop(again=self._turnover.must_stop)
                if not self._turnover.must_stop:
                    self._requests.refused()
            case messages.Spawning(newcomer=newcomer):
                self._turnover.spawning(newcomer)
            case messages.GaveUp(newcomer=newcomer, why=why):
                self._turnover.gave_up(newcomer, why)
            case said:
                self._verdict.told(worker, said)
                self._standing.told(worker, said)
                self._turnover.told(worker, said)
        if self._verdict.stopping and not self.loop.waits("stop") and not self._ending:
            self.loop.after(_FOR_STOPPING, "stop", self._not_stopping)

    def _start(self, start: MpirunStart) -> None:
        workers = len(start.hosts)
        self._verdict.expect(start.hosts)
        self.loop.every(_BETWEEN_LOOKS, "look", self._look)
        if self._stall_timeout:
            self._look_for_stalls()
        late = partial(self._verdict.not_started, "mpirun did not start all workers in time")
        self.loop.after(_FOR_START + workers, "start", late)
        processes.allow_descriptors(workers)
        try:
            self._mpirun = subprocess.Popen(
                start.command,
                env=start.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the launcher alone
                # Safe: this process has one thread.
                preexec_fn=partial(_prepare, start.network, os.getpid()),
            )
        except subprocess.SubprocessError:
            self._verdict.not_started(
                "a network for mpirun could not be made, though one could before"
            )
            return
        with suppress(OSError):  # it has ended, which is found below
            start.network.holds(self._mpirun.pid)
        processes.lower_priority(self._mpirun.pid)
        _LOG.info("mpirun is process %d, for %d workers", self._mpirun.pid, workers)
        self._mpirun_gone = False
        self.spare(self._mpirun.pid)
        assert self._mpirun.stdout is not None
        said = self._mpirun.stdout.fileno()
        os.set_blocking(said, False)
        self.loop.watch(said, partial(self._read_complaints, said))
        self._pidfd = os.pidfd_open(self._mpirun.pid)
        ended = partial(self._mpirun_ended, self._mpirun)
        self.loop.watch(self._pidfd, ended)

    def _read_complaints(self, said: int) -> None:
        data = read(said)
        if data == b"":
            self.loop.leave(said)
        elif data:
            self._complaints += data
            del self._complaints[:-_LONGEST_COMPLAINT]

    def _mpirun_ended(self, running: subprocess.Popen[bytes]) -> None:
        self.loop.leave(self._pidfd)
        os.close(self._pidfd)
        self._mpirun_gone = True
        code = running.wait()
        _LOG.info("mpirun ended with %d", code)
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
        self.loop.cancel_all()
        self._crew.dismiss(self._verdict.ending is not None and self._verdict.ending.again)
        deadline = time.monotonic() + _FOR_MPIRUN
        while not (self._mpirun_gone and self._crew.gone) and time.monotonic() < deadline:
            self.console.adjust()
            self.loop.turn(max(0.0, deadline - time.monotonic()))
            self._crew.hear()
        if self._mpirun is not None:
            self._take_leave_of(self._mpirun)
        if self._lookout is not None:
            self._lookout.close()
        # Not even what hid from its wrapper, or started while all this ended, may stay.
        processes.end_descendants(_FOR_CLEARING, keep=self._spared)
        if self._mpirun is not None:
            processes.sweep(f"SPOTMPI_JOB={self._home.name}", _FOR_CLEARING)

    def _take_leave_of(self, mpirun: subprocess.Popen[bytes]) -> None:
        if not self._mpirun_gone:
            mpirun.kill()
            mpirun.wait()
        assert mpirun.stdout is not None
        while data := read(mpirun.stdout.fileno()):
            self._complaints += data
        mpirun.stdout.close()

    def _explain(self, ending: JobEnding) -> None:
        if ending.runtime and (said := self._complaints.decode(errors="replace").strip()):
            self.console.say(f"mpirun said:\n{said}")
        if ending.text:
            self.console.say(ending.text.rstrip("\n"))
        for line in self._verdict.unrevoked(self._rehearsed):
            self.console.say(line)
        if ending.sentence:
            self.console.say(ending.sentence)

    def _bury(self) -> None:
        """Kill what dead workers left behind and this process has inherited."""
        # Without waiting for any of them to be gone: agents wait for beats.
        if not processes.end_descendants(0.0, keep=[*self._spared, *self._serving]):
            self.loop.after(_BETWEEN_BURIALS, "bury", self._bury)

    def _gone(self, worker: int, with_host: bool = False) -> None:
        self._standing.gone(worker)
        self._turnover.gone(worker, with_host)

    def _look(self) -> None:
        """Tell whoever wants to know how the job stands, once a second."""
        status = self._requests.look()
        self.figures.look(status, time.monotonic())
        for watcher in self.watchers:
            watcher(status)

    def _look_for_stalls(self) -> None:
        self.loop.after(
            min(_BETWEEN_LOOKS, self._stall_timeout / 4), "stall", self._look_for_stalls
        )
        self._revoking.look()

    # Time.

    def _patience(self) -> float | None:
        """Seconds for which a turn may wait, whatever the loop has to do later."""
        begin = _BETWEEN_BEGINS if self._mpirun is None else None
        pauses = [self._crew.pause(), self.console.pause(), begin]
        return min((one for one in pauses if one is not None), default=None)

    def _give_up_waiting(self) -> None:
        self._out_of_patience = True

    def _not_stopping(self) -> None:
        self._verdict.not_stopping(
            f"a worker stopped with code {EXIT_REQUEUE}, but others went on for "
            f"{_FOR_STOPPING:.0f} s and were ended"
        )


def _prepare(network: Open, launcher: int) -> None:
    """What mpirun's process does before it becomes mpirun."""
    network.enter()
    # Not before: a process that changes its credentials is not told of its parent's death any more.
    processes.die_with_parent(launcher)
