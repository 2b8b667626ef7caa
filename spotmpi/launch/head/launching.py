"""Jobs: agents are started on their hosts, awaited, and given workers."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from spotmpi import job_folder
from spotmpi.exit_codes import EXIT_ALL_REVOKED
from spotmpi.launch import messages, processes
from spotmpi.launch.head.agent_listener import AgentListener
from spotmpi.launch.head.agents import Agents
from spotmpi.launch.head.job import Job, JobOptions, MpirunStart
from spotmpi.launch.head.job_home import JobHome
from spotmpi.launch.head.starting_hosts import Start, StartingHosts
from spotmpi.launch.head.wanted_hosts import WantedHosts
from spotmpi.launch.limits import Limits
from spotmpi.launch.output_lines import Outlet
from spotmpi.launch.showing.event_file import EventFile
from spotmpi.launch.showing.figures import Figures
from spotmpi.launch.showing.metrics_server import MetricsServer, url
from spotmpi.launch.signal_events import held_back
from spotmpi.launch.start import mpirun, private_network
from spotmpi.launch.start.agent_command import AgentStarter
from spotmpi.launch.start.installation import Installation
from spotmpi.launch.start.job_files import JobFiles
from spotmpi.launch.start.program import Program
from spotmpi.launch.wording import count
from spotmpi.notice import Notice
from spotmpi.settings import Settings, Watch

__all__ = ["ListenOptions", "JobPlan", "Published", "launch"]

_TRAVELLING = ("MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON")
"""How the names begin of variables that every host gets from the launcher's environment."""

_AFTER_NOTICE = 60.0
"""Seconds from when a host is to be taken away until it is tried again."""

_STARTS_IN_VAIN = 4
"""Starts in a row after which a job is not started again whose workers are lost at once."""

_BRIEF = 60.0
"""Seconds in which such a start ends."""

_AFTER_RIFT = 300.0
"""Seconds until a host is tried again that did not reach another: each try holds up all others."""


@dataclass(frozen=True)
class ListenOptions:
    """Where agents come in by themselves, and how many workers to wait for."""

    listener: socket.socket
    token: bytes
    workers: int


@dataclass(frozen=True)
class Published:
    """What a job has come to, and where other programs find it."""

    figures: Figures
    metrics: socket.socket | None = None
    """It listens for those who ask, by HTTP."""
    tensorboard: Path | None = None
    """Folder for an event file."""


@dataclass(frozen=True)
class JobPlan:
    """What is run, where and how, each time that the job begins."""

    program: Program
    roster: WantedHosts
    installation: Installation
    door: ListenOptions | None
    """Agents may come in by themselves, until there are as many workers as it says."""
    manner: JobOptions
    way: AgentStarter
    alone: bool
    """The launcher's own host is the only one, and no other can come."""
    limits: Limits
    files: JobFiles
    """What the job writes; held by whoever launches it."""
    published: Published
    name: str | None = None
    """What the job is called after `job_folder.PREFIX`; None: by a name that no other has."""


def launch(plan: JobPlan, settings: Settings, resumed: int | None = None) -> int:
    """Run a job to its end and return its exit code (`exit_codes` lists them). Blocking.

    Belongs into the main thread of a process of its own: it handles signals, and kills whatever
    descends from this process when the job ends (children that were there before are spared).
    The settings must have been checked. ``resumed``: the step of the checkpoint that it goes on
    from. Raises UsageError if there is a job of this name.
    """
    processes.name_this("spotmpi-run")
    processes.raise_priority()
    unheard = held_back({signal.SIGTERM, signal.SIGHUP})
    with unheard as came, JobHome(plan.name, came) as home:
        code = _run_again_and_again(plan, home, settings, resumed)
    if code == 0:
        plan.files.finished()
    return code


def _run_again_and_again(
    plan: JobPlan, home: JobHome, settings: Settings, resumed: int | None
) -> int:
    run, in_vain = _run(plan, home, settings, resumed, Start.FIRST), 0
    while run.again:
        in_vain = in_vain + 1 if run.brief else 0
        if in_vain == _STARTS_IN_VAIN:
            lost = "workers were lost before all were ready"
            if run.code == EXIT_ALL_REVOKED:
                lost = f"all workers were lost within {_BRIEF:.0f} s, though their hosts stay"
            print(
                f"spotmpi: {in_vain} times in a row {lost}: the job is not started again; "
                "see what kills them",
                file=sys.stderr,
            )
            break
        if run.code != EXIT_ALL_REVOKED and not plan.manner.keep_alive:
            run = _run(plan, home, settings, resumed, Start.AGAIN)
            continue
        kept = plan.files.newest()
        settings = replace(settings, resume=kept is not None)
        resumed = None if kept is None else kept.step
        run = _run(plan, home, settings, resumed, Start.PATIENT)
    return run.code


@dataclass(frozen=True)
class _Run:
    """How one start of a job ended. ``again``: there must be another one. ``brief``: workers were
    lost before all were ready, or all were lost soon, and their hosts did not go."""

    code: int
    again: bool
    brief: bool


