"""The hosts of a job: their agents are started, waited for, and started again."""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path

from spotmpi.errors import UsageError
from spotmpi.launch import job_token, messages, processes
from spotmpi.launch.auth import NONCE_BYTES, Role, Seal
from spotmpi.launch.head.agents import Agents
from spotmpi.launch.head.job import Job
from spotmpi.launch.head.wanted_hosts import WantedHosts
from spotmpi.launch.processes import read
from spotmpi.launch.start import crowd
from spotmpi.launch.start.agent_command import AgentStarter
from spotmpi.launch.start.hosts_file import HostLine
from spotmpi.launch.wording import count
from spotmpi.settings import Watch

__all__ = ["Start", "StartingHosts"]

_LOG = logging.getLogger(__name__)

_FOR_GATHERING = 30.0
"""Seconds for an agent to start and to say hello."""

_FOR_LAST_WORDS = 1.0
"""Seconds for a command to end whose agent has ended."""

_LONGEST_COMPLAINT = 1 << 14
"""Bytes that are kept of what an agent's command says, the last ones."""

_BETWEEN_TRIES = 5.0
"""Seconds until a host that is not there is tried again, while the job runs."""


class Start(Enum):
    """Which start of a job it is, and how it waits for hosts."""

    FIRST = auto()
    """For all that come by themselves as long as it takes, and for all others for a while."""
    AGAIN = auto()
    """Workers were lost before all were ready: for all for a while, then it begins with fewer."""
    PATIENT = auto()
    """All workers were lost, or --keep-alive was given: for as long as it takes."""


