"""The head's side of its agents: which hosts are there, who runs where, and who is gone.

To the launcher it looks as a `Wrappers` does: it is told what is said and ended. Towards mpirun
each worker has a stand-in on the head, which is killed as soon as the worker, its agent or its host
is gone: that is all that MPI ever learns of a host.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import socket as Socket  # noqa: N812 - a class

from spotmpi import __version__
from spotmpi.launch import link as trunk
from spotmpi.launch import log_lines, messages
from spotmpi.launch import pmix_relay as relay
from spotmpi.launch.auth import Frame, Seal
from spotmpi.launch.decoding import Malformed, Message
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.head.host_beats import HostBeats
from spotmpi.launch.head.partitions import Partitions
from spotmpi.launch.head.server_check import ServerCheck
from spotmpi.launch.head.stalls import Standing
from spotmpi.launch.host.wrappers import WorkerEvent, Wrappers, in_order
from spotmpi.launch.limits import Limits
from spotmpi.launch.liveness import Hearing, Silences, beat_every, bounds
from spotmpi.launch.start import mpi_variables, mpirun
from spotmpi.launch.tcp_connections import TcpConnection
from spotmpi.launch.wording import milliseconds
from spotmpi.launcher_channel import Cause, Measured, Order
from spotmpi.notice import Notice
from spotmpi.settings import Settings

__all__ = ["Agents", "Registered"]

_LOG = logging.getLogger(__name__)

_TO_BE_FIT = 10.0
"""Seconds for an agent that has introduced itself to become a host."""

_FOR_A_WORD = 0.2
"""Seconds for a refusal to be sent."""

_CONNECTIONS = 32
"""To the PMIx server, for each worker of a host: MPI makes one or two."""


@dataclass
class _Guest:
    """Who connected, and is no host of the job yet."""

    until: float
    """When it must be in, in the time that the head is awake."""
    gone: Callable[[str], None]
    near: bool
    greeted: bool = False
    offer: messages.Offer | None = None


@dataclass
class Registered:
    """A host whose agent is there."""

    name: str
    slots: int
    trunk: trunk.HostLink
    relay: relay.Relay
    beats: HostBeats
    near: bool = False
    """It is the head's own: nothing lies between that could break, and however long one of the two
    processes sleeps, neither is gone before the kernel closes their connection."""
    workers: list[int] = field(default_factory=list)


class Agents:
    """All hosts of a job.

    ``write(worker, stream, data)`` passes on what a worker wrote; agents are told to wait with it
    while the output is ``held``. ``noticed`` is given each host that is to be taken away, and
    ``newcomer(host)`` asked for the id of each worker that comes later than the first; ``rest`` is
    given each host that must stay away for a while; ``say`` passes on what agents have for the
    user, and ``log`` takes the log lines of other processes; ``socket`` makes sockets that reach
    mpirun's server.
    """

    def __init__(
        self,
        loop: Loop,
        assignment: messages.Assignment,
        write: Callable[[int, int, bytes], None],
        held: Callable[[], bool],
        noticed: Callable[[str, Notice], None],
        newcomer: Callable[[str], int],
        rest: Callable[[str], None],
        say: Callable[[str], None],
        socket: Callable[[], Socket],
        log: Callable[[str, bytes], None],
        limits: Limits,
    ) -> None:
        self._loop = loop
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
        self._socket = socket
        self._log = log
        self._told_held = False
        self._stand_ins: Wrappers | None = None
        self._hosts: dict[str, Registered] = {}
        self.times: Counter[str] = Counter()
        """How often each host has come."""
        self._guests: dict[trunk.HostLink, _Guest] = {}
        self._home: dict[int, Registered] = {}
        self._ended: set[int] = set()
        """Workers of which nothing lives any more, as far as the head knows."""
        self._heard: list[WorkerEvent] = []
        self._progress: dict[int, Standing] = {}
        self._pmix: int | None = None
        self._check = ServerCheck(loop, socket, self._hear_check, limits)
        self.mute = False
        """Whether mpirun does not answer, so that nobody can be brought in."""
        self._names: dict[int, messages.MpiName] = {}
        """As whom MPI knows each worker that it does."""
        self._ready: set[int] = set()
        self._first: frozenset[int] = frozenset()
        """The workers that the job began with."""
        self._untrained: set[int] = set()
        """Newcomers that do not train yet: however one ends, MPI must take it for dead."""
        self._rifts = Partitions()
        self._ending = False
        self.stayed = False
        """Whether hosts were there when all were let go."""
        calm, _ = bounds(assignment.detect_ms)
        self._beat = beat_every(assignment.detect_ms)
        self._fence = limits.fence
        self._hearing = Hearing(time.monotonic(), self._beat, calm / 2, limits.fence)
        self._next_beat = 0.0

    # Hosts come.

    def meet(
        self,
        descriptors: tuple[int, int],
        seal: Seal,
        patience: float,
        gone: Callable[[str], None],
        near: bool = False,
    ) -> trunk.HostLink:
        """Talk to an agent that may be at the other end; returns the connection. ``near``: it is on
        the head's own host.

        It becomes a host of the job, or ``gone`` is called later with the reason. It has
        ``patience`` seconds to introduce itself, and some more to look whether it is fit.
        """
        link = trunk.HostLink(
            self._loop,
            descriptors,
            seal,
            lambda frame: self._hear_guest(link, frame),
            lambda why: self.part(link, why),
        )
        self._guests[link] = _Guest(self._hearing.awake + patience, gone, near)
        return link

    @property
    def hosts(self) -> Sequence[Registered]:
        """Those that are there."""
        return tuple(self._hosts.values())

    @property
    def guests(self) -> Collection[trunk.HostLink]:
        """Connections that have not become hosts yet."""
        return self._guests.keys()

    def part(self, link: trunk.HostLink, why: str) -> None:
        """Let a guest go."""
        link.close()
        guest = self._guests.pop(link, None)
        if guest is not None:
            _LOG.info("an agent is let go: %s", why)
            guest.gone(why)

    def _hear_guest(self, link: trunk.HostLink, frame: Frame) -> None:
        guest = self._guests[link]
        try:
            said = trunk.read(frame, messages.FROM_NEW_AGENT)
        except Malformed as wrong:
            self._refuse(link, str(wrong))
            return
        match said:
            case messages.Hello(version=version) if not guest.greeted:
                guest.greeted = True
                guest.until = max(guest.until, self._hearing.awake + _TO_BE_FIT)
                if version != __version__:
                    self._refuse(link, f"it has spotmpi {version}, and the head {__version__}")
            case messages.Offer() if guest.greeted and guest.offer is None:
                if said.problem is None:
                    guest.offer = said
                    link.tell(self._assignment)
                else:
                    self._refuse(link, said.problem)
            case messages.Fit() if guest.offer is not None:
                del self._guests[link]
                self._take_in(link, guest.offer, guest.near)
            case messages.Unfit(why=why):
                self.part(link, why)
            case _:
                self._refuse(link, "it does not introduce itself as agents do")

    def _refuse(self, link: trunk.HostLink, why: str) -> None:
        link.tell(messages.Refusal(why))
        link.flush(_FOR_A_WORD)
        self.part(link, why)

    def _take_in(self, link: trunk.HostLink, offer: messages.Offer, near: bool) -> None:
        name = self._free_name(offer.name)
        connections = relay.Relay(self._loop, link.relay)
        beats = HostBeats(self._loop, link, self._hearing, self._assignment.detect_ms, self._fence)
        host = Registered(name, offer.slots, link, connections, beats, near)
        link.reassign(
            partial(self._take, host), lambda why: self._lose(host, f"was lost: {why}", "reset")
        )
        _LOG.info("%s is a host of the job, with %d slots", name, offer.slots)
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
        self._stand_ins = Wrappers(self._loop, folder, _no_streams)
        self._stand_ins.expect(self._home)
        return names

    def recruit(self, name: str) -> int | None:
        """Start one more worker on a host, if it is there and has a free slot; returns its id."""
        if (host := self._hosts.get(name)) is None or self._ending:
            return None
        if len(set(host.workers) - self._ended) >= host.slots:
            return None  # it has come anew, with all its workers
        worker = self._newcomer(name)
        host.workers.append(worker)
        self._home[worker] = host
        self._untrained.add(worker)
        _LOG.info("worker %d is started on %s, a newcomer", worker, name)
        settings = Settings(newcomer=worker, began_with=len(self._first))
        environ = self._spawning | settings.to_environ()
        host.trunk.tell(messages.Start(worker, self._local_size(host), environ))
        return worker

    def widen(self, name: str, slots: int) -> None:
        """Give a host that is there so many slots more, with a worker for each."""
        self._hosts[name].slots += slots
        for _ in range(slots):
            self.recruit(name)

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
            self._home[worker].trunk.tell(messages.Kill(worker))
        else:
            self._tell_of_end(worker, 0.0)

    def kill(self, worker: int) -> None:
        """Take a worker for dead, though it could not be killed, as soon as its host does so."""
        if worker not in self._ended:
            self._home[worker].trunk.tell(messages.Forsake(worker))

    def order(self, worker: int, order: Order) -> None:
        """Have an order put where the worker finds it in its next round."""
        self._home[worker].trunk.tell(messages.Instruct(worker, order))

    def explain(self, worker: int, cause: Cause) -> None:
        """Have all others find why a worker is gone, or goes."""
        for host in self._hosts.values():
            host.trunk.tell(messages.Explained(worker, cause))

    def progress(self) -> dict[int, Standing]:
        """How far the workers have come that live, as far as they train: a second ago."""
        return {w: said for w, said in self._progress.items() if w not in self._ended}

    def silences(self) -> dict[str, Silences]:
        """How silent the hosts were that are there, by name; never the head's own."""
        return {host.name: host.beats.silences for host in self._hosts.values() if not host.near}

    def end(self) -> None:
        """Have every worker killed, while the stand-ins stay. From now on none is started."""
        self._ending = True
        for host in self._hosts.values():
            host.trunk.tell(messages.End())

    def dismiss(self, again: bool = False) -> None:
        """Let stand-ins and agents go, and meet no new ones. ``again``: the job begins anew."""
        self.stayed = bool(self._hosts)
        self._check.close()
        if self._stand_ins is not None:
            self._stand_ins.dismiss()
        for link in self._guests:
            link.close()
        self._guests.clear()
        for host in self._hosts.values():
            host.trunk.tell(messages.Leave(again))

    @property
    def gone(self) -> bool:
        """Whether nobody is there any more."""
        return not self._hosts and (self._stand_ins is None or self._stand_ins.gone)

    def hear(self) -> list[WorkerEvent]:
        """Return all that was said, ends last; look for hosts that fell silent."""
        self._watch_over_hosts()
        if self._pmix is not None and not self._ending:
            self._check.tend(self._pmix, time.monotonic())
        if self._held() != self._told_held:
            self._told_held = self._held()
            for host in self._hosts.values():
                host.trunk.tell(messages.Hold(self._told_held))
        for heard in self._stand_ins.hear() if self._stand_ins is not None else ():
            worker = heard.worker
            match heard.said:
                case messages.Met(environ=environ):
                    self._start(worker, environ or {})
                case messages.Vanished():
                    if worker not in self._ended:
                        self._home[worker].trunk.tell(messages.Kill(worker))
                        self._bury(worker, 0.0)
                        self._heard.append(heard)
                case messages.RuntimeEnds():
                    self._heard.append(heard)
        heard_now, self._heard = self._heard, []
        return in_order(heard_now)

    def pause(self) -> float | None:
        """Seconds until `hear` must be called again, whatever happens."""
        if self._guests or any(not host.near for host in self._hosts.values()):
            return max(0.0, self._next_beat - time.monotonic())
        return None

    def _start(self, worker: int, environ: dict[str, str]) -> None:
        self._pmix = self._pmix or relay.server_port(environ)
        if (name := mpi_variables.name(environ)) is not None:
            self._names[worker] = messages.MpiName(*name)
        host = self._home[worker]
        _LOG.info("the stand-in of worker %d on %s is there", worker, host.name)
        if host.name not in self._hosts or worker in self._ended:
            self._kill_stand_in(worker)
        elif worker in self._first:
            local_size = self._local_size(host)
            host.trunk.tell(messages.Start(worker, local_size, self._spawning | environ))
        else:
            host.trunk.tell(messages.Admit(worker, environ))

    def _local_size(self, host: Registered) -> int:
        """The number of workers with which the job began on a host; its slots, if there is none."""
        return len(self._first.intersection(host.workers)) or host.slots

    # What agents say.

    def _take(self, host: Registered, frame: Frame) -> None:
        try:
            self._hear(host, trunk.read(frame, messages.FROM_AGENT))
        except Malformed as wrong:
            self._rest(host.name)
            self._expel(host, f"sent what no agent sends: {wrong}")

    def _hear(self, host: Registered, said: Message | trunk.Output | trunk.Carried) -> None:
        """Raises Malformed where it speaks of workers that it does not have."""
        now = time.monotonic()
        match said:
            case trunk.Carried(connection, data):
                self._carry(host, connection, data)
            case trunk.Output(worker, log_lines.STREAM, data):
                self._log(f"worker {_own(host, worker)} on {host.name}", data)
            case messages.Logged(line=line):
                self._log(f"agent on {host.name}", f"{line}\n".encode(errors="replace"))
            case trunk.Output(worker, stream, data):
                self._write(_own(host, worker), stream, data)
            case messages.Passed(worker=worker, said=of_worker):
                self._hear_from(host, _own(host, worker), of_worker)
            case messages.Progressed(entries=entries):
                for worker, rounds, steps, doing, ago, quiet, busy, loss, counted in entries:
                    before = self._progress.get(_own(host, worker))
                    known = quiet, busy, loss, Measured(*counted)
                    standing = Standing(rounds, steps, doing, now - ago, *known)
                    # It is in one place since one moment, however long its words take.
                    if before is not None and before[:3] == standing[:3]:
                        standing = standing._replace(since=before.since)
                    self._progress[worker] = standing
            case messages.Noticed():
                # Seconds and no date: two hosts' clocks differ.
                deadline = None if said.seconds is None else time.time() + said.seconds
                notice = Notice(said.source, deadline, said.what, said.advice)
                self._noticed(host.name, notice)
            case messages.Free():
                host.trunk.tell(messages.Leave())
            case messages.Claims(links=links):
                self._claim(host, links)
            case messages.Confirms(links=links):
                self._rifts.confirm(host.name, links, now)
            case messages.Says(text=text):
                self._say(f"{host.name}: {text}")
            case messages.UdpSocket(address=address, port=port):
                if (name := host.beats.udp.meet(address, port)) is not None:
                    host.trunk.tell(messages.UdpSocket(*name))

    def _hear_from(self, host: Registered, worker: int, said: Message) -> None:
        if worker in self._ended:
            return
        ended = isinstance(said, messages.Ended)
        revoked = isinstance(said, messages.Ended) and said.revoked
        if isinstance(said, messages.Vanished) or revoked or (ended and worker in self._untrained):
            self._bury(worker, 0.0)
        elif isinstance(said, messages.Ended | messages.Cleared):
            self._ended.add(worker)
        elif isinstance(said, messages.Trains):
            self._untrained.discard(worker)
        self._heard.append(WorkerEvent(worker, said))
        starting = worker in self._first and self._ready != self._first
        if starting and isinstance(said, messages.Ready | messages.Underway):
            underway = isinstance(said, messages.Underway)
            self._ready |= self._first if underway else {worker}
            if self._ready == self._first:
                for other in self._hosts.values():
                    if not self._first.isdisjoint(other.workers):
                        other.beats.settle()
                for name in self._spares:
                    self.recruit(name)
        elif isinstance(said, messages.Admitted):
            host.beats.settle()

    def _claim(self, host: Registered, links: Sequence[TcpConnection]) -> None:
        """A host's workers get no answer: whoever has the other end knows who they are."""
        self._rifts.claim(host.name, links, time.monotonic())
        for other in self._hosts.values():
            if other is not host:
                other.trunk.tell(messages.Claimed(tuple(links)))

    def _hear_check(self, mute: bool) -> None:
        _LOG.info("mpirun's server %s", "does not answer" if mute else "answers again")
        self.mute = mute

    def _kill_stand_in(self, worker: int) -> None:
        if self._stand_ins is not None:
            self._stand_ins.kill(worker)

    def _bury(self, worker: int, ago: float) -> None:
        """A worker is gone: every host must know at once, and when it was."""
        self._ended.add(worker)
        self._tell_of_end(worker, ago)  # first of all: this is what the others wait for
        self._kill_stand_in(worker)
        _LOG.info("worker %d is dead: all hosts know, and its stand-in is killed", worker)

    def _tell_of_end(self, worker: int, ago: float) -> None:
        for host in self._hosts.values():
            host.trunk.tell(messages.Died(worker, ago, self._names.get(worker)))

    def _carry(self, host: Registered, connection: int, data: bytes) -> None:
        if connection not in host.relay and data and self._pmix is not None:
            if len(host.relay) >= _CONNECTIONS * (1 + len(host.workers)):
                host.trunk.relay(connection, b"")
                return
            try:
                link = self._socket()
            except OSError:
                host.trunk.relay(connection, b"")
                return
            host.relay.connect(connection, link, self._pmix)
        host.relay.receive(connection, data)

    # Hosts go.

    def _watch_over_hosts(self) -> None:
        now = time.monotonic()
        if self._next_beat <= now:
            self._next_beat = now + self._beat
            for host in self._hosts.values():
                if not host.near:
                    host.beats.send(now)
        for link, guest in list(self._guests.items()):
            if guest.until < self._hearing.awake:
                self.part(link, "it did not introduce itself in time")
        heard = [host for host in self._hosts.values() if host.beats.news]
        certain = self._hearing.look(now, bool(heard))
        for host in heard:
            after = host.beats.take() - self._beat
            if not host.near and self._rifts.excuse(host.name, after, now):
                _LOG.info("%s is heard again, after %s", host.name, milliseconds(1e3 * after))
        if self._rifts:
            self._part_from_outcast(now)
        for host in [host for host in self._hosts.values() if not host.near]:
            silence = host.beats.lost_after(now, certain)
            if silence is not None:
                host.trunk.close()
                self._lose(host, f"was silent for {milliseconds(1e3 * silence)}", "silent")

    def _part_from_outcast(self, now: float) -> None:
        """Where two hosts do not reach each other, one of them must go."""
        living = {h.name: len(set(h.workers) - self._ended) for h in self._hosts.values()}
        outcast = self._rifts.outcast(living, now)
        if outcast is None:
            return
        host, missed = self._hosts[outcast[0]], ", ".join(outcast[1])
        why = f"does not reach {missed}, though the head does: see to the network between them"
        self._rest(host.name)
        self._expel(host, why)

    def _expel(self, host: Registered, why: str) -> None:
        """Lose a host that is there and must not be: it is told why."""
        host.trunk.tell(messages.Refusal(f"it {why}"))
        host.trunk.flush(_FOR_A_WORD)
        host.trunk.close()
        self._lose(host, why, "unreachable")

    def _lose(self, host: Registered, how: str, kind: str) -> None:
        _LOG.info("host %s %s", host.name, how)
        del self._hosts[host.name]
        ago = time.monotonic() - host.trunk.heard
        host.beats.udp.close()
        host.relay.close()  # before stand-ins are killed (see `Agent._pass_on`)
        living = [worker for worker in host.workers if worker not in self._ended]
        stays = host.near and not self._hosts
        for worker in living:
            self._bury(worker, ago)
            lost = messages.HostLost(f"host {host.name} {how}", kind, stays)
            self._heard.append(WorkerEvent(worker, lost))


def _own(host: Registered, worker: int) -> int:
    if worker not in host.workers:
        raise Malformed(f"it speaks of worker {worker}, which is none of its own")
    return worker


def _no_streams(worker: int, descriptor: int, stream: int) -> None:
    os.close(descriptor)