def _run(
    plan: JobPlan, home: JobHome, settings: Settings, resumed: int | None, start: Start
) -> _Run:
    """Once, from the first host to the last."""
    door, manner, program = plan.door, plan.manner, plan.program
    job_folder.remove_abandoned()
    travelling = {k: v for k, v in os.environ.items() if k.startswith(_TRAVELLING)}
    assignment = messages.Assignment(
        folder=str(Path.cwd()),
        task=program.task,
        environ=travelling | settings.to_environ(),
        detect_ms=settings.detect_ms,
        fence=plan.limits.fence,
    )
    figures = plan.published.figures
    figures.begins()
    words = [program.called, *program.arguments]
    job = Job(words, settings, manner, plan.limits, home, figures, resumed)
    if start is Start.AGAIN:
        job.console.say("starting again: no worker had taken a step")
    if start is Start.PATIENT:
        where = (
            "its newest checkpoint" if settings.resume else "the beginning: it has no checkpoint"
        )
        how = "starting again, from" if plan.alone else "waiting for hosts, to go on from"
        job.console.say(f"{how} {where}")
    job.look_out(manner.watch)
    output = _Output(job)
    network = private_network.erect()
    if network.why and start is Start.FIRST and (others := private_network.neighbours()):
        job.console.say(
            f"{', '.join(others)} can run commands as you while this job runs: mpirun gets no "
            f"network of its own here ({network.why}); docs/hosts.md says what to do"
        )

    def noticed(host: str, notice: Notice) -> None:
        if not notice.advice:
            starting.rest(host, max(notice.left(time.time()) or 0.0, 0.0) + _AFTER_NOTICE)
        job.noticed(host, notice)

    fleet = Agents(
        job.loop,
        assignment,
        output.write,
        lambda: job.console.held,
        noticed,
        lambda host: job.newcomer(host, fleet.times[host]),
        lambda host: starting.rest(host, _AFTER_RIFT),
        job.console.say,
        network.socket,
        job.console.log,
        plan.limits,
    )
    if door is not None:
        host, port, *_ = door.listener.getsockname()
        how_many = "at least one worker" if start is Start.PATIENT else count(door.workers)
        job.console.say(f"waiting for {how_many} at {host}:{port}, as job {home.name}")
        AgentListener(job.loop, fleet, door.listener, door.token, job.console.say)
    wanted = None if door is None else door.workers
    # The launcher itself hears of its host's notices, and heeds them for all.
    watch = Watch("none") if plan.alone else manner.watch
    starting = StartingHosts(
        job, fleet, plan.roster, settings.min_workers, wanted, plan.way, watch, start, plan.alone
    )
    # Those that MPI starts later share no memory with the first.
    joined = not plan.alone or manner.replace or manner.spares > 0
    if joined:
        job.growing = starting
    with ExitStack() as stack:
        # An agent on this very host may have been killed, and its wrappers as orphans.
        stack.callback(job_folder.remove_abandoned)
        stack.callback(network.close)
        _publish(plan.published, job, stack)

        began = math.inf

        def begin() -> MpirunStart | None:
            nonlocal began
            while home.came:
                signal.raise_signal(home.came.pop())
            names = starting.complete()
            if names is None:
                return None
            began = time.monotonic()
            _, folder, lock = job_folder.create(0, job_folder.of_starts(home.name))
            stack.callback(os.close, lock)
            stack.callback(job_folder.remove, folder)
            plan.files.begins(home.name)
            placed = fleet.place(names, folder, manner.spares)
            within = replace(settings, job=home.name, job_dir=folder)
            # How its workers share its cores is each host's own affair.
            transport = ("sm,tcp" if joined else "sm") if plan.alone else "tcp"
            environment = mpirun.environment(
                plan.installation, len(placed), within, os.environ, len(placed), transport
            )
            command = mpirun.command(plan.installation, len(placed), mpirun.stand_in(folder))
            return MpirunStart(command, environment, placed, folder, network)

        ending = job.run(fleet, begin)
        stayed = plan.alone or fleet.stayed
        early = ending.again and ending.code != EXIT_ALL_REVOKED
        brief = early or (stayed and time.monotonic() - began < _BRIEF)
        return _Run(ending.code, ending.again, brief)


def _publish(published: Published, job: Job, until: ExitStack) -> None:
    """Let other programs know of the job, as long as it runs."""
    if published.metrics is not None:
        from spotmpi.launch.showing import prometheus  # an extra

        page = prometheus.page(published.figures)
        server = MetricsServer(job.loop, published.metrics, page, prometheus.KIND)
        until.callback(server.close)
        job.console.say(f"metrics at {url(published.metrics)}")
    if published.tensorboard is not None:
        file = EventFile(published.tensorboard, published.figures, job.console.say)
        job.watchers.append(file.look)
        until.callback(file.close)


class _Output:
    """What workers write, a line at a time, each with its worker's id."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lines: dict[tuple[int, int], Outlet] = {}

    def write(self, worker: int, stream: int, data: bytes) -> None:
        """Take what a worker wrote; nothing is the stream's end."""
        if (worker, stream) not in self._lines:
            self._lines[worker, stream] = self._outlet(worker, stream)
        lines = self._lines[worker, stream]
        if data:
            lines.feed(data)
        else:
            lines.close()

    def _outlet(self, worker: int, stream: int) -> Outlet:
        return self._job.console.outlet(worker, stream, f"[{worker}] ")