class StartingHosts:
    """The hosts that a job was asked for: it begins when all are there, or it is known why not.

    While it runs, those that are not there are tried again and again: a host comes up late, or
    comes back, or has been added to the file of the ``roster``. ``door``: how many workers of
    hosts that come by themselves to wait for. ``alone``: no other host can come than those of the
    roster.
    """

    def __init__(
        self,
        job: Job,
        fleet: Agents,
        roster: WantedHosts,
        min_workers: int,
        door: int | None,
        way: AgentStarter,
        watch: Watch,
        start: Start,
        alone: bool,
    ) -> None:
        self._job = job
        self._alone = alone
        self._way = way
        self._fleet = fleet
        self._roster = roster
        self._min_workers = min_workers
        self._door = door
        self._watch = watch
        self._token = job_token.new()
        self._missing: dict[str, str] = {}
        self._speaks_until: dict[str, float] = {}
        """How long the command is waited for of an agent that did not come in."""
        self._announced: set[str] = set()
        self._before: dict[str, int] = {}
        """How often hosts had come when their agents were started last."""
        self._said: dict[str, bytearray] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._not_before: dict[str, float] = {}
        """Hosts that rest, and when they may be tried again."""
        self._unheard: set[str] = set()
        """Hosts that were asked for while the job runs: why the first try failed is to be said."""
        self._begun = False
        """The job runs, with the hosts that were there."""
        self._wait = start
        if start is Start.PATIENT:
            job.loop.every(_BETWEEN_TRIES, "gather", self._tend)
        self._deadline = time.monotonic() + _FOR_GATHERING
        self._folder = str(Path.cwd())
        for host in roster.hosts.values():
            self._start(host)

    def complete(self) -> list[str] | None:
        """The hosts in order, once all that come are there. Ends the job if too few come."""
        there = {host.name for host in self._fleet.hosts}
        found, least = sum(host.slots for host in self._fleet.hosts), max(1, self._min_workers)
        if self._door is not None:
            for name in sorted(there - self._announced):
                self._announced.add(name)
                self._job.console.say(f"{name} is here: {found} of {count(self._door)}")
            late = self._wait is Start.AGAIN and time.monotonic() >= self._deadline
            if found < (least if late or self._wait is Start.PATIENT else self._door):
                return None  # for as long as it takes
        if self._wait is Start.PATIENT and found < least:
            return None
        waiting = self._roster.hosts.keys() - there - self._missing.keys()
        if waiting and time.monotonic() < self._deadline:
            return None
        if any(map(self._speaks, self._missing)):
            return None
        for name in self._missing:
            self._job.console.say(self._why(name))
        for name in waiting:
            self._job.console.say(f"{name} did not answer within {_FOR_GATHERING:.0f} s")
        if self._door is not None:  # those who come beyond it are asked for from now on
            uninvited = [host for host in self._fleet.hosts if host.name not in self._roster.hosts]
            self._door = max(self._door, sum(host.slots for host in uninvited))
        asked = self._asked
        if found < least:
            self._job.too_few(
                f"of {count(asked)} only {found} can be started, "
                f"and --min-workers asks for {self._min_workers}"
            )
            return None
        if found < asked:
            self._job.console.say(f"starting with {found} of {count(asked)}")
        self._job.asked(asked)
        self._job.loop.every(_BETWEEN_TRIES, "gather", self._tend)
        self._begun = True
        return sorted(there, key=self._rank)

    def add(self, host: HostLine) -> str:
        """Have one more host, as if it had been asked for before; says what that means.

        Raises UsageError if it is there already, or cannot come.
        """
        if host.name in {there.name for there in self._fleet.hosts}:
            raise UsageError(
                f"{host.name} is one of the job's hosts already; "
                f"`spotmpi grow --host {host.name} --workers N` starts more workers there"
            )
        if self._alone:
            raise UsageError(
                "this job was started with -n, for this host alone: `spotmpi grow --workers N` "
                "starts more workers here; start it with --hosts or --listen for others"
            )
        known = host.name in self._roster.hosts
        why = self._why(host.name)
        self._roster.add(host)
        self._job.asked(self._asked)
        self._not_before.pop(host.name, None)
        self._try_again()
        if not known:
            self._unheard.add(host.name)
            return f"{host.name} is asked for {count(host.slots)}"
        return (
            f"{host.name} is being tried already, every {_BETWEEN_TRIES:.0f} s"
            + (f" (the last time: {why})" if why else "")
            + f"; it is asked for {count(host.slots)} in all"
        )

    def news(self, name: str) -> str:
        """That a host is here which was asked for; nothing while the first try may still succeed.

        Raises UsageError with the reason if it failed: it is tried again and again.
        """
        if name in {host.name for host in self._fleet.hosts}:
            return f"{name} is here: its workers join while the others train"
        if name in self._missing and not self._speaks(name):
            raise UsageError(f"{self._why(name)}; it is tried every {_BETWEEN_TRIES:.0f} s")
        return ""

    def widen(self, name: str | None, workers: int) -> str:
        """Have more workers on a host that is there; says what that means.

        It is the one of this name, or the only one. Raises UsageError if there is no such host.
        """
        there = {host.name: host.slots for host in self._fleet.hosts}
        near = {host.name for host in self._fleet.hosts if host.near}
        if name is None and len(there) > 1:
            raise UsageError(
                f"the job has {len(there)} hosts; say by --host which of them is to have "
                f"{count(workers)} more: {', '.join(sorted(there))}"
            )
        found = next(iter(there), None) if name is None else name
        if found is None or found not in there:
            raise UsageError(
                f"{found or 'its host'} is not there; `spotmpi status` shows the job's hosts"
            )
        slots = there[found] + workers
        if slots > messages.MOST_SLOTS:
            raise UsageError(f"{found} would have {slots} workers; {messages.MOST_SLOTS} are most")
        if few := processes.few_descriptors(self._asked + workers):
            raise UsageError(few)
        if found in near and (too_many := crowd.too_many(slots)):
            raise UsageError(too_many)
        if (known := self._roster.hosts.get(found)) is not None:
            self._roster.add(replace(known, slots=slots))
        else:  # it came by itself, and will say how many it has when it does so again
            self._door = (self._door or 0) + workers
        self._job.asked(self._asked)
        self._fleet.widen(found, workers)
        said = f"{count(workers)} more on {found}: they join while the others train"
        many = crowd.judged(slots, workers) if found in near else ""
        return said + (f"\n{many}" if many else "")

    def rest(self, name: str, seconds: float) -> None:
        """Do not try a host for a while: it is to be taken away, or does not reach others."""
        self._not_before[name] = time.monotonic() + seconds

    @property
    def _asked(self) -> int:
        """Workers that are asked for."""
        return (self._door or 0) + self._roster.slots

    def _tend(self) -> None:
        self._look()
        self._try_again()

    def _look(self) -> None:
        """Follow the hosts file."""
        try:
            change = self._roster.look()
        except UsageError as error:
            self._job.console.say(f"{error}; until it is put right the hosts stay as they are")
            return
        if change is None:
            return
        there = {host.name for host in self._fleet.hosts}
        self._job.console.say(change.sentence(self._roster.source, there))
        self._job.asked(self._asked)
        self._unheard.update(host.name for host in change.came)

    def _try_again(self) -> None:
        there = {host.name for host in self._fleet.hosts}
        now = time.monotonic()
        for name in {*self._running, *self._missing} - self._roster.hosts.keys() - there:
            self._end(name)  # it is not asked for any more
        for name, host in self._roster.hosts.items():
            coming = name in self._running and name not in self._missing
            lost = self._fleet.times[name] > self._before.get(name, 0)
            resting = now < self._not_before.get(name, now)
            if name not in there and not resting and (lost or not coming):
                why = self._why(name)
                if why and name in self._unheard:
                    self._unheard.remove(name)
                    self._job.console.say(f"{why}; it is tried every {_BETWEEN_TRIES:.0f} s")
                self._end(name)
                self._start(host)

    def _end(self, name: str) -> None:
        """Let go of an agent that did not come, or is lost: its command may hang for long."""
        agent = self._running.pop(name, None)
        self._missing.pop(name, None)
        if agent is not None:
            agent.kill()
            agent.wait()
            self._job.ended(agent.pid)
            if agent.stderr is not None and not agent.stderr.closed:
                self._job.loop.leave(agent.stderr.fileno())
                agent.stderr.close()

    def _rank(self, name: str) -> int:
        """As the hosts file has them, and then those that came by themselves, as they came."""
        names = [*self._roster.hosts, *(host.name for host in self._fleet.hosts)]
        return names.index(name)

    def _start(self, host: HostLine) -> None:
        command = self._way.command(host, self._folder, self._watch.to_options())
        die = partial(processes.die_with_parent, os.getpid())
        try:
            agent = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the launcher alone
                # An agent on this host clears up by itself when its input ends, and must not be
                # killed in the middle of that. (Safe: this process has one thread.)
                preexec_fn=None if host.local or self._way.ends_by_itself else die,
            )
        except OSError as error:
            self._missing[host.name] = f"{host.name}: {command[0]} cannot be run ({error.strerror})"
            return
        _LOG.info("the agent for %s is process %d: %s", host.name, agent.pid, shlex.join(command))
        processes.lower_priority(agent.pid)
        self._job.spare(agent.pid)
        self._running[host.name] = agent
        self._before[host.name] = self._fleet.times[host.name]
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
        gone = partial(self._failed, host, agent)
        self._fleet.meet(ends, seal, _FOR_GATHERING, gone, near=host.local)
        self._said[host.name] = bytearray()
        errors = agent.stderr.fileno()
        os.set_blocking(errors, False)
        self._job.loop.watch(errors, partial(self._listen, host, agent))

    def _listen(self, host: HostLine, agent: subprocess.Popen[bytes]) -> None:
        assert agent.stderr is not None
        data = read(agent.stderr.fileno())
        if data == b"":
            self._job.loop.leave(agent.stderr.fileno())
            agent.stderr.close()
        elif data:
            self._said[host.name] += data
            del self._said[host.name][:-_LONGEST_COMPLAINT]

    def _failed(self, host: HostLine, agent: subprocess.Popen[bytes], why: str) -> None:
        """The connection ended before the agent was in: its command may say more."""
        if self._running.get(host.name) is not agent:
            return  # it was let go, and another may have been started
        self._missing[host.name] = f"the agent on {host.name} was refused: {why}"
        self._speaks_until[host.name] = time.monotonic() + _FOR_LAST_WORDS

    def _speaks(self, name: str) -> bool:
        """Whether the command of a host that is missing may end soon, and say more than we know."""
        agent = self._running.get(name)
        speaks = agent is not None and agent.poll() is None
        return speaks and time.monotonic() < self._speaks_until.get(name, 0.0)

    def _why(self, name: str) -> str:
        """Why a host is not there, as its command has it if that has ended; "" if it is coming."""
        agent = self._running.get(name)
        why = self._missing.get(name, "")
        # (One that was killed says nothing: that was us.)
        if why and agent is not None and (agent.poll() or 0) > 0:
            host = self._roster.hosts[name]
            if agent.stderr is not None and not agent.stderr.closed:
                self._listen(host, agent)
            said = self._said[name].decode(errors="replace")
            return self._way.failure(host, agent.returncode, said, self._folder)
        return why
