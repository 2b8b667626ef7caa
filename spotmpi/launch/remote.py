"""Jobs whose workers are on several hosts: agents are started, gathered, and given workers."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from spotmpi.launch import folder as job_folder
from spotmpi.launch import mpirun, processes, ssh, token
from spotmpi.launch.agent import Assignment
from spotmpi.launch.console import read
from spotmpi.launch.entrance import Entrance
from spotmpi.launch.fleet import Fleet
from spotmpi.launch.hosts import Host
from spotmpi.launch.installation import Installation
from spotmpi.launch.job import Job, Start
from spotmpi.launch.lines import Lines
from spotmpi.launch.seal import NONCE_BYTES, Role, Seal
from spotmpi.launch.verdict import count
from spotmpi.settings import Settings, Watch

__all__ = ["Door", "launch"]

_TRAVELLING = ("MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "PYTHON")
"""How the names begin of variables that every host gets from the launcher's environment."""

_FOR_GATHERING = 30.0
"""Seconds for an agent to start and to say hello."""


@dataclass(frozen=True)
class Door:
    """Where agents come in by themselves, and how many workers to wait for."""

    listener: socket.socket
    token: bytes
    workers: int


def launch(
    script: Path,
    arguments: Sequence[str],
    hosts: Sequence[Host],
    settings: Settings,
    installation: Installation,
    door: Door | None,
    watch: Watch,
) -> int:
    """Run a job on ``hosts`` to its end and return its exit code, as `local.launch` does.

    With a ``door``, agents may come in by themselves, until there are as many workers as it says.
    """
    job_folder.remove_abandoned()
    processes.raise_priority()
    travelling = {k: v for k, v in os.environ.items() if k.startswith(_TRAVELLING)}
    assignment = Assignment(
        folder=str(Path.cwd()),
        task=[str(script.absolute()), *arguments],
        environ=travelling | settings.to_environ(),
        detect_ms=settings.detect_ms,
    )
    job = Job()
    job.look_out(watch)
    output = _Output(job)
    say = job.console.say
    fleet = Fleet(job.select, assignment, output.write, lambda: job.console.held, job.noticed, say)
    if door is not None:
        host, port, *_ = door.listener.getsockname()
        job.console.say(f"waiting for {count(door.workers)} at {host}:{port}")
        Entrance(job.select, fleet, door.listener, door.token, job.console.say)
    gathering = _Gathering(job, fleet, hosts, settings.min_workers, door, watch)
    with ExitStack() as stack:
        # An agent on this very host may have been killed, and its wrappers as orphans.
        stack.callback(job_folder.remove_abandoned)

        def begin() -> Start | None:
            names = gathering.complete()
            if names is None:
                return None
            # Not before: whoever waits for hosts leaves nothing behind if it is killed.
            name, folder, lock = job_folder.create(0)
            stack.callback(os.close, lock)
            stack.callback(job_folder.remove, folder)
            placed = fleet.place(names, folder)
            within = replace(settings, job=name, job_dir=folder)
            # How its workers share its cores is each host's own affair.
            environment = mpirun.environment(
                installation, len(placed), within, os.environ, len(placed), "tcp"
            )
            command = mpirun.command(installation, len(placed), mpirun.stand_in(folder))
            return Start(command, environment, placed, folder)

        return job.run(fleet, begin)


class _Output:
    """What workers write, a line with its worker's id at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lines: dict[tuple[int, int], Lines] = {}

    def write(self, worker: int, stream: int, data: bytes) -> None:
        """Take what a worker wrote; nothing is the stream's end."""
        if (worker, stream) not in self._lines:
            self._lines[worker, stream] = self._job.console.lines(stream, f"[{worker}] ")
        lines = self._lines[worker, stream]
        if data:
            lines.feed(data)
        else:
            lines.close()


