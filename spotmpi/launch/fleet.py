"""The head's side of its agents: which hosts are there, who runs where, and who is gone.

To the launcher it looks as a `Crew` does: it is told what is said and ended. Towards mpirun each
worker has a stand-in on the head, which is killed as soon as the worker, its agent or its host is
gone: that is all that MPI ever learns of a host.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spotmpi import __version__
from spotmpi.channel import Order, Progress
from spotmpi.launch import mpirun, processes, relay, trunk
from spotmpi.launch.agent import Assignment
from spotmpi.launch.crew import Crew, Heard, in_order
from spotmpi.launch.links import Link
from spotmpi.launch.rifts import Rifts
from spotmpi.launch.seal import Frame, Seal
from spotmpi.launch.silence import Silences
from spotmpi.notice import Notice, clean
from spotmpi.settings import Settings

__all__ = ["Fleet", "Registered"]

_FOR_A_WORD = 0.2
"""Seconds for a refusal to be sent."""


@dataclass
class _Guest:
    """Who connected, and is no host of the job yet."""

    until: float
    """When it must be in."""
    gone: Callable[[str], None]
    hello: dict[str, Any] | None = None


@dataclass
class Registered:
    """A host whose agent is there."""

    name: str
    slots: int
    trunk: trunk.Trunk
    relay: relay.Relay
    workers: list[int] = field(default_factory=list)
    settled: float | None = None
    """When all of the job, or a newcomer of its own, had started: from then on its silence is
    short."""
    silences: Silences = field(default_factory=Silences)
    """Since then."""


class Fleet:
    """All hosts of a job.

    ``write(worker, stream, data)`` passes on what a worker wrote; agents are told to wait with it
    while the output is ``held``. ``noticed`` is given each host that is to be taken away, and
    ``newcomer(host)`` asked for the id of each worker that comes later than the first; ``rest`` is
    given each host that must stay away for a while; ``say`` passes on what agents have for the
    user.
    """

    def __init__(
        self,
        select: selectors.BaseSelector,
        assignment: Assignment,
        write: Callable[[int, int, bytes], None],
        held: Callable[[], bool],
        noticed: Callable[[str, Notice], None],
        newcomer: Callable[[str], int],
        rest: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._select = select
        self._assignment = assignment
        self._write = write
        self._held = held
        self._noticed = noticed
        self._newcomer = newcomer
        self._rest = rest
        self._spares: list[str] = []
        """The hosts of workers that are to be started when the others are ready."""
        self._spawning: dict[str, str] = {}
        """What newcomers, and who brings them in, need in their environment."""
        self._say = say
        self._told_held = False
        self._stand_ins: Crew | None = None
        self._hosts: dict[str, Registered] = {}
        self.times: Counter[str] = Counter()
        """How often each host has come."""
        self._guests: dict[trunk.Trunk, _Guest] = {}
        self._home: dict[int, Registered] = {}
        self._ended: set[int] = set()
        """Workers of which nothing lives any more, as far as the head knows."""
        self._heard: list[Heard] = []
        self._progress: dict[int, Progress] = {}
        self._pmix: int | None = None
        self._names: dict[int, tuple[str, int] | None] = {}
        """As whom MPI knows each worker that it does."""
        self._ready: set[int] = set()
        self._first: frozenset[int] = frozenset()
        """The workers that the job began with."""
        self._untrained: set[int] = set()
        """Newcomers that do not train yet: however one ends, MPI must take it for dead."""
        self._rifts = Rifts()
        self._ending = False
        self._next_beat = 0.0

    # Hosts come.

    def meet(
        self,
        descriptors: tuple[int, int],
        seal: Seal,
        patience: float,
        gone: Callable[[str], None],
    ) -> None:
        """Talk to an agent that may be at the other end.

        It becomes a host of the job, or ``gone`` is called with the reason, after ``patience``
        seconds at the latest.
        """
        link = trunk.Trunk(
            self._select,
            descriptors,
            seal,
            lambda frame: self._hear_guest(link, frame),
            lambda why: self._part(link, why),
        )
        self._guests[link] = _Guest(time.monotonic() + patience, gone)

    @property
    def hosts(self) -> Sequence[Registered]:
        """Those that are there."""
        return tuple(self._hosts.values())

    @property
    def guests(self) -> int:
        """Connections that have not become hosts yet."""
        return len(self._guests)

    def _part(self, link: trunk.Trunk, why: str) -> None:
        link.close()
        guest = self._guests.pop(link, None)
        if guest is not None:
            guest.gone(why)

    def _hear_guest(self, link: trunk.Trunk, frame: Frame) -> None:
        guest = self._guests[link]
        fields = trunk.message(frame)
        match fields["event"]:
            case "hello" if guest.hello is None:
                problem = fields["problem"]
                if fields["version"] != __version__:
                    problem = f"it has spotmpi {fields['version']}, and the head {__version__}"
                if problem is None:
                    guest.hello = fields
                    link.tell("welcome", **asdict(self._assignment))
                else:
                    self._refuse(link, problem)
            case "ready" if guest.hello is not None:
                del self._guests[link]
                self._take_in(link, guest.hello)
            case "unfit":
                self._part(link, str(fields["why"]))
            case said:
                self._refuse(link, f"it says {said!r} where it should introduce itself")

    def _refuse(self, link: trunk.Trunk, why: str) -> None:
        link.tell("refused", why=why)
        link.flush(_FOR_A_WORD)
        self._part(link, why)

    def _take_in(self, link: trunk.Trunk, hello: dict[str, Any]) -> None:
        name = self._free_name(str(hello["name"]))
        connections = relay.Relay(self._select, link.relay)
        host = Registered(name, int(hello["slots"]), link, connections)
        link.reassign(partial(self._take, host), lambda why: self._lose(host, f"was lost: {why}"))
        self._hosts[name] = host
        self.times[name] += 1
        if self._stand_ins is not None:
            for _ in range(host.slots):
                self.recruit(name)

    def _free_name(self, name: str) -> str:
        number, free = 1, name
        while free in self._hosts:
            number += 1
            free = f"{name}#{number}"
        return free

    # Workers come.

    def place(self, order: Sequence[str], folder: Path, spares: int = 0) -> list[str]:
        """Give each slot of the hosts that are there a worker; return the hosts by worker.

        Their stand-ins are to be started next, and find the head in ``folder``. The last slots
        are for ``spares``, which are started when all the others are ready.
        """
        there = [self._hosts[name] for name in order if name in self._hosts]
        slots = [host for host in there for _ in range(host.slots)]
        begin = max(1, len(slots) - spares)
        self._spares = [host.name for host in slots[begin:]]
        names = []
        for worker, host in enumerate(slots[:begin]):
            host.workers.append(worker)
            self._home[worker] = host
            names.append(host.name)
        self._first = frozenset(self._home)
        self._spawning = Settings(stand_in=tuple(mpirun.stand_in(folder))).to_environ()
        self._stand_ins = Crew(self._select, folder, _no_streams)
        self._stand_ins.expect(self._home)
        return names

    def recruit(self, name: str) -> None:
        """Start one more worker on a host, if that is there."""
        if (host := self._hosts.get(name)) is None or self._ending:
            return
        worker = self._newcomer(name)
        host.workers.append(worker)
        self._home[worker] = host
        self._untrained.add(worker)
        environ = self._spawning | Settings(newcomer=worker).to_environ()
        host.trunk.tell("start", worker=worker, environ=environ)

    def bring(self, worker: int) -> None:
        """A newcomer's stand-in will be spawned."""
        if self._stand_ins is not None:
            self._stand_ins.expect([worker])

    @property
    def all_met(self) -> bool:
        """Whether every worker's stand-in has been there."""
        return self._stand_ins is not None and self._stand_ins.all_met

    # What the launcher does with a crew.

    @property
    def at_rest(self) -> bool:
        """Whether no worker lives on the hosts that are there."""
        return all(self._ended.issuperset(host.workers) for host in self._hosts.values())

    def revoke(self, worker: int) -> None:
        """Have a worker killed, as if its host had been taken away."""
        if worker not in self._ended:
            self._home[worker].trunk.tell("kill", worker=worker)

    def kill(self, worker: int) -> None:
        """Take a worker for dead, whatever its host says."""
        if worker not in self._ended:
            self._bury(worker, 0.0)
            self._heard.append(Heard(worker, "vanished", {}))

    def order(self, worker: int, order: Order) -> None:
        """Have an order put where the worker finds it in its next round."""
        self._home[worker].trunk.tell("order", worker=worker, **order._asdict())

    def progress(self) -> dict[int, Progress]:
        """How far the workers have come that live, as far as they train: a second ago."""
        return {w: said for w, said in self._progress.items() if w not in self._ended}

    def silences(self) -> dict[str, Silences]:
        """How silent the hosts were that are there, by name."""
        return {host.name: host.silences for host in self._hosts.values()}

    def end(self) -> None:
        """Have every worker killed, while the stand-ins stay. From now on none is started."""
        self._ending = True
        for host in self._hosts.values():
            host.trunk.tell("end")

    def dismiss(self) -> None:
        """Let stand-ins and agents go, and meet no new ones."""
        if self._stand_ins is not None:
            self._stand_ins.dismiss()
        for link in self._guests:
            link.close()
        self._guests.clear()
        for host in self._hosts.values():
            host.trunk.tell("leave")

    @property
    def gone(self) -> bool:
        """Whether nobody is there any more."""
        return not self._hosts and (self._stand_ins is None or self._stand_ins.gone)

    def hear(self) -> list[Heard]:
        """Return all that was said, ends last; look for hosts that fell silent."""
        self._watch_over_hosts()
        if self._held() != self._told_held:
            self._told_held = self._held()
            for host in self._hosts.values():
                host.trunk.tell("hold", on=self._told_held)
        for heard in self._stand_ins.hear() if self._stand_ins is not None else ():
            worker = heard.worker
            match heard.event:
                case "hello":
                    self._start(worker, heard.fields["environ"])
                case "vanished":
                    if worker not in self._ended:
                        self._home[worker].trunk.tell("kill", worker=worker)
                        self._bury(worker, 0.0)
                        self._heard.append(heard)
                case "runtime":
                    self._heard.append(heard)
        heard_now, self._heard = self._heard, []
        return in_order(heard_now)

    def pause(self) -> float:
        """Seconds until `hear` must be called again, whatever happens."""
        return max(0.0, self._next_beat - time.monotonic())

    def _start(self, worker: int, environ: dict[str, str]) -> None:
        self._pmix = self._pmix or relay.server_port(environ)
        self._names[worker] = mpirun.name(environ)
        host = self._home[worker]
        if host.name not in self._hosts or worker in self._ended:
            self._kill_stand_in(worker)
        elif worker in self._first:
            host.trunk.tell("start", worker=worker, environ=self._spawning | environ)
        else:
            host.trunk.tell("admit", worker=worker, environ=environ)

    # What agents say.

    def _take(self, host: Registered, frame: Frame) -> None:
        if frame.kind == trunk.RELAY:
            self._carry(host, *trunk.relayed(frame))
        elif frame.kind == trunk.OUTPUT:
            worker, stream, data = trunk.output(frame)
            if worker in host.workers and stream in (1, 2):
                self._write(worker, stream, data)
        elif frame.kind == trunk.MESSAGE:
            self._hear(host, trunk.message(frame))

    def _hear(self, host: Registered, fields: dict[str, Any]) -> None:
        match fields["event"]:
            case "heard" if fields["worker"] in host.workers:
                self._hear_from(host, fields["worker"], str(fields["said"]), fields["fields"])
            case "progress":
                self._hear_progress(host, fields["entries"])
            case "noticed":
                self._notice(host, fields)
            case "free":
                host.trunk.tell("leave")
            case "claims":
                self._claim(host, [Link(*link) for link in fields["links"]])
            case "confirms":
                found = [Link(*link) for link in fields["links"]]
                self._rifts.confirm(host.name, found, time.monotonic())
            case "says":
                self._say(f"{host.name}: {clean(str(fields.get('text')))}")

    def _hear_from(self, host: Registered, worker: int, said: str, fields: dict[str, Any]) -> None:
        if worker in self._ended or said == "hello":
            return
        ended = said == "ended"
        revoked = ended and processes.was_revoked(int(fields["status"]))
        if said == "vanished" or revoked or (ended and worker in self._untrained):
            self._bury(worker, 0.0)
        elif said in ("ended", "cleared"):
            self._ended.add(worker)
        elif said == "trains":
            self._untrained.discard(worker)
        self._heard.append(Heard(worker, said, fields))
        starting = worker in self._first and self._ready != self._first
        if starting and said in ("ready", "underway"):
            self._ready |= self._first if said == "underway" else {worker}
            if self._ready == self._first:
                for other in self._hosts.values():
                    if not self._first.isdisjoint(other.workers):
                        self._settle(other)
                for name in self._spares:
                    self.recruit(name)
        elif said == "admitted":
            self._settle(host)

    @staticmethod
    def _settle(host: Registered) -> None:
        if host.settled is None:
            host.settled = time.monotonic()
            host.trunk.tell("started")

    def _hear_progress(self, host: Registered, entries: Sequence[Sequence[float]]) -> None:
        now = time.monotonic()
        for worker, rounds, steps, doing, ago in entries:
            if worker in host.workers:
                said = Progress(int(rounds), int(steps), int(doing), now - ago)
                self._progress[int(worker)] = said

    def _claim(self, host: Registered, links: Sequence[Link]) -> None:
        """A host's workers get no answer: whoever has the other end knows who they are."""
        self._rifts.claim(host.name, links, time.monotonic())
        for other in self._hosts.values():
            if other is not host:
                other.trunk.tell("claimed", links=links)

    def _notice(self, host: Registered, fields: dict[str, Any]) -> None:
        source, left, what, advice = map(fields.get, ("source", "seconds", "what", "advice"))
        # Seconds and no date: two hosts' clocks differ.
        deadline = time.time() + left if isinstance(left, (int, float)) else left
        with suppress(ValueError):
            self._noticed(host.name, Notice.checked(source, deadline, what, advice))

    def _kill_stand_in(self, worker: int) -> None:
        if self._stand_ins is not None:
            self._stand_ins.kill(worker)

    def _bury(self, worker: int, ago: float) -> None:
        """A worker is gone: every host must know at once, and when it was."""
        self._ended.add(worker)
        self._kill_stand_in(worker)
        for other in self._hosts.values():
            other.trunk.tell("died", worker=worker, ago=ago, name=self._names.get(worker))

    def _carry(self, host: Registered, connection: int, data: bytes) -> None:
        if connection not in host.relay and data and self._pmix is not None:
            link = socket.socket()
            link.setblocking(True)
            try:
                link.connect(("127.0.0.1", self._pmix))
            except OSError:
                link.close()
                host.trunk.relay(connection, b"")
                return
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host.relay.add(connection, link)
        host.relay.receive(connection, data)

    # Hosts go.

    def _watch_over_hosts(self) -> None:
        now = time.monotonic()
        limit = self._assignment.detect_ms / 1e3
        if self._next_beat <= now:
            self._next_beat = now + limit / trunk.BEATS
            for host in self._hosts.values():
                host.trunk.beat()
        if self._rifts:
            self._part_from_outcast(now)
        for link, guest in list(self._guests.items()):
            if guest.until < now:
                self._part(link, "it did not introduce itself in time")
        for host in list(self._hosts.values()):
            silence = now - max(host.trunk.heard, host.settled or 0.0)
            allowed = limit if host.settled is not None else max(limit, trunk.AT_START)
            news = host.settled is not None and host.silences.news(silence, now)
            # What has come but was not read yet is the head's own delay, and no silence.
            if not (news or silence > allowed) or host.trunk.readable:
                continue
            if silence > allowed:
                host.trunk.close()
                self._lose(host, f"was silent for {silence * 1e3:.0f} ms")
            else:
                host.silences.saw(silence)

    def _part_from_outcast(self, now: float) -> None:
        """Where two hosts do not reach each other, one of them must go."""
        living = {h.name: len(set(h.workers) - self._ended) for h in self._hosts.values()}
        outcast = self._rifts.outcast(living, now)
        if outcast is None:
            return
        host, missed = self._hosts[outcast[0]], ", ".join(outcast[1])
        why = f"does not reach {missed}, though the head does: see to the network between them"
        self._rest(host.name)
        host.trunk.tell("refused", why=f"it {why}")
        host.trunk.flush(_FOR_A_WORD)
        host.trunk.close()
        self._lose(host, why)

    def _lose(self, host: Registered, how: str) -> None:
        del self._hosts[host.name]
        ago = time.monotonic() - host.trunk.heard
        lost = [worker for worker in host.workers if worker not in self._ended]
        for worker in lost:  # first of all: this is what the others wait for
            self._kill_stand_in(worker)
        for worker in lost:
            self._bury(worker, ago)
            self._heard.append(Heard(worker, "lost", {"how": f"host {host.name} {how}"}))
        host.relay.close()


def _no_streams(worker: int, descriptor: int, stream: int) -> None:
    os.close(descriptor)
