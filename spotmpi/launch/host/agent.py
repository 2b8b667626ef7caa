"""``spotmpi agent``: on each host, it runs the head's workers and says what becomes of them.

It is small and computes nothing, so that its silence means that the host is gone; when the head
is silent, or the connection breaks, it kills the workers: whoever is excluded must not go on.

What it says to the head is `messages.FROM_NEW_AGENT` and then `messages.FROM_AGENT`, what it is
told `messages.FROM_HEAD`.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from spotmpi import __version__, job_folder
from spotmpi.launch import (
    link,
    log_lines,
    messages,
    pmix_relay,
    processes,
    tcp_connections,
)
from spotmpi.launch.auth import Frame, Seal
from spotmpi.launch.decoding import Malformed
from spotmpi.launch.event_loop import Loop
from spotmpi.launch.host.activity import Activities
from spotmpi.launch.host.worker import TASK
from spotmpi.launch.host.wrappers import WorkerEvent, Wrappers
from spotmpi.launch.liveness import Awake, beat_every
from spotmpi.launch.notices import NoticeListener
from spotmpi.launch.processes import cores, read
from spotmpi.launch.signal_events import as_events
from spotmpi.launch.start import crowd, mpi_variables, mpirun
from spotmpi.launch.start.installation import NO_MPI, search
from spotmpi.launch.start.program import Program
from spotmpi.launch.udp_beats import UdpBeats, own_addresses
from spotmpi.launch.wording import signal_name
from spotmpi.launcher_channel import (
    Busy,
    Name,
    Progress,
    admit,
    publish_cause,
    publish_death,
    record_death,
)
from spotmpi.notice import Notice
from spotmpi.settings import Settings, Watch

__all__ = ["Agent", "ServiceEnd"]

_LOG = logging.getLogger(__name__)

_FOR_WELCOME = 30.0
"""Seconds for the head to prove itself and to say what the job is."""

_FOR_CLEARING = 6.0
"""Seconds for killed processes to be gone."""

_BEFORE_BURIAL = 0.25
"""Seconds from a death until orphans are looked for: survivors need the cores to recover."""

_BETWEEN_BURIALS = 0.05
"""Seconds until those that were killed are looked for again."""

_BETWEEN_REPORTS = 1.0
"""Seconds between two looks at how far the workers have come."""

_MOST_BETWEEN_TURNS = 1.0
"""Seconds between two turns that pass for the agent; in a longer time it was asleep itself."""

_NO_NEWS = 1.0
"""Seconds without a word of a worker, after which it may wait for a host that it cannot reach. (In
the door it has left its last round, so what it says that it does is no guide.)"""

_ENDS = (messages.Ended, messages.Cleared, messages.Vanished)
"""What is heard of a worker last."""


@dataclass(frozen=True)
class ServiceEnd:
    """How an agent's service ended.

    ``over``: there is no point in trying again; else the connection broke. ``why`` is empty where
    all is well. ``served``: it was part of a job. ``told``: SIGTERM asked for it.
    """

    over: bool
    why: str
    served: bool = False
    told: bool = False


class Agent:
    """One host's part of one job, from the connection to its end.

    ``descriptors`` lead from and to the head; the seal is this end's. ``near``: the head is on this
    very host, so that it is there as long as the connection is.
    """

    def __init__(
        self,
        descriptors: tuple[int, int],
        seal: Seal,
        name: str,
        slots: int,
        watch: Watch,
        near: bool = False,
    ) -> None:
        self._loop = Loop()
        self._slots = slots
        self._name = name
        self._near = near
        self._assignment: messages.Assignment | None = None
        self._installation = search(os.environ).found
        self._outcome: ServiceEnd | None = None
        self._wrappers: dict[int, subprocess.Popen[bytes]] = {}
        self._places: dict[int, int] = {}
        """Each worker's number on this host."""
        self._streams: dict[int, tuple[int, int]] = {}
        self._written: list[tuple[int, int, bytes]] = []
        """What workers wrote, and is not passed on yet."""
        self._held = False
        self._next_beat = self._next_report = 0.0
        self._reported: dict[int, tuple[Progress, float, str]] = {}
        """What was last said of each worker: how far, for how long quiet, with what busy."""
        self._activities = Activities()
        self._mark, self._folder, self._lock = job_folder.create(0)
        self._crew = Wrappers(self._loop, self._folder, self._watch)
        self._trunk = link.HostLink(self._loop, descriptors, seal, self._take, self._cut)
        self._udp = UdpBeats(self._loop, seal, 0.0)
        self._addresses = [] if near else own_addresses(descriptors[0], os.environ)
        self._relay = pmix_relay.Relay(self._loop, self._trunk.relay)
        self._doorways: dict[int, pmix_relay.Doorway] = {}
        """Of each worker that lives, its own."""
        self._connections = itertools.count(1)
        self._lookout = NoticeListener(self._loop, watch, self._noticed, self._say, agent=True)
        self._to_be_taken = self._told = self._free = False
        self._gone: set[int] = set()
        """Workers that were started and are no more."""
        self._awake = Awake(time.monotonic(), _MOST_BETWEEN_TURNS)
        self._heard = time.monotonic()
        self._heard_awake = 0.0
        """For how long the agent had been awake when it heard of the head last."""
        self._introduced = False
        self._end_log: Callable[[], None] = lambda: None

    def run(self) -> ServiceEnd:
        """Serve until there is nothing more to serve. Blocking; leaves nothing on the host."""
        processes.name_this("spotmpi-agent")
        processes.adopt_orphans()
        processes.allow_descriptors(self._slots)
        # A batch system says so first, and kills a few seconds later: time to clear up.
        signals = {signal.SIGTERM, *self._lookout.signals}
        with closing(self._loop), as_events(self._loop, signals, self._signalled):
            try:
                while self._outcome is None:
                    self._turn()
                return self._outcome
            finally:
                self._clean_up()

    def _turn(self) -> None:
        self._watch_output()
        self._loop.turn(self._pause())
        # What a worker said before it wrote has come by now, and goes first: whoever sees a line
        # may take it that the head knows what its worker had said by then.
        heard = self._crew.hear()
        ends = [one for one in heard if isinstance(one.said, _ENDS)]
        for one in heard:
            if one not in ends:
                self._pass_on(one)
        self._pass_output()
        for end in ends:
            self._pass_on(end)
        self._look_for_stillborn()
        now = time.monotonic()
        self._awake.look(now)
        if self._trunk.open and not self._introduced:
            self._introduced = True
            self._introduce()
        if self._assignment is None:
            if self._awake.time > _FOR_WELCOME:
                self._cut("the head did not answer")
            return
        if self._next_beat <= now and not self._near:
            self._next_beat = now + beat_every(self._assignment.detect_ms)
            self._trunk.beat()
            self._udp.beat(now)
        if self._next_report <= now and not self._trunk.congested:
            self._next_report = now + _BETWEEN_REPORTS
            self._report()
        if not self._near:
            self._judge_head(self._assignment.fence)

    def _judge_head(self, fence: float) -> None:
        if self._trunk.heard != self._heard:
            self._heard, self._heard_awake = self._trunk.heard, self._awake.time
        silence = self._awake.time - self._heard_awake
        if silence > fence and not self._trunk.readable:
            self._cut(f"the head was silent for {silence:.0f} s")

    def _pause(self) -> float:
        if self._assignment is None:
            return 0.1
        at = self._next_report if self._near else self._next_beat
        return max(0.0, at - time.monotonic())

    def _introduce(self) -> None:
        why = NO_MPI
        if self._installation:
            why = processes.few_descriptors(self._slots) or crowd.too_many(self._slots)
        problem = f"{why} (on {self._name})" if why else None
        self._trunk.tell(messages.Hello(__version__))
        self._trunk.tell(messages.Offer(self._name, self._slots, problem))

    # What the head says.

    def _cut(self, reason: str) -> None:
        if self._outcome is None:
            _LOG.info("the connection to the head is given up: %s", reason)
            # A host that is to be taken away must not come again.
            over = self._to_be_taken
            served = self._assignment is not None
            self._outcome = ServiceEnd(over, reason, served=served, told=over and self._told)

    def _take(self, frame: Frame) -> None:
        try:
            said = link.read(frame, messages.FROM_HEAD)
        except Malformed as wrong:
            self._cut(f"the head sent what no head sends: {wrong}")
            return
        if not isinstance(said, link.Carried | link.Output | messages.Claimed):
            _LOG.debug("the head says %r", said)
        match said:
            case link.Carried(connection, data):
                self._relay.receive(connection, data)
            case messages.Assignment():
                self._take_on(said)
                _LOG.info("the job's folder here is %s, its task %s", self._folder, said.task)
            case messages.Refusal(why=why):
                self._outcome = ServiceEnd(True, f"the head refused this host: {why}")
            case messages.Start(worker=worker, local_size=local_size, environ=environ):
                self._start(worker, local_size, environ)
            case messages.Admit(worker=worker, environ=environ):
                self._admit(worker, environ)
            case messages.Kill(worker=worker):
                self._crew.revoke(worker)
            case messages.Forsake(worker=worker):
                if worker not in self._gone:
                    self._pass_on(WorkerEvent(worker, messages.Vanished()))
            case messages.Instruct(worker=worker, order=order):
                with suppress(OSError):  # no room: others may have been told
                    self._crew.order(worker, order)
            case messages.Hold(on=on):
                self._held = on
            case messages.Died(worker=worker, ago=ago, name=name):
                self._obituary(worker, time.monotonic() - ago, name)
            case messages.Explained(worker=worker, cause=cause):
                with suppress(OSError):  # no room: the trace does without
                    publish_cause(self._folder, worker, cause)
            case messages.Claimed(links=claimed):
                if known := tcp_connections.ends(claimed, os.getpid()):
                    self._trunk.tell(messages.Confirms(tuple(known)))
            case messages.UdpSocket(address=address, port=port):
                self._udp.meet(address, port)
            case messages.End():
                self._crew.end()
            case messages.Leave(again=again):
                self._crew.dismiss()
                if again and not self._free:
                    self._outcome = ServiceEnd(False, "the job starts again", served=True)
                else:
                    why = "this host is to be taken away" if self._free else ""
                    self._outcome = ServiceEnd(True, why, told=self._free and self._told)

    def _obituary(self, worker: int, at: float, name: messages.MpiName | None) -> None:
        """A worker has died, here or elsewhere: those that are here must know, and their MPI."""
        record_death(str(self._folder), worker, at)
        if name is not None:
            living = self._wrappers.keys() - self._gone - {worker}
            publish_death(self._folder, worker, Name(name.namespace.encode(), name.rank), living)

    def _take_on(self, assignment: messages.Assignment) -> None:
        program = Program.of(assignment.task)
        path = assignment.environ.get("PYTHONPATH", "").split(os.pathsep)
        if not os.path.isdir(assignment.folder):
            self._decline(f"there is no folder {assignment.folder} on {self._name}")
        elif (missing := program.missing(assignment.folder, path)) is not None:
            self._decline(f"there is no {missing} on {self._name}")
        else:
            self._assignment = assignment
            if Settings.from_environ(assignment.environ).log:
                self._end_log = log_lines.keep(self._log)
            (self._folder / TASK).write_text(json.dumps(assignment.task))
            self._trunk.tell(messages.Fit())
            if (name := self._udp.offer(self._addresses)) is not None:
                self._trunk.tell(messages.UdpSocket(*name))
            self._lookout.start()

    def _decline(self, why: str) -> None:
        self._trunk.tell(messages.Unfit(why))
        self._outcome = ServiceEnd(True, why)

    def _start(self, worker: int, local_size: int, given: dict[str, str]) -> None:
        assert self._assignment is not None
        assert self._installation is not None
        door = self._doorways[worker] = self._new_doorway()
        settings = Settings(job=self._mark, job_dir=self._folder)
        slots = max(self._slots, 1 + len(self._wrappers.keys() - self._gone))  # it may have grown
        processes.allow_descriptors(slots)
        environ = mpirun.on_host(
            self._installation,
            slots,
            settings,
            os.environ,
            pmix_relay.with_port(given, door.port),
            cores(),
        )
        self._crew.expect([worker])
        place = self._place_of(worker, local_size)
        if Settings.from_environ(self._assignment.environ).torch:  # then as torchrun does
            environ |= {"LOCAL_RANK": f"{place}", "LOCAL_WORLD_SIZE": f"{local_size}"}
        wrapper = subprocess.Popen(
            mpirun.wrapper(self._folder, worker, Program.of(self._assignment.task).short),
            env=environ | self._assignment.environ,
            cwd=self._assignment.folder,
            stdin=subprocess.DEVNULL,
            stdout=2,  # a trunk through ssh is standard output
        )
        processes.lower_priority(wrapper.pid)
        self._wrappers[worker] = wrapper
        _LOG.info("the wrapper of worker %d is process %d", worker, wrapper.pid)

    def _place_of(self, worker: int, local_size: int) -> int:
        """Return the number of a worker on this host, which no other living worker has. Workers of
        one host have their ranks. ``local_size``: see `messages.Start`."""
        taken = {place for one, place in self._places.items() if one not in self._gone}
        wanted = itertools.chain([worker % local_size], itertools.count())
        self._places[worker] = next(place for place in wanted if place not in taken)
        return self._places[worker]

    def _new_doorway(self) -> pmix_relay.Doorway:
        return pmix_relay.Doorway(self._loop, self._relay, lambda: next(self._connections))

    def _admit(self, worker: int, given: dict[str, str]) -> None:
        if (door := self._doorways.get(worker)) is not None:
            environ = mpi_variables.admission(pmix_relay.with_port(given, door.port))
            with suppress(OSError):  # it has died meanwhile
                admit(self._folder, worker, environ)

    # This host is to be taken away.

    def _signalled(self, number: int) -> None:
        # Without a job there is nobody to tell, and nothing to leave.
        if self._assignment is None or not self._lookout.take(number):
            self._outcome = ServiceEnd(
                True, f"it was told to end ({signal_name(number)})", told=True
            )

    def _noticed(self, notice: Notice) -> None:
        left = notice.left(time.time())
        said = messages.Noticed(notice.source, left, notice.what, notice.advice)
        self._trunk.tell(said)
        if not notice.advice:
            self._to_be_taken = True
            self._told = notice.what == signal_name(signal.SIGTERM)
            self._give_free()

    def _give_free(self) -> None:
        """End, once the last worker has left the host and the head has answered.

        Not before: srun may lose what a signalled step says last, and the head would take its
        workers for lost.
        """
        if self._to_be_taken and not self._free and self._gone.issuperset(self._wrappers):
            self._free = True
            self._trunk.tell(messages.Free())

    def _say(self, sentence: str) -> None:
        self._trunk.tell(messages.Says(sentence))

    def _log(self, line: bytes) -> bool:
        if self._trunk.congested:
            return False
        self._trunk.tell(messages.Logged(line.decode(errors="replace").rstrip("\n")))
        return True

    # What workers and wrappers say.

    def _report(self) -> None:
        """Say how far workers have come and whether they are at work, where that is new."""
        progress, busy = self._crew.progress(), self._crew.busy()
        wrappers = {worker: wrapper.pid for worker, wrapper in self._wrappers.items()}
        quiet = self._activities.look(self._awake.time, progress, busy, wrappers)
        now = time.monotonic()
        before, self._reported, new = self._reported, {}, []
        for worker, come in progress.items():
            said = busy.get(worker, Busy())
            with_what = said.what.decode(errors="replace") if said.on else ""
            self._reported[worker] = come, quiet[worker], with_what
            if before.get(worker) != self._reported[worker]:
                ago = max(0.0, now - come.since)
                far, counted = come[:3], messages.Counted(*come.measured)
                inside = quiet[worker], with_what
                new.append(messages.HowFar(worker, *far, ago, *inside, come.loss, counted))
        if new:
            self._trunk.tell(messages.Progressed(tuple(new)))
        self._claim()

    def _claim(self) -> None:
        """Say which peers do not answer, if somebody may be waiting for one."""
        now = time.monotonic()
        waiting = self._wrappers.keys() - self._gone
        waiting -= {w for w, (p, _, _) in self._reported.items() if now - p.since < _NO_NEWS}
        if waiting and (found := tcp_connections.unanswered(os.getpid())):
            self._trunk.tell(messages.Claims(tuple(found)[: messages.MOST_LINKS]))

    def _pass_on(self, heard: WorkerEvent) -> None:
        said = heard.said
        if isinstance(said, messages.Met | messages.RuntimeEnds):
            return  # the one says nothing new, the other is a stand-in's to say
        if isinstance(said, messages.Ended | messages.Vanished):
            self._loop.after(_BEFORE_BURIAL, "bury", self._bury)
        _LOG.debug("of worker %d is heard: %r", heard.worker, said)
        ends = isinstance(said, _ENDS)
        if ends and heard.worker in self._doorways:
            # Before the head kills its stand-in: PMIx's server (5.0) at times hangs if it learns of
            # a death first and of the end of the connection later.
            self._doorways.pop(heard.worker).close()
        self._trunk.tell(messages.Passed(heard.worker, said))
        if ends:
            self._gone.add(heard.worker)
            self._give_free()

    def _look_for_stillborn(self) -> None:
        """A wrapper that died before it said anything is known to nobody else."""
        for worker, wrapper in self._wrappers.items():
            if worker not in self._crew.met | self._gone and wrapper.poll() is not None:
                self._pass_on(WorkerEvent(worker, messages.Vanished()))

    def _watch(self, worker: int, descriptor: int, stream: int) -> None:
        os.set_blocking(descriptor, False)
        self._streams[descriptor] = worker, stream

    def _watch_output(self) -> None:
        """Read what workers write, as far as it can be carried on."""
        wait = self._held or self._trunk.congested
        for descriptor in self._streams:
            if wait:
                self._loop.leave(descriptor)
            elif descriptor not in self._loop:
                self._loop.watch(descriptor, partial(self._read, descriptor))

    def _read(self, descriptor: int) -> bool:
        data = read(descriptor)
        if data is not None:
            self._written.append((*self._streams[descriptor], data))
        if data == b"":
            del self._streams[descriptor]
            self._loop.leave(descriptor)
            os.close(descriptor)
        return bool(data)

    def _pass_output(self) -> None:
        for written in self._written:
            self._trunk.pass_output(*written)
        self._written.clear()

    # The end.

    def _bury(self) -> None:
        living = [w.pid for w in self._wrappers.values() if w.poll() is None]
        if self._lookout.pid is not None:
            living.append(self._lookout.pid)
        # Without waiting for any of them to be gone: the head waits for beats.
        if not processes.end_descendants(0.0, keep=living):
            self._loop.after(_BETWEEN_BURIALS, "bury", self._bury)

    def _clean_up(self) -> None:
        """Kill everything that this job has on the host, and remove its folder. Blocking."""
        if self._free:
            self._lookout.safe()  # the cloud may have the host
        self._lookout.close()
        processes.end_descendants(_FOR_CLEARING)
        processes.sweep(f"SPOTMPI_JOB={self._mark}", _FOR_CLEARING)
        _LOG.info("all workers of this host are gone")
        self._end_log()
        for descriptor in list(self._streams):
            while descriptor in self._streams and self._read(descriptor):
                pass
        self._pass_output()
        self._trunk.flush(_FOR_CLEARING)
        for doorway in self._doorways.values():
            doorway.close()
        self._udp.close()
        self._relay.close()
        job_folder.remove(self._folder)
        os.close(self._lock)
        # Last: a launcher on the same host kills what is left of an agent that has gone.
        self._trunk.close()