class _Gathering:
    """The hosts that a job was asked to begin with: all are there, or it is known why not."""

    def __init__(
        self,
        job: Job,
        fleet: Fleet,
        hosts: Sequence[Host],
        min_workers: int,
        door: Door | None,
        watch: Watch,
    ) -> None:
        self._job = job
        self._fleet = fleet
        self._hosts = {host.name: host for host in hosts}
        self._min_workers = min_workers
        self._door = door
        self._watch = watch
        self._token = token.new()
        self._missing: dict[str, str] = {}
        self._announced: set[str] = set()
        self._said: dict[str, bytearray] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._deadline = time.monotonic() + _FOR_GATHERING
        self._folder = str(Path.cwd())
        for host in hosts:
            self._start(host)

    def complete(self) -> list[str] | None:
        """The hosts in order, once all that come are there. Ends the job if too few come."""
        there = {host.name for host in self._fleet.hosts}
        found = sum(host.slots for host in self._fleet.hosts)
        if self._door is not None:
            for name in sorted(there - self._announced):
                self._announced.add(name)
                self._job.console.say(f"{name} is here: {found} of {count(self._door.workers)}")
            if found < self._door.workers:
                return None  # for as long as it takes
        waiting = self._hosts.keys() - there - self._missing.keys()
        if waiting and time.monotonic() < self._deadline:
            return None
        for name in waiting:
            self._missing[name] = f"{name} did not answer within {_FOR_GATHERING:.0f} s"
        for why in self._missing.values():
            self._job.console.say(why)
        asked = sum(host.slots for host in self._hosts.values())
        if found < max(1, self._min_workers):
            self._job.too_few(
                f"of {count(asked)} only {found} can be started, "
                f"and --min-workers asks for {self._min_workers}"
            )
            return None
        if found < asked:
            self._job.console.say(f"starting with {found} of {count(asked)}")
        return sorted(there, key=self._rank)

    def _rank(self, name: str) -> int:
        """As the hosts file has them, and then those that came by themselves, as they came."""
        names = [*self._hosts, *(host.name for host in self._fleet.hosts)]
        return names.index(name)

    def _start(self, host: Host) -> None:
        command = ssh.command(host, self._folder, self._watch.to_options())
        try:
            agent = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the launcher alone
                # Safe: this process has one thread.
                preexec_fn=partial(processes.die_with_parent, os.getpid()),
            )
        except OSError as error:
            self._missing[host.name] = f"{host.name}: {command[0]} cannot be run ({error.strerror})"
            return
        processes.lower_priority(agent.pid)
        self._job.spare(agent.pid)
        self._running[host.name] = agent
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stderr is not None
        with suppress(BrokenPipeError):  # it has ended already: the trunk will find that
            os.write(agent.stdin.fileno(), self._token.hex().encode() + b"\n")
        seal = Seal(Role.HEAD, self._token, secrets.token_bytes(NONCE_BYTES))
        # The trunk closes its descriptors itself.
        ends = os.dup(agent.stdout.fileno()), os.dup(agent.stdin.fileno())
        agent.stdout.close()
        agent.stdin.close()
        self._fleet.meet(ends, seal, _FOR_GATHERING, partial(self._failed, host))
        self._said[host.name] = bytearray()
        errors = agent.stderr.fileno()
        os.set_blocking(errors, False)
        self._job.select.register(errors, selectors.EVENT_READ, partial(self._listen, host))

    def _listen(self, host: Host) -> None:
        agent = self._running[host.name]
        assert agent.stderr is not None
        if agent.stderr.closed:  # by what came before it in the same round of the loop
            return
        data = read(agent.stderr.fileno())
        if data == b"":
            self._job.select.unregister(agent.stderr.fileno())
            agent.stderr.close()
        elif data:
            self._said[host.name] += data

    def _failed(self, host: Host, why: str) -> None:
        """The connection ended before the agent was in: its command says more."""
        agent = self._running[host.name]
        try:
            code = agent.wait(1.0)
        except subprocess.TimeoutExpired:
            agent.kill()
            self._missing[host.name] = f"the agent on {host.name} was not taken in: {why}"
            return
        self._listen(host)
        said = self._said[host.name].decode(errors="replace")
        self._missing[host.name] = why if code == 0 else ssh.failure(host, code, said, self._folder)
